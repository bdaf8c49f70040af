"use strict";
// Lets a reader choose the GPU, the situation and the op; draws maps and charts; sorts tables; saves the embedded result.
// What needs a script is hidden until this one runs.

/** @typedef {{gpu: string, data: string, series: string, every: boolean}} State */

(async () => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const all = (/** @type {ParentNode} */ part, /** @type {string} */ what) => [...part.querySelectorAll(what)];

  /** @param {string} id @returns {Promise<string>} what the block holds */
  async function embedded(id) {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }

  for (const button of all(document, "[data-download]")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const file = new Blob([await embedded(button.dataset.download)], { type: "application/json" });
      const link = document.createElement("a");
      link.href = URL.createObjectURL(file);
      link.download = button.dataset.name;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60000);
    });
  }

  // ---------------------------------------------------------------- tables

  const UNITS = { ns: 1e-9, us: 1e-6, ms: 1e-3, s: 1, K: 2 ** 10, M: 2 ** 20, G: 2 ** 30 };
  const WORDS = { "about equal": 1, "all sizes": 0 };  // any other text without a number comes last

  /** @param {string} text @returns {number} the first number: of a matrix its elements, of a CPU's gain 1 / gain */
  function numberIn(text) {
    const match = /(-?\d[\d.,]*)(?:-[\d.]+)?\s*(ns|us|ms|s\b|\u00b2|\^2|[kMGTPE](?=\S*\/s)|[KMG])?/.exec(text);
    const word = Object.keys(WORDS).find((one) => text.startsWith(one));
    if (word || !match) return WORDS[word] ?? Infinity;
    const [, digits, unit] = match;
    const number = Number(digits.replaceAll(",", ""));
    if (text.startsWith("CPU")) return 1 / number;
    if (text.includes("/s")) return number * 1000 ** ("kMGTPE".indexOf(unit) + 1);
    return unit === "\u00b2" || unit === "^2" ? number ** 2 : number * (UNITS[unit] || 1);
  }

  /** @param {HTMLTableElement} table @param {(rows: HTMLTableRowElement[]) => void} [moved] */
  function sortable(table, moved) {
    const head = [...table.tHead.rows].pop();
    const body = table.tBodies[0];
    // A cell over several rows is in the first of them alone.
    const column = (row, i) => row.cells[i - (head.cells.length - row.cells.length && i > 1 ? 1 : 0)];
    for (const title of all(head, "th")) {
      const button = Object.assign(document.createElement("button"), { className: "sort", type: "button" });
      button.append(...title.childNodes);
      title.append(button);
      button.addEventListener("click", () => {
        const up = title.getAttribute("aria-sort") !== "ascending";
        for (const other of all(head, "[aria-sort]")) other.removeAttribute("aria-sort");
        title.setAttribute("aria-sort", up ? "ascending" : "descending");
        const keys = new Map([...body.rows].map((row) => {
          const text = column(row, title.cellIndex).textContent;
          return [row, title.cellIndex ? numberIn(text) : text];
        }));
        const sorted = [...keys.keys()].sort((a, b) => {
          const [one, other] = [keys.get(a), keys.get(b)];
          return (one < other ? -1 : one > other ? 1 : 0) * (up ? 1 : -1);
        });
        body.append(...sorted);
        moved?.(sorted);
      });
    }
  }
  for (const table of all(document, ".details table")) sortable(table);

  // Long tables are packed until somebody unfolds them; printing waits for none.
  for (const place of all(document, "[data-table]")) {
    const fold = place.closest("details, article");
    const unpack = async () => {
      place.innerHTML = await embedded(place.dataset.table);
      sortable(place.querySelector("table"));
    };
    if (fold.matches(".printed")) await unpack();
    else fold.addEventListener("toggle", unpack, { once: true });
  }

  // ---------------------------------------------------------------- drawings

  const canDraw = Boolean(document.getElementById("library"));
  let themes;
  let library;
  function load() {
    library ??= (async () => {
      const script = document.createElement("script");
      script.textContent = await embedded("library");
      document.head.append(script);
      themes = JSON.parse(await embedded("themes"));
    })();
    return library;
  }

  /** @param {Element} place @param {object} spec @param {boolean} [bare] without a legend */
  function embed(place, spec, bare) {
    const whole = bare ? JSON.parse(JSON.stringify(spec, (key, part) => (key === "legend" ? null : part))) : spec;
    return vegaEmbed(place, whole, {
      ast: true, actions: false, defaultStyle: false, renderer: "svg", config: dark.matches ? themes.dark : themes.light,
      logLevel: 1,  // errors: it would warn of every data set that is empty
      tooltip: { theme: dark.matches ? "dark" : "light" },
    });
  }

  // One drawing after the other: the last choice is the one that stays.
  function inTurn(update) {
    let queue = Promise.resolve();
    const later = () => (queue = queue.then(update).catch(failed));
    dark.addEventListener("change", later);
    return later;
  }

  // A map of several machines, or a history: what stands in its place goes once it is drawn.
  async function show(figure) {
    await load();
    const specs = JSON.parse(await embedded(`${figure.dataset.drawing}-data`));
    let drawn = [];
    return inTurn(async () => {
      for (const one of drawn) one.finalize();
      const places = specs.map(() => Object.assign(document.createElement("div"), { className: "picture" }));
      figure.querySelector(".panels").replaceChildren(...places);
      drawn = await Promise.all(places.map((place, i) => embed(place, specs[i])));
      figure.dataset.drawn = String(Number(figure.dataset.drawn || 0) + 1);
    })();
  }

  /** The lanes of one table: as tall as its rows, and in their order. */
  class Lanes {
    constructor(cell, open) {
      this.cell = cell;
      this.open = open;
      this.body = cell.closest("tbody");
      this.place = Object.assign(document.createElement("div"), { className: "picture" });
      [...this.body.rows].forEach((row, i) => { row.dataset.lane = String(i); });
      sortable(cell.closest("table"), (rows) => {
        rows[0].insertBefore(cell, rows[0].cells[rows[0].cells.length - 2]);
        this.draw();
      });
    }

    async draw() {
      await load();
      this.spec ??= JSON.parse(await embedded(this.cell.dataset.lanes));
      this.names ??= this.spec.encoding.y.scale.domain;
      const rows = [...this.body.rows];
      this.drawn?.finalize();
      this.cell.replaceChildren(this.place);
      for (const row of rows) row.style.height = "";
      const step = Math.ceil(Math.max(...rows.map((row) => row.getBoundingClientRect().height)));
      for (const row of rows) row.style.height = `${step}px`;
      const domain = rows.map((row) => this.names[Number(row.dataset.lane)]);
      const y = { ...this.spec.encoding.y, scale: { domain, paddingInner: 0, paddingOuter: 0 } };
      const spec = { ...this.spec, height: step * rows.length, encoding: { ...this.spec.encoding, y } };
      this.drawn = await embed(this.place, spec, true);
      this.drawn.view.addEventListener("click", (_, item) => {
        const lane = this.names.indexOf(item?.datum?.lane);
        const row = rows.find((one) => one.dataset.lane === String(lane));
        if (row) this.open(row.dataset.op);
      });
      this.cell.dataset.drawn = String(Number(this.cell.dataset.drawn || 0) + 1);
    }

    fit() {
      this.drawn?.view.width(this.place.clientWidth).run();
    }
  }

  // ---------------------------------------------------------------- one run

  /** The curves that a reader sees first: the best CPU and the best of the GPU in the chosen situations, each once a size.
   *  @param {object[]} rows @param {State} state */
  function best(rows, state, set, names) {
    const lines = new Map();
    for (const row of rows) {
      const chosen = row.home || (row.device.startsWith(`${state.gpu}:`) && names.has(row.regime));
      if (!chosen) continue;
      const line = row.home ? "CPU" : [set.gpu, row.regime === "waited" ? "" : row.regime].join(" ").trim();
      const sizes = lines.get(line) || lines.set(line, new Map()).get(line);
      const other = sizes.get(row.n);
      if (!other || row.value < other.value) sizes.set(row.n, row);
    }
    // Both sides in their colours, whichever of their devices it is.
    const [cpu, gpu] = [true, false].map((home) => set.devices.find((device) => set.home.has(device.id) === home));
    const curves = [];
    const ends = [];
    for (const [text, sizes] of lines) {
      const points = [...sizes.values()].sort((a, b) => a.n - b.n)
        .map((row) => (row.home ? { ...row, device: cpu.id, regime: "resident" } : { ...row, device: (gpu || cpu).id }));
      curves.push(...points);
      ends.push({ ...points.at(-1), text, shift: 0 });
    }
    return [curves, apart(ends, curves)];
  }

  // Names at the ends of lines, apart from each other by the height of a letter.
  function apart(ends, rows) {
    const logs = rows.map((row) => Math.log(row.value));
    const scale = 300 / (Math.max(...logs) - Math.min(...logs) || 1);
    ends.sort((a, b) => b.value - a.value);
    let last = -Infinity;
    for (const end of ends) {
      const at = (Math.max(...logs) - Math.log(end.value)) * scale;
      end.shift = Math.max(0, last + 15 - at);
      last = at + end.shift;
    }
    return ends;
  }

  const pages = [];

  class Page {
    constructor(article) {
      this.article = article;
      this.prefix = article.dataset.run;
      this.views = all(article, ".view");
      this.set = { charts: [], series: [], chosen: "", devices: [] };
      this.drawn = new Map();
      this.lanes = (canDraw ? all(article, "[data-lanes]") : []).map((cell) => new Lanes(cell, (op) => this.open(op)));
      this.forms = all(article, "form.controls");
      for (const form of this.forms) {
        form.hidden = !form.querySelector("label");
        form.addEventListener("submit", (event) => event.preventDefault());
        form.addEventListener("change", () => this.change());
      }
      this.later = inTurn(() => this.draw());
    }

    field(name) {
      return this.article.querySelector(`.controls [name=${name}]`);
    }

    /** @returns {State} */
    state() {
      const text = (name) => this.field(name)?.value ?? "";
      return {
        gpu: this.field("gpu")?.value ?? this.views[0]?.dataset.gpu ?? "", data: text("data"),
        series: text("series"), every: Boolean(this.field("every")?.checked),
      };
    }

    /** @param {string} series show this op, and say so in the address */
    open(series) {
      const field = this.field("series");
      if (!field) return;
      field.value = series;
      this.change();
      document.getElementById(`${this.prefix}charts`).scrollIntoView({ block: "nearest", behavior: "smooth" });
    }

    change() {
      const state = this.state();
      const [op] = state.series.split(" ");
      const alone = this.set.series.filter((name) => name.split(" ")[0] === op).length < 2;
      const parts = [encodeURIComponent(alone ? op : state.series)];
      for (const name of ["gpu", "data"]) if (this.field(name)?.value) parts.push(`${name}=${encodeURIComponent(state[name])}`);
      if (state.every) parts.push("every=1");
      if (this !== pages[0]) parts.push(`run=${pages.indexOf(this)}`);
      history.replaceState(null, "", `#${parts.join("&")}`);
      return this.later();
    }

    /** @param {string} op @param {URLSearchParams} options */
    async follow(op, options) {
      const fold = this.article.querySelector("details.one");
      if (fold) fold.open = true;
      await this.start();
      const series = this.set.series.find((name) => [name, name.split(" ")[0], name.split(" ")[0].split(".").pop()].includes(op));
      if (!series) return;
      this.field("series").value = series;
      for (const name of ["gpu", "data"]) {
        const field = this.field(name);
        const value = options.get(name) || "";
        if (field && [...field.options].some((one) => one.value === value)) field.value = value;
      }
      this.field("every").checked = options.has("every");
      return this.later();
    }

    choose(state) {
      for (const view of this.views) {
        view.hidden = view.dataset.gpu !== state.gpu;
        for (const part of all(view, "[data-sentence]")) part.hidden = part.dataset.sentence !== state.data;
        for (const part of all(view, "[data-situation]")) part.hidden = Boolean(state.data) && part.dataset.situation !== state.data;
        for (const row of all(view, "tr[data-op]")) row.classList.toggle("chosen", row.dataset.op === state.series);
      }
    }

    async draw() {
      const state = this.state();
      this.choose(state);
      for (const lanes of this.lanes) if (lanes.cell.offsetParent) await lanes.draw();
      if (this.set.charts.length) {
        await load();
        for (const chart of this.set.charts) await this.chart(chart, state);
        dispatchEvent(new Event("resize"));  // a chart that was drawn before its neighbour appeared is too wide
        document.getElementById(`${this.prefix}status`).textContent = `The charts show ${state.series}.`;
      }
      this.article.dataset.ready = String(Number(this.article.dataset.ready || 0) + 1);
    }

    async chart(chart, state) {
      const place = document.getElementById(`${this.prefix}chart-${chart.id}`);
      if (place.closest("details:not([open])")) return;
      const known = (rows) => rows[state.series] || rows[state.series.split(" ")[1]] || [];
      let rows = known(chart.rows).map((row) => ({ ...row, who: row.device }));
      let marks = known(chart.marks);
      let ends = [];
      const lines = ["time", "speedup"].includes(chart.id) && !state.every;
      if (lines) {
        const view = this.views.find((one) => !one.hidden);
        const names = new Set(all(view || document, "[data-lanes]").filter((cell) => cell.offsetParent)
          .map((cell) => cell.closest("[data-situation]").dataset.situation));
        const gpu = view ? view.dataset.name : "GPU";
        const home = new Set(this.set.charts.flatMap((one) => Object.values(one.rows).flat()).filter((row) => row.home).map((row) => row.device));
        const first = this.set.devices.find((device) => !home.has(device.id));
        [rows, ends] = best(rows, state, { ...this.set, gpu, home }, names);
        marks = marks.filter((mark) => mark.device.startsWith(`${state.gpu}:`) && names.has(mark.regime))
          .map((mark) => ({ ...mark, device: first.id }));
      }
      this.drawn.get(chart.id)?.finalize();
      this.drawn.delete(chart.id);
      place.closest("figure").hidden = !rows.length;
      place.textContent = "";
      // The page says itself what the chart is; a second description inside it would be read twice.
      const spec = { ...chart.spec, description: undefined, datasets: { rows, marks, ends } };
      if (rows.length) this.drawn.set(chart.id, await embed(place, spec, lines));
    }

    start() {
      return (this.started ??= this.begin());
    }

    async begin() {
      if (document.getElementById(`${this.prefix}charts-data`)) this.set = JSON.parse(await embedded(`${this.prefix}charts-data`));
      for (const heading of all(this.article, ".charts h2")) heading.hidden = false;
      if (this.set.series.length) {
        for (const row of all(this.article, "tr[data-op]")) {
          const link = document.createElement("a");
          link.append(...row.cells[0].childNodes);
          link.href = `#${encodeURIComponent(row.dataset.op)}`;
          link.addEventListener("click", (event) => { event.preventDefault(); this.open(row.dataset.op); });
          row.cells[0].append(link);
        }
      }
      for (const fold of all(this.article, "details")) {
        if (fold.querySelector(".chart")) fold.addEventListener("toggle", this.later);
      }
      return this.later();
    }
  }

  function follow() {
    // Unlike decodeURIComponent it reads a damaged address, too.
    const options = new URLSearchParams(`op=${location.hash.slice(1)}`);
    const op = options.get("op");
    const place = op && document.getElementById(op);
    if (place) {
      for (let fold = place.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
      place.scrollIntoView();
    } else if (op) {
      pages[Number(options.get("run") || 0)]?.follow(op, options).catch(failed);
    }
  }

  // Paper is narrower than a screen: the lanes are drawn anew for it.
  for (const event of ["beforeprint", "afterprint"]) {
    addEventListener(event, () => {
      document.body.classList.toggle("paper", event === "beforeprint");
      for (const page of pages) for (const lanes of page.lanes) lanes.fit();
    });
  }

  for (const article of all(document, "[data-run]")) pages.push(new Page(article));
  for (const figure of canDraw ? all(document, "[data-drawing]") : []) await show(figure);
  for (const page of pages) {
    const fold = page.article.querySelector("details.one:not([open])");
    if (fold) fold.addEventListener("toggle", () => page.start().catch(failed), { once: true });
    else await page.start();
  }
  addEventListener("hashchange", follow);
  follow();
})().catch(failed);

/** @param {Error} error */
function failed(error) {
  for (const status of document.querySelectorAll("[role=status]")) {
    status.textContent = `The charts could not be drawn (${error.message}). The tables hold the same numbers.`;
  }
}
