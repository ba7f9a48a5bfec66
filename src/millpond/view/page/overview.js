// The overview: greedy returns of all runs per env, and the table of runs with filters.
"use strict";

(() => {
  const { el, escaped, choice, fill, ask, Charts, Controls, RunTable } = window.millpond;
  const ENVS = 4; // charts shown at first; a button shows the others
  const different = (values) => [...new Set(values)].filter(Boolean).sort();
  const options = (all, values) => [["", all], ...values.map((value) => [value, value])];

  // Fetch the curves of runs that have changed, and the settings if the set of runs has changed.
  // They are kept in `world`, beyond the view. Returns whether there are more to fetch.
  async function readCurves(runs, world) {
    const order = world.order.join();
    if (order !== world.ordered) {
      world.settings = await ask("/api/settings");
      world.ordered = order;
    }
    const due = [...runs.values()].filter((card) => world.read.get(card.id)?.version !== card.version);
    if (!due.length) return false;
    const found = await ask(`/api/greedy?runs=${due.map((card) => card.id).join(",")}`);
    world.colours = found.colours;
    for (const card of due) if (found.runs[card.id]) world.read.set(card.id, { version: card.version, curve: found.runs[card.id] });
    return found.unread > 0;
  }

  class Overview {
    // `runs` holds the cards by id; `world` is shared by all views.
    constructor(runs, world, params) {
      this.runs = runs;
      this.world = world;
      this.filters = Object.fromEntries(["q", "env", "agent", "state", "setting", "value", "sort", "down", "each"].map((key) => [key, params.get(key) || ""]));
      this.everyEnv = false;
      const set = (key) => (value) => this.change({ [key]: value });
      this.search = el("input", { type: "search", placeholder: "filter by name", "aria-label": "filter by name", value: this.filters.q, oninput: () => this.change({ q: this.search.value }) });
      this.choices = Object.fromEntries(["env", "agent", "state", "setting", "value"].map((key) => [key, choice(key, [["", "all"]], "", set(key))]));
      this.each = el("input", { type: "checkbox", onchange: () => this.change({ each: this.each.checked ? "" : "1" }) });
      this.each.checked = !this.filters.each;
      this.count = el("p", { class: "note", role: "status" });
      this.compare = el("button", { type: "button", class: "quiet", onclick: () => { location.hash = `compare=${[...world.chosen].join(",")}`; } });
      this.all = el("button", { type: "button", class: "quiet", text: "select all shown", onclick: () => this.selectAll() });
      this.nothing = el("p", { class: "nothing", hidden: "", role: "status" });
      this.table = new RunTable(world.chosen, () => this.showChosen(), (sort, down) => this.change({ sort, down: down ? "1" : "0" }));
      this.controls = new Controls({ seeds: true });
      this.box = el("div", { class: "charts side-by-side" });
      this.moreEnvs = el("button", { type: "button", class: "quiet", hidden: "", onclick: () => { this.everyEnv = !this.everyEnv; this.show(); } });
      this.charts = new Charts(this.box, this.controls);
      document.getElementById("main").replaceChildren(
        el("section", { class: "panel filters", "aria-label": "filters" }, this.search, ...Object.values(this.choices).map((one) => one.box),
          el("label", { class: "choice" }, this.each, el("span", { text: "group seeds" })),
          el("span", { class: "actions" }, this.count, this.all, this.compare)),
        this.controls.node, this.box, this.moreEnvs,
        el("section", { class: "panel table-panel", "aria-label": "runs" }, el("div", { class: "scroll" }, this.table.node), this.nothing));
      document.title = "runs · millpond";
      this.show();
    }

    change(filters) {
      Object.assign(this.filters, filters);
      const kept = Object.entries(this.filters).filter(([, value]) => value !== "");
      history.replaceState(null, "", `#${new URLSearchParams(kept)}`);
      this.show();
    }

    settingOf(card) {
      const place = this.world.settings.names.indexOf(this.filters.setting);
      return place < 0 ? undefined : this.world.settings.values[card.id]?.[place];
    }

    // The runs that pass all filters, newest first.
    shown() {
      const { q, env, agent, state, setting, value } = this.filters;
      const words = q.toLowerCase().split(/\s+/).filter(Boolean);
      return this.world.order.map((id) => this.runs.get(id)).filter((card) => card
        && words.every((word) => card.name.toLowerCase().includes(word))
        && (!env || card.env === env) && (!agent || card.agent === agent) && (!state || card.state === state)
        && (!setting || !value || this.settingOf(card) === value));
    }

    show() {
      const cards = [...this.runs.values()];
      const offer = (key, values) => {
        const now = this.filters[key];
        fill(this.choices[key].select, options("all", now && !values.includes(now) ? [...values, now] : values), now);
      };
      for (const key of ["env", "agent", "state"]) offer(key, different(cards.map((card) => card[key])));
      fill(this.choices.setting.select, options("none", this.world.settings.names), this.filters.setting);
      offer("value", this.filters.setting ? different(cards.map((card) => this.settingOf(card))) : []);
      this.choices.value.box.hidden = !this.filters.setting;
      this.choices.setting.box.hidden = !this.world.settings.names.length && !this.filters.setting;
      const found = this.shown();
      const groups = new Map();
      for (const card of found) {
        const key = this.each.checked ? card.group : card.id;
        groups.set(key, [...(groups.get(key) || []), card]);
      }
      const how = { sort: this.filters.sort || "made", down: this.filters.down !== "0", setting: this.filters.setting, settingOf: (card) => this.settingOf(card) };
      this.table.show([...groups.values()], this.world.groups, how);
      const all = cards.length === 1 ? "1 run" : `${cards.length} runs`;
      this.count.textContent = found.length === cards.length ? all : `${found.length} of ${all}`;
      this.nothing.hidden = found.length > 0;
      this.nothing.replaceChildren(`No run matches these filters (${all} in all). `,
        el("button", { type: "button", class: "quiet", text: "clear the filters", onclick: () => { this.search.value = ""; this.change({ q: "", env: "", agent: "", state: "", setting: "", value: "" }); } }));
      this.table.node.hidden = !found.length;
      this.showChosen();
      this.showCharts(found);
    }

    showChosen() {
      const count = this.world.chosen.size;
      this.compare.disabled = count < 2;
      this.compare.textContent = count > 1 ? `compare ${count}` : "compare";
      const ids = this.shown().map((card) => card.id);
      const every = ids.length > 0 && ids.every((id) => this.world.chosen.has(id));
      this.all.textContent = every ? "select none" : "select all shown";
      this.all.disabled = !ids.length;
    }

    selectAll() {
      const ids = this.shown().map((card) => card.id);
      const every = ids.every((id) => this.world.chosen.has(id));
      for (const id of ids) this.world.chosen[every ? "delete" : "add"](id);
      this.show();
    }

    showCharts(cards) {
      const byEnv = new Map();
      for (const card of cards) {
        const curve = this.world.read.get(card.id)?.curve;
        if (curve?.x.length) byEnv.set(card.env, [...(byEnv.get(card.env) || []), [card, curve]]);
      }
      const envs = [...byEnv].slice(0, this.everyEnv ? undefined : ENVS);
      this.charts.show(envs.map(([env, pairs]) => this.figure(env, pairs)));
      this.moreEnvs.hidden = byEnv.size <= ENVS;
      this.moreEnvs.textContent = this.everyEnv ? "fewer charts" : `charts of all ${byEnv.size} envs`;
      this.controls.node.hidden = !byEnv.size;
    }

    figure(env, pairs) {
      const looks = new Map(); // of groups, in order of appearance
      const look = (number) => ({ color: this.world.colours[number % this.world.colours.length], dash: ["solid", "dash", "dot", "dashdot"][Math.floor(number / this.world.colours.length) % 4], width: 2 });
      const data = pairs.map(([card, curve], number) => {
        if (!looks.has(card.group)) looks.set(card.group, look(looks.size));
        return { type: "scatter", mode: curve.x.length > 60 ? "lines" : "lines+markers", name: escaped(card.name), ...curve, line: look(number), marker: { color: look(number).color, size: 5 },
          group: { key: card.group, name: escaped(this.world.groups[card.group] || card.name), line: looks.get(card.group) } };
      });
      const unit = pairs[0][0].unit;
      return { name: `greedy ${env}`, title: `Greedy return, ${env}`, note: "", data, layout: { xaxis: { title: { text: unit } }, yaxis: { title: { text: "return" } } } };
    }

    async refresh() {
      this.show();
      this.more = await readCurves(this.runs, this.world);
      if (!this.closed) this.show();
    }

    repaint() {
      this.charts.repaint();
    }

    close() {
      this.closed = true;
      this.charts.close();
    }
  }

  Object.assign(window.millpond, { Overview, readCurves });
})();
