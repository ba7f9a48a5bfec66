// The live page: all runs, one run, or several compared, as the # part of the address says.
"use strict";

(() => {
  const { el, memory, ask, listen, byId, Overview, readCurves, RunView, CompareView, drawWater } = window.millpond;
  const main = byId("main");
  const runs = new Map(); // id -> card
  // Shared by all views: ids, newest first; names of groups; the runs chosen for comparison; and,
  // as far as they are read, greedy curves and settings that differ.
  const world = { order: [], groups: {}, chosen: new Set(), read: new Map(), settings: { names: [], values: {} }, colours: [] };
  let root = "";
  let view = null;

  // --- views -------------------------------------------------------------------------------------

  // A path, quoted for the shell.
  const quoted = (path) => (/^[\w.\/-]+$/.test(path) ? path : `'${path.replaceAll("'", "'\\''")}'`);

  function route() {
    const params = new URLSearchParams(location.hash.slice(1));
    if (view) view.close();
    view = null;
    const compared = (params.get("compare") || "").split(",").filter((id) => runs.has(id));
    if (!runs.size) {
      main.replaceChildren(el("div", { class: "empty" },
        el("h2", { text: "No runs yet" }),
        el("p", { text: `There are no runs under ${root}. Start one with` }),
        el("pre", { text: `millpond train treasurehunt-small --run ${quoted(`${root}/first`)}` }),
        el("p", { text: "and it appears here." })));
      document.title = "millpond";
    } else if (compared.length > 1) {
      world.chosen.clear();
      compared.forEach((id) => world.chosen.add(id));
      view = new CompareView(compared, runs);
    } else if (runs.has(params.get("run"))) view = new RunView(params.get("run"), runs, world);
    else view = new Overview(runs, world, params);
    if (view) view.onmore = refresh;
    scrollTo(0, 0);
    refresh();
  }

  let busy = false;
  let again = false;
  async function refresh() {
    if (busy) { again = true; return; }
    busy = true;
    const shown = view;
    const began = performance.now();
    try {
      if (shown) await shown.refresh();
      said("");
    } catch (error) {
      if (shown === view) said(error.message);
    }
    // Limit how often a run that writes all the time is read and drawn.
    setTimeout(() => {
      busy = false;
      if (again || view?.more) { again = false; refresh(); }
    }, view?.more ? 0 : Math.max(400, 2 * (performance.now() - began)));
  }

  function said(text) {
    const old = main.querySelector(".failed");
    if (old) old.remove();
    if (text) main.prepend(el("p", { class: "panel failed", role: "alert", text }));
  }

  // --- news -------------------------------------------------------------------------------------

  function heard(news) {
    const first = !world.order.length;
    root = news.root;
    byId("root").textContent = root;
    Object.assign(world, { order: news.order, groups: news.groups });
    for (const card of news.runs) runs.set(card.id, card);
    const there = new Set(news.order);
    for (const id of [...runs.keys()]) {
      if (there.has(id)) continue;
      runs.delete(id);
      world.chosen.delete(id);
      world.read.delete(id);
    }
    const gone = view && (view.run ? !runs.has(view.run) : view.compare?.some((id) => !runs.has(id)));
    if (first || !view || gone || !runs.size) { route(); return; }
    const mine = view.run ? [view.run] : view.compare;
    const touched = new Set(news.runs.map((card) => card.id));
    if (!mine || mine.some((id) => touched.has(id))) refresh();
  }

  // The server ends: fetch what is shown once more while that is possible.
  function parting() {
    again = false;
    for (const read of [view?.refresh(), readCurves(runs, world)]) read?.catch(() => {}); // it may be gone
  }

  // --- light and dark ---------------------------------------------------------------------------

  const THEMES = ["system", "light", "dark"];
  const chosenTheme = () => (THEMES.includes(memory.get("theme")) ? memory.get("theme") : "system");
  function theme(name) {
    if (name === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    byId("theme").textContent = `theme: ${name}`;
    memory.set("theme", name);
    if (view) view.repaint();
  }
  byId("theme").addEventListener("click", () => theme(THEMES[(THEMES.indexOf(chosenTheme()) + 1) % THEMES.length]));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => view && view.repaint());
  addEventListener("resize", () => view && view.water && drawWater(view.nodes.water, view.water));
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // the # part of the address selects the view
    main.focus();
  });
  addEventListener("hashchange", route);
  theme(chosenTheme());
  listen(heard, parting);
})();
