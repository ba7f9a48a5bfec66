// The live page: a list of runs on the left, one run or several compared on the right.
// Everything that comes from a run is set as text, never as markup.
"use strict";

(() => {
  const { Charts, drawWater } = window.millpond;
  const byId = (id) => document.getElementById(id);
  const main = byId("main");
  const runs = new Map(); // id -> card
  const items = new Map(); // id -> nodes of the list
  const chosen = new Set(); // to compare
  let order = [];
  let root = "";
  let view = null; // what the right side shows

  function el(name, about = {}, ...children) {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(about)) {
      if (key === "text") node.textContent = value;
      else if (key === "class") node.className = value;
      else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
      else node.setAttribute(key, value);
    }
    node.append(...children);
    return node;
  }

  // --- numbers ----------------------------------------------------------------------------------

  const short = (value) => {
    if (value === null || value === undefined) return "–";
    for (const [scale, unit] of [[1e9, "B"], [1e6, "M"], [1e3, "k"]])
      if (Math.abs(value) >= scale) return `${(value / scale).toPrecision(3)}${unit}`;
    return Number.isInteger(value) ? `${value}` : value.toPrecision(3);
  };

  const duration = (seconds) => {
    if (seconds === null || seconds === undefined) return "";
    if (seconds < 60) return `${Math.ceil(seconds)} s`;
    if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
    if (seconds < 172800) return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
    return `${Math.round(seconds / 86400)} days`;
  };

  const percent = (share) => `${Math.floor(share * 100)}%`;

  async function ask(path) {
    const answer = await fetch(path, { credentials: "same-origin" });
    const found = await answer.json().catch(() => ({ error: `the server said ${answer.status}` }));
    if (!answer.ok) throw new Error(found.error || `the server said ${answer.status}`);
    return found;
  }

  // --- the list ---------------------------------------------------------------------------------

  function makeItem(id) {
    const nodes = {
      name: el("span", { class: "name" }),
      state: el("span", { class: "state" }),
      what: el("span", { class: "what" }),
      far: el("span", { class: "far" }),
      bar: el("progress", { max: "1", value: "0", "aria-label": "progress" }),
    };
    nodes.box = el("input", { type: "checkbox", onchange: () => choose(id, nodes.box.checked) });
    nodes.open = el("button", { type: "button", class: "open", onclick: () => go(`run=${id}`) },
      el("span", { class: "line" }, nodes.name, nodes.state), nodes.what, nodes.bar, nodes.far);
    nodes.item = el("li", { "data-run": id }, nodes.box, nodes.open);
    items.set(id, nodes);
    return nodes;
  }

  function showList() {
    const list = byId("runs");
    const words = byId("filter").value.toLowerCase();
    byId("filter").hidden = order.length < 8;
    for (const [id, nodes] of items) {
      if (order.includes(id)) continue;
      nodes.item.remove();
      items.delete(id);
      chosen.delete(id);
    }
    order.forEach((id, place) => {
      const card = runs.get(id);
      if (!card) return;
      const nodes = items.get(id) || makeItem(id);
      nodes.name.textContent = card.name;
      nodes.item.hidden = !card.name.toLowerCase().includes(words);
      nodes.box.setAttribute("aria-label", `compare ${card.name}`);
      nodes.state.textContent = card.state;
      nodes.state.dataset.state = card.state;
      const greedy = card.greedy === null ? "" : ` · greedy\u00a0${short(card.greedy)}`;
      nodes.what.textContent = `${card.env} · ${card.agent}${greedy}`;
      nodes.bar.value = card.progress;
      nodes.far.textContent = far(card);
      if (list.children[place] !== nodes.item) list.insertBefore(nodes.item, list.children[place] || null);
      const current = view && view.run === id;
      nodes.item.classList.toggle("current", Boolean(current));
      if (current) nodes.open.setAttribute("aria-current", "true");
      else nodes.open.removeAttribute("aria-current");
    });
    byId("compare").disabled = chosen.size < 2;
    byId("compare").textContent = chosen.size > 1 ? `compare ${chosen.size}` : "compare";
    byId("root").textContent = root;
  }

  const far = (card) => {
    const parts = [`${percent(card.progress)} · ${short(card.x)} ${card.unit}`];
    if (card.phase) parts.push(card.phase);
    if (card.left_s !== null) parts.push(`${duration(card.left_s)} left`);
    return parts.join(" · ");
  };

  function choose(id, on) {
    if (on) chosen.add(id);
    else chosen.delete(id);
    showList();
    if (view && view.compare && chosen.size > 1) go(`compare=${[...chosen].join(",")}`);
  }

  // --- one run ----------------------------------------------------------------------------------

  const section = (title, kind, ...children) =>
    el("section", { class: `panel ${kind}` }, el("h3", { text: title }), ...children);

  class RunView {
    constructor(id) {
      this.run = id;
      this.version = -1;
      this.nodes = {
        title: el("h2"),
        state: el("span", { class: "state" }),
        now: el("p", { class: "now" }),
        bar: el("progress", { max: "1", value: "0", "aria-label": "progress" }),
        why: el("p", { class: "why", hidden: "" }),
        facts: el("dl", { class: "facts" }),
        water: el("div", { class: "water-box" }),
        about: el("p", { class: "note" }),
        first: el("div", { class: "charts" }),
        charts: el("div", { class: "charts" }),
        verdict: el("span", { class: "state" }),
        doctor: el("div"),
        film: el("div", { class: "film" }),
        processes: el("div", { class: "scroll" }),
        config: el("div", { class: "scroll" }),
      };
      const n = this.nodes;
      main.replaceChildren(
        el("section", { class: "panel head" }, el("div", { class: "line" }, n.title, n.state, n.verdict), n.bar, n.now, n.why, n.facts),
        section("Water", "water-panel", n.water, n.about),
        el("div", { class: "pair" }, n.first, section("The agent playing", "film-panel", n.film)),
        section("Doctor", "doctor", n.doctor),
        n.charts,
        section("Processes", "processes", n.processes),
        el("details", { class: "panel config" }, el("summary", {}, el("h3", { text: "Settings" })), n.config));
      this.first = new Charts(n.first);
      this.charts = new Charts(n.charts);
      this.card();
    }

    // From the list: what changes most often.
    card() {
      const card = runs.get(this.run);
      if (!card) return;
      const n = this.nodes;
      n.title.textContent = card.name;
      n.state.textContent = card.state;
      n.state.dataset.state = card.state;
      n.bar.value = card.progress;
      const parts = [`${percent(card.progress)}`, `${Math.round(card.x).toLocaleString("en")} ${card.unit}`];
      if (card.phase) parts.push(`phase: ${card.phase}`);
      if (card.state === "running" && card.pace) parts.push(`${short(card.pace)} ${card.unit}/s`);
      if (card.left_s !== null) parts.push(`about ${duration(card.left_s)} left`);
      n.now.textContent = parts.join("  ·  ");
      n.why.hidden = !card.why;
      n.why.textContent = card.why;
      document.title = `${card.name} · ${percent(card.progress)} · millpond`;
    }

    async refresh() {
      this.card();
      const found = await ask(`/api/runs/${this.run}`);
      if (view !== this) return;
      const n = this.nodes;
      n.facts.replaceChildren(...found.summary.filter(([name]) => name !== "why" && name !== "state")
        .map(([name, value]) => el("div", {}, el("dt", { text: name }), el("dd", { text: value }))));
      this.water = found.water;
      drawWater(n.water, found.water);
      n.about.textContent = found.water.about;
      this.first.show(found.figures.filter((figure) => figure.name === "returns"));
      this.charts.show(found.figures.filter((figure) => figure.name !== "returns"));
      n.processes.replaceChildren(processTable(found.processes));
      if (!n.config.childElementCount) n.config.replaceChildren(table(["setting", "value"], Object.entries(found.config)));
      const doctor = await ask(`/api/runs/${this.run}/doctor`);
      if (view !== this) return;
      this.showDoctor(doctor.verdicts);
      await this.showFilm();
    }

    showDoctor(verdicts) {
      const told = JSON.stringify(verdicts);
      if (told === this.told) return;
      this.told = told;
      const fired = verdicts.filter((one) => one.state === "red" || one.state === "yellow");
      const rest = verdicts.filter((one) => !fired.includes(one));
      const green = rest.filter((one) => one.state === "green").length;
      const head = fired.length
        ? `${fired.length} of ${verdicts.length} checks found something.`
        : "Nothing found.";
      const worst = fired.some((one) => one.state === "red") ? "red" : fired.length ? "yellow" : "green";
      this.nodes.verdict.textContent = fired.length ? `doctor: ${worst}` : "doctor: nothing found";
      this.nodes.verdict.dataset.state = worst;
      const open = this.nodes.doctor.querySelector("details")?.open;
      const more = el("details", {}, el("summary", { text: `${green} green, ${rest.length - green} unknown` }), ...rest.map(verdictRow));
      more.open = Boolean(open);
      this.nodes.doctor.replaceChildren(el("p", { class: "verdict-head", text: head }), ...fired.map(verdictRow), more);
    }

    async showFilm() {
      const film = await ask(`/api/runs/${this.run}/film`);
      if (view !== this) return;
      const said = {
        none: film.steps === null ? "No checkpoint yet; the film is made from the newest one." : "",
        waiting: "Another film is being made; this one comes after it.",
        making: "Filming one greedy episode, when a core has nothing else to do …",
        failed: `It could not be filmed: ${film.why}`,
      };
      const key = `${film.state} ${film.steps}`;
      if (key !== this.filmed) {
        this.filmed = key;
        if (film.state === "ready") {
          const unit = runs.get(this.run)?.agent === "mixture" ? "frames" : "steps";
          const words = `One greedy episode after ${film.steps.toLocaleString("en")} ${unit}`;
          this.nodes.film.replaceChildren(
            el("img", { src: `/api/runs/${this.run}/film.gif?steps=${film.steps}`, alt: words }),
            el("p", { class: "note", text: `${words}.` }));
        } else this.nodes.film.replaceChildren(el("p", { class: "note", text: said[film.state] }));
      }
      if (film.making !== null || film.state === "waiting") setTimeout(() => view === this && this.showFilm().catch(() => {}), 1000);
    }

    repaint() {
      this.first.repaint();
      this.charts.repaint();
      if (this.water) drawWater(this.nodes.water, this.water);
    }

    close() {
      this.first.close();
      this.charts.close();
    }
  }

  function verdictRow(one) {
    const numbers = Object.entries(one.evidence).map(([name, value]) => `${name} ${typeof value === "object" ? JSON.stringify(value) : value}`);
    const box = el("div", { class: "verdict", "data-state": one.state },
      el("span", { class: "mark", text: one.state }),
      el("div", {},
        el("p", {}, el("strong", { text: one.name }), ` ${one.message}`)));
    if (one.remedy) box.lastChild.append(el("p", { class: "remedy", text: `What to do: ${one.remedy}` }));
    if (numbers.length) box.lastChild.append(el("p", { class: "note", text: numbers.join(", ") }));
    return box;
  }

  function table(heads, rows) {
    const line = (cells, kind) => el("tr", {}, ...cells.map((cell) => (cell instanceof Node ? el(kind, {}, cell) : el(kind, { text: `${cell}` }))));
    return el("table", {}, el("thead", {}, line(heads, "th")), el("tbody", {}, ...rows.map((row) => line(row, "td"))));
  }

  function processTable(rows) {
    return table(["process", "health", "pid", "incarnation", "lost", "time", "what it said last"], rows.map((row) => {
      const state = el("span", { class: "state", "data-state": row.health, text: row.health });
      const shares = Object.entries(row.shares).map(([name, share]) => `${name} ${Math.round(share * 100)}%`).join(", ");
      return [row.name, state, row.pid ?? "–", row.incarnation ?? 0, row.losses, shares || "–", row.why || "–"];
    }));
  }

  // --- several runs -----------------------------------------------------------------------------

  class CompareView {
    constructor(ids) {
      this.compare = ids;
      this.nodes = {
        charts: el("div", { class: "charts" }),
        title: el("h2", { text: `${ids.length} runs compared` }),
        unread: el("p", { class: "note", role: "status" }),
        sums: el("div", { class: "scroll" }),
        differ: el("div", { class: "scroll" }),
      };
      const n = this.nodes;
      main.replaceChildren(
        el("section", { class: "panel head" }, n.title, n.unread, n.sums),
        n.charts,
        el("details", { class: "panel config", open: "" }, el("summary", {}, el("h3", { text: "Settings that differ" })), n.differ));
      this.charts = new Charts(n.charts);
      document.title = "compare · millpond";
    }

    async refresh() {
      const found = await ask(`/api/compare?runs=${this.compare.join(",")}`);
      if (view !== this) return;
      this.nodes.unread.textContent = found.unread ? `reading ${found.unread} more …` : "";
      if (found.unread) again = true;
      const names = [...new Set(found.summaries.flatMap((rows) => rows.map(([name]) => name)))].filter((name) => name !== "why");
      const sums = found.summaries.map((rows) => new Map(rows));
      this.nodes.sums.replaceChildren(table(["run", ...names], found.names.map((name, i) => [name, ...names.map((key) => sums[i].get(key) ?? "–")])));
      this.charts.show(found.figures);
      this.nodes.differ.replaceChildren(found.differences.length
        ? table(["setting", ...found.names], found.differences.map(([name, values]) => [name, ...values]))
        : el("p", { class: "note", text: "All settings are the same." }));
    }

    repaint() {
      this.charts.repaint();
    }

    close() {
      this.charts.close();
    }
  }

  // --- what is shown ----------------------------------------------------------------------------

  // A path as a shell takes it.
  const quoted = (path) => (/^[\w.\/-]+$/.test(path) ? path : `'${path.replaceAll("'", "'\\''")}'`);

  const go = (where) => { location.hash = where; };

  function route() {
    const [kind, value = ""] = location.hash.slice(1).split("=");
    const ids = value.split(",").filter((id) => runs.has(id));
    if (view) view.close();
    view = null;
    if (kind === "compare" && ids.length > 1) {
      for (const id of [...chosen]) if (!ids.includes(id)) chosen.delete(id);
      ids.forEach((id) => chosen.add(id));
      for (const [id, nodes] of items) nodes.box.checked = chosen.has(id);
      view = new CompareView(ids);
    } else if (runs.size) {
      view = new RunView(kind === "run" && ids.length ? ids[0] : newest());
    } else {
      main.replaceChildren(el("div", { class: "empty" },
        el("h2", { text: "No runs yet" }),
        el("p", { text: `There is no run under ${root}. Start one with` }),
        el("pre", { text: `millpond train treasurehunt-small --run ${quoted(`${root}/first`)}` }),
        el("p", { text: "and it appears here by itself." })));
      document.title = "millpond";
    }
    showList();
    refresh();
  }

  const newest = () => order.find((id) => ["running", "new"].includes(runs.get(id).state)) || order[0];

  let busy = false;
  let again = false;
  async function refresh() {
    if (busy) { again = true; return; }
    busy = true;
    const shown = view;
    try {
      if (shown) await shown.refresh();
      said("");
    } catch (error) {
      if (shown === view) said(error.message);
    }
    setTimeout(() => {
      busy = false;
      if (again) { again = false; refresh(); }
    }, 400); // so that a run that writes all the time does not keep the browser busy
  }

  function said(text) {
    const old = main.querySelector(".failed");
    if (old) old.remove();
    if (text) main.prepend(el("p", { class: "panel failed", role: "alert", text }));
  }

  function heard(news) {
    const first = !order.length;
    root = news.root;
    order = news.order;
    for (const card of news.runs) runs.set(card.id, card);
    for (const id of [...runs.keys()]) if (!order.includes(id)) runs.delete(id);
    const gone = view && (view.run ? !runs.has(view.run) : view.compare.some((id) => !runs.has(id)));
    if (first || !view || gone) { route(); return; }
    showList();
    const touched = new Set(news.runs.map((card) => card.id));
    const mine = view.run ? [view.run] : view.compare;
    if (mine.some((id) => touched.has(id))) refresh();
  }

  function listen() {
    const source = new EventSource("/api/events");
    source.addEventListener("runs", (event) => heard(JSON.parse(event.data)));
    source.onopen = () => link("live", "on");
    source.onerror = () => {
      link(source.readyState === EventSource.CLOSED ? "ended; open the newest address" : "reconnecting", "off");
    };
  }

  function link(text, state) {
    byId("link-text").textContent = text;
    byId("link").dataset.state = state;
  }

  // --- light and dark ---------------------------------------------------------------------------

  const THEMES = ["system", "light", "dark"];
  function theme(name) {
    if (name === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    byId("theme").textContent = `theme: ${name}`;
    localStorage.setItem("millpond-theme", name);
    if (view) view.repaint();
  }
  byId("theme").addEventListener("click", () => {
    const now = localStorage.getItem("millpond-theme") || "system";
    theme(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => view && view.repaint());
  addEventListener("resize", () => view && view.water && drawWater(view.nodes.water, view.water));

  byId("compare").addEventListener("click", () => go(`compare=${[...chosen].join(",")}`));
  byId("filter").addEventListener("input", showList);
  addEventListener("hashchange", route);
  theme(THEMES.includes(localStorage.getItem("millpond-theme")) ? localStorage.getItem("millpond-theme") : "system");
  listen();
})();
