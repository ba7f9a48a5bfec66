// Comparing runs: a chart per curve, a table of results, the settings in which the runs differ.
"use strict";

(() => {
  const { el, fold, table, ask, Charts, Controls } = window.millpond;
  const FIRST = ["compare-greedy", "compare-return"]; // fetched before it is known what is visible
  const ACROSS = 12; // most runs as columns of the settings; more become rows

  class CompareView {
    constructor(ids, runs) {
      this.compare = ids;
      this.runs = runs;
      this.unread = 0;
      this.nodes = {
        charts: el("div", { class: "charts" }),
        title: el("h2", { text: `${ids.length} runs compared` }),
        unread: el("p", { class: "note", role: "status" }),
        sums: el("div", { class: "scroll" }),
        differ: el("div", { class: "scroll" }),
      };
      const n = this.nodes;
      this.controls = new Controls({ seeds: true });
      this.sums = fold("Numbers", "sums", n.sums);
      this.differ = fold("Settings that differ", "config", n.differ);
      this.sums.open = this.differ.open = ids.length <= 50;
      document.getElementById("main").replaceChildren(
        el("nav", { class: "crumbs", "aria-label": "where" }, el("a", { href: "#", text: "← all runs" })),
        el("section", { class: "panel head" }, n.title, n.unread),
        this.controls.node, n.charts, this.sums, this.differ);
      for (const box of [this.sums, this.differ]) box.addEventListener("toggle", () => this.showTables());
      this.charts = new Charts(n.charts, this.controls, () => this.wanted());
      document.title = "compare · millpond";
    }

    // A chart without data became visible.
    wanted() {
      this.more = true;
      this.onmore?.();
    }

    async refresh() {
      const inSight = this.unread ? FIRST.slice(0, 1) : this.charts.inSight();
      const figures = inSight.length ? inSight : FIRST;
      const found = await ask(`/api/compare?runs=${this.compare.join(",")}&figures=${figures.map(encodeURIComponent).join(",")}`);
      if (this.closed) return;
      this.nodes.unread.textContent = found.unread ? `reading ${found.unread} more …` : "";
      const last = this.unread > 0 && !found.unread; // next, fetch everything that is visible
      this.unread = found.unread;
      this.more = found.unread > 0 || last;
      this.charts.show(found.figures);
      this.found = found;
      this.showTables();
    }

    // Tables are built when they are open and all runs are read.
    showTables() {
      const { found } = this;
      if (!found || found.unread || !(this.sums.open || this.differ.open)) return;
      const text = JSON.stringify([found.summaries, found.differences]);
      if (text === this.tables) return;
      this.tables = text;
      const names = [...new Set(found.summaries.flatMap((rows) => rows.map(([name]) => name)))].filter((name) => name !== "why");
      const sums = found.summaries.map((rows) => new Map(rows));
      this.nodes.sums.replaceChildren(table(["run", ...names], found.names.map((name, i) => [name, ...names.map((key) => sums[i].get(key) ?? "–")])));
      const { differences, names: runs } = found;
      const across = runs.length <= ACROSS;
      const settings = across
        ? table(["setting", ...runs], differences.map(([name, values]) => [name, ...values]))
        : table(["run", ...differences.map(([name]) => name)], runs.map((run, i) => [run, ...differences.map(([, values]) => values[i])]));
      this.nodes.differ.replaceChildren(differences.length ? settings : el("p", { class: "note", text: "All settings are the same." }));
    }

    repaint() {
      this.controls.changed();
    }

    close() {
      this.closed = true;
      this.charts.close();
    }
  }

  window.millpond.CompareView = CompareView;
})();
