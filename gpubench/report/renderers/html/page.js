"use strict";
// Draws the maps and the charts of each run, keeps all tables in step with the charts, and saves the embedded result.
// What needs a script is hidden until this one runs.
(async () => {
  const dark = matchMedia("(prefers-color-scheme: dark)");

  async function embedded(id) {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }

  for (const button of document.querySelectorAll("[data-download]")) {
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

  // Paper has no folds.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open], .data)")];
    for (const one of opened) one.open = true;
  });
  addEventListener("afterprint", () => { for (const one of opened) one.open = false; });

  function choice(form) {
    const checked = (name) => {
      const boxes = [...form.querySelectorAll(`input[name=${name}]`)];
      return boxes.length ? new Set(boxes.filter((box) => box.checked).map((box) => box.value)) : null;
    };
    const value = (name) => (form.elements[name] ? form.elements[name].value : "");
    return {
      picked: value("series"), form: value("form"), size: Number(value("size")),
      devices: checked("device"), regimes: checked("regime"),
    };
  }

  // A row without the field passes; the data of a CPU is at home in every regime.
  function shown(rows, wanted, chart) {
    const chosen = (row) => (row.devices || [row.device]).some((device) => wanted.devices.has(device));
    return (rows || []).filter((row) =>
      (row.device === undefined || !wanted.devices || chosen(row)) &&
      (row.regime === undefined || row.home || !wanted.regimes || wanted.regimes.has(row.regime)) &&
      (row.form === undefined || (wanted.form ? row.form === wanted.form : row.best)) &&
      (!chart.one_size || row.n === wanted.size));
  }

  function fillTable(table, chart, rows) {
    const line = (tag, texts) => {
      const made = document.createElement("tr");
      texts.forEach((text, i) => {
        const cell = document.createElement(tag === "th" || i === 0 ? "th" : "td");
        if (cell.tagName === "TH") cell.scope = tag === "th" ? "col" : "row";
        cell.textContent = text;
        if (text.length <= 40) cell.className = "whole";
        made.append(cell);
      });
      return made;
    };
    const head = document.createElement("thead");
    head.append(line("th", chart.columns.map((column) => column[1])));
    const body = document.createElement("tbody");
    body.append(...rows.map((row) => line("td", chart.columns.map((column) => String(row[column[0]] ?? "")))));
    table.replaceChildren(table.caption, head, body);
    const count = rows.length === 1 ? "1 row" : `${rows.length} rows`;
    table.closest("details").querySelector("summary").textContent = `Data table (${count})`;
  }

  // What a cell says itself, without what it repeats for narrow pages.
  const own = (cell) => (cell.firstChild && cell.firstChild.nodeType === Node.TEXT_NODE ? cell.firstChild.data : "");

  function filterTable(table, wanted, set) {
    const names = [...table.tHead.rows[table.tHead.rows.length - 1].cells].map(own);
    const regimes = set.regimes.map((one) => one[0]);
    const devices = set.devices.map((one) => one[0]);
    const short = (name) => (Object.hasOwn(set.headings, name) ? set.headings[name] : name);
    const gone = (name) =>
      (wanted.regimes && regimes.includes(short(name)) && !wanted.regimes.has(short(name))) ||
      (wanted.devices && devices.includes(name) && !wanted.devices.has(name));
    const [op, dtype, ...params] = wanted.picked.split(" ");
    const tests = {
      op: (text) => !op || text === [op, ...params].join(" ") || text === op,
      dtype: (text) => !op || text === dtype,
      data: (text) => !gone(text),
      case: (id) => (!op || (id.startsWith(`${op}/`) && id.includes(`/${dtype}/`))) && !gone(id.split("@").pop()),
    };
    for (const name of ["device", "GPU", "adapter", "hybrid"]) tests[name] = (text) => !gone(text.split(" ")[0]);
    const title = table.caption.querySelector(".title");
    const about = title && set.series.map((one) => one.name).filter((name) => `${title.textContent} `.startsWith(`${name} `)).pop();
    let left = 0, carried = [], before = null;
    for (const row of table.tBodies[0].rows) {
      // An empty cell, and one that begins with a blank, belong to the row above.
      carried = [...row.cells].map((cell, i) => {
        const text = own(cell);
        return text && !text.startsWith(" ") ? text : (i < 3 && carried[i]) || "";
      });
      row.hidden = !names.every((name, i) => !Object.hasOwn(tests, name) || !carried[i] || tests[name](carried[i])) ||
        Boolean(op && about && about !== wanted.picked);
      if (row.hidden) continue;
      left += 1;
      row.classList.toggle("lead", before !== carried[0]);
      before = carried[0];
    }
    names.forEach((name, i) => {
      for (const row of [table.tHead.rows[table.tHead.rows.length - 1], ...table.tBodies[0].rows]) {
        if (row.cells[i]) row.cells[i].hidden = gone(name);
      }
    });
    table.closest(".table").hidden = !left && table.tBodies[0].rows.length > 0;
  }

  function fillSizes(select, series) {
    if (!select) return;
    select.replaceChildren(...series.sizes.map((n) => {
      const option = document.createElement("option");
      option.value = option.textContent = String(n);
      option.selected = n === series.size;
      return option;
    }));
  }

  function embed(place, spec, themes) {
    return vegaEmbed(place, spec, {
      ast: true, actions: false, defaultStyle: false, renderer: "svg", config: dark.matches ? themes.dark : themes.light,
      logLevel: 1,  // errors: it would warn of every data set that is empty
      tooltip: { theme: dark.matches ? "dark" : "light" },
    });
  }

  function draw(chart, place, rows, marks, params, themes) {
    // The page says itself what the chart is; a second description inside it would be read twice.
    const spec = { ...chart.spec, description: undefined, datasets: { rows, marks }, params };
    if (chart.bars) spec.height = chart.step * new Set(rows.map((row) => row[chart.bars])).size;
    return embed(place, spec, themes);
  }

  // One drawing after the other: the last choice is the one that stays.
  function inTurn(update) {
    let queue = Promise.resolve();
    const later = () => (queue = queue.then(update));
    dark.addEventListener("change", later);
    return later;
  }

  // A map or a history: what stands in its place goes once it is drawn.
  async function show(figure, themes) {
    const views = JSON.parse(await embedded(`${figure.dataset.drawing}-data`));
    const form = figure.querySelector("form");
    const at = (name) => ((form && form.querySelector(`select[id$=map-${name}]`)) || { value: "0" }).value;
    const panels = figure.querySelector(".panels");
    let drawn = [];
    const later = inTurn(async () => {
      const view = views[`${at("devices")}-${at("situations")}`];
      for (const one of drawn) one.finalize();
      const places = view.specs.map(() => Object.assign(document.createElement("div"), { className: "panel" }));
      panels.replaceChildren(...places);
      drawn = await Promise.all(places.map((place, i) => embed(place, view.specs[i], themes)));
      figure.querySelector(".map-title").textContent = view.title;
      figure.dataset.drawn = String(Number(figure.dataset.drawn || 0) + 1);
    });
    if (form) {
      form.hidden = false;
      form.addEventListener("submit", (event) => event.preventDefault());
      form.addEventListener("change", later);
    }
    return later();
  }

  async function run(part, themes) {
    const prefix = part.dataset.charts;
    const set = JSON.parse(await embedded(`${prefix}charts-data`));
    const form = part.querySelector("form");
    const drawn = new Map();
    part.querySelector(".live").hidden = false;

    async function update() {
      const wanted = choice(form);
      wanted.series = wanted.picked || set.chosen;
      for (const table of part.closest("article").querySelectorAll(".details table")) filterTable(table, wanted, set);
      for (const chart of set.charts) {
        const place = document.getElementById(`${prefix}chart-${chart.id}`);
        const rows = shown(chart.rows[wanted.series], wanted, chart);
        const marks = shown((chart.marks || {})[wanted.series], wanted, chart);
        const params = Object.entries((chart.params || {})[wanted.series] || {}).map(([name, value]) => ({ name, value }));
        fillTable(document.getElementById(`${prefix}chart-${chart.id}-table`), chart, rows);
        if (drawn.has(chart.id)) drawn.get(chart.id).finalize();
        drawn.delete(chart.id);
        if (rows.length) drawn.set(chart.id, await draw(chart, place, rows, marks, params, themes));
        else place.textContent = "Nothing was measured of what is chosen above.";
      }
      document.getElementById(`${prefix}status`).textContent = `The charts show ${wanted.series}.`;
      part.dataset.ready = String(Number(part.dataset.ready || 0) + 1);
    }

    const later = inTurn(update);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("change", (event) => {
      if (event.target.name === "series") {
        const name = event.target.value || set.chosen;
        fillSizes(form.elements.size, set.series.find((one) => one.name === name));
      }
      later();
    });
    return later();
  }

  let library;
  async function start(part) {
    library = library || (async () => {
      const script = document.createElement("script");
      script.textContent = await embedded("library");
      document.head.append(script);
      return JSON.parse(await embedded("themes"));
    })();
    await (part.dataset.drawing ? show : run)(part, await library);
  }
  const parts = document.getElementById("library") ? document.querySelectorAll("[data-drawing], [data-charts]") : [];
  for (const part of parts) {
    const fold = part.closest("details.one:not([open])");
    if (fold) fold.addEventListener("toggle", () => start(part).catch(failed), { once: true });
    else await start(part);
  }
})().catch(failed);

function failed(error) {
  for (const status of document.querySelectorAll("[role=status]")) {
    status.textContent = `The charts could not be drawn (${error.message}). The tables below hold the same numbers.`;
  }
}
