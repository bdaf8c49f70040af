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
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const one of opened) one.open = true;
  });
  addEventListener("afterprint", () => { for (const one of opened) one.open = false; });

  function choice(form, set) {
    const checked = (name) =>
      new Set([...form.querySelectorAll(`input[name=${name}]:checked`)].map((box) => box.value));
    const picked = form.elements.series.value;
    return { picked, series: picked || set.chosen, devices: checked("device"), regimes: checked("regime") };
  }

  // A row without the field passes; the data of a CPU is at home in every regime.
  function shown(rows, wanted) {
    return (rows || []).filter((row) =>
      (row.devices || [row.device]).some((device) => wanted.devices.has(device)) &&
      (row.regime === undefined || row.home || wanted.regimes.has(row.regime)));
  }

  function filterTable(table, wanted, set) {
    const names = [...[...table.tHead.rows].pop().cells].map((cell) => cell.textContent);
    const regimes = set.regimes.map((one) => one[0]);
    const devices = set.devices.map((one) => one.id);
    const gone = (name) =>
      (regimes.includes(name) && !wanted.regimes.has(name)) || (devices.includes(name) && !wanted.devices.has(name));
    const [op, dtype, ...params] = wanted.picked.split(" ");
    const tests = {
      op: (text) => !op || text === [op, ...params].join(" ") || text === op,
      dtype: (text) => !op || text === dtype,
      device: (text) => !gone(text),
      data: (text) => !gone(text),
      case: (id) => (!op || (id.startsWith(`${op}/`) && id.includes(`/${dtype}/`))) && !gone(id.split("@").pop()),
    };
    for (const row of table.tBodies[0].rows) {
      row.hidden = !names.every((name, i) => !Object.hasOwn(tests, name) || tests[name](row.cells[i].textContent));
    }
    const left = table.tBodies[0].querySelector("tr:not([hidden])");
    table.closest(".table").hidden = !left && table.tBodies[0].rows.length > 0;
  }

  function embed(place, spec, themes) {
    return vegaEmbed(place, spec, {
      ast: true, actions: false, defaultStyle: false, renderer: "svg", config: dark.matches ? themes.dark : themes.light,
      logLevel: 1,  // errors: it would warn of every data set that is empty
      tooltip: { theme: dark.matches ? "dark" : "light" },
    });
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
    const specs = JSON.parse(await embedded(`${figure.dataset.drawing}-data`));
    let drawn = [];
    return inTurn(async () => {
      for (const one of drawn) one.finalize();
      const places = specs.map(() => Object.assign(document.createElement("div"), { className: "panel" }));
      figure.querySelector(".panels").replaceChildren(...places);
      drawn = await Promise.all(places.map((place, i) => embed(place, specs[i], themes)));
      figure.dataset.drawn = String(Number(figure.dataset.drawn || 0) + 1);
    })();
  }

  async function run(part, themes) {
    const prefix = part.dataset.charts;
    const set = JSON.parse(await embedded(`${prefix}charts-data`));
    const form = part.querySelector("form");
    const drawn = new Map();
    part.querySelector(".live").hidden = false;

    const later = inTurn(async () => {
      const wanted = choice(form, set);
      for (const table of part.closest("article").querySelectorAll(".details table")) filterTable(table, wanted, set);
      for (const chart of set.charts) {
        const place = document.getElementById(`${prefix}chart-${chart.id}`);
        const dtype = wanted.series.split(" ")[1];
        const name = Object.hasOwn(chart.rows, wanted.series) ? wanted.series : dtype;
        const rows = shown(chart.rows[name], wanted);
        const marks = shown(chart.marks[name], wanted);
        if (drawn.has(chart.id)) drawn.get(chart.id).finalize();
        drawn.delete(chart.id);
        place.closest("figure").hidden = !rows.length;
        place.textContent = "";
        // The page says itself what the chart is; a second description inside it would be read twice.
        const spec = { ...chart.spec, description: undefined, datasets: { rows, marks } };
        if (rows.length) drawn.set(chart.id, await embed(place, spec, themes));
      }
      document.getElementById(`${prefix}status`).textContent = `The charts show ${wanted.series}.`;
      part.dataset.ready = String(Number(part.dataset.ready || 0) + 1);
    });
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("change", later);
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
