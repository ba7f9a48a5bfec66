// One run: its status, return, water, the doctor's verdicts, and all charts.
"use strict";

(() => {
  const { el, section, fold, table, short, duration, percent, plain, ask, lastLine, kindOf, Charts, Controls, drawWater } = window.millpond;

  class RunView {
    constructor(id, runs, world) {
      this.run = id;
      this.runs = runs;
      this.world = world;
      this.nodes = {
        title: el("h2"),
        state: el("span", { class: "state" }),
        now: el("p", { class: "now" }),
        bar: el("progress", { max: "1", value: "0", "aria-label": "progress" }),
        why: el("div", { class: "why", role: "alert", hidden: "" }),
        seeds: el("p", { class: "seeds", hidden: "" }),
        facts: el("dl", { class: "facts" }),
        water: el("div", { class: "water-box" }),
        about: el("p", { class: "note" }),
        first: el("div", { class: "charts" }),
        noReturn: section("Return", "no-return", el("p", { class: "note", text: "No return yet." })),
        charts: el("div", { class: "charts" }),
        others: el("div", { class: "charts" }),
        verdict: el("span", { class: "state" }),
        doctor: el("div"),
        film: el("div", { class: "film" }),
        processes: el("div", { class: "scroll" }),
        config: el("div", { class: "scroll" }),
      };
      const n = this.nodes;
      this.controls = new Controls();
      this.otherBox = el("details", { class: "others", hidden: "" }, el("summary", {}, el("h3", { text: "More metrics" })), n.others);
      document.getElementById("main").replaceChildren(
        el("nav", { class: "crumbs", "aria-label": "where" }, el("a", { href: "#", text: "← all runs" })),
        el("section", { class: "panel head" }, el("div", { class: "line" }, n.title, n.state, n.verdict), n.bar, n.now, n.why, n.seeds, n.facts),
        this.controls.node,
        el("div", { class: "pair" }, n.first, n.noReturn, section("The agent playing", "film-panel", n.film)),
        section("Water", "water-panel", n.water, n.about),
        section("Doctor", "doctor", n.doctor),
        n.charts,
        this.otherBox,
        section("Processes", "processes", n.processes),
        fold("Settings", "config", n.config));
      this.first = new Charts(n.first, this.controls);
      this.charts = new Charts(n.charts, this.controls);
      this.others = new Charts(n.others, this.controls);
      this.card();
    }

    // Show the card, which changes most often.
    card() {
      const card = this.runs.get(this.run);
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
      this.showWhy(card.why, card.traceback);
      this.showSeeds(card);
      document.title = `${card.name} · ${percent(card.progress)} · millpond`;
    }

    // Show why the run failed: the last line, and the whole traceback if there is one.
    showWhy(why, traceback) {
      const text = `${why}\n${traceback || ""}`;
      if (text === this.why) return;
      this.why = text;
      this.nodes.why.hidden = !why;
      const whole = traceback || (why.includes("\n") ? why : "");
      const last = why.includes("\n") ? lastLine(why) : why;
      this.nodes.why.replaceChildren(el("p", { text: last }),
        ...(whole ? [traced(whole)] : []));
    }

    // Link the runs with equal settings, by seed, or by name if a seed was run twice.
    showSeeds(card) {
      const cards = [...this.runs.values()].filter((one) => one.group === card.group).sort((a, b) => a.seed - b.seed);
      const text = cards.map((one) => one.id).join();
      if (text === this.seeds) return;
      this.seeds = text;
      this.nodes.seeds.hidden = cards.length < 2;
      const [kind, key] = kindOf(cards) === "seeds" ? ["seeds ", "seed"] : ["runs of these settings: ", "name"];
      this.nodes.seeds.replaceChildren(kind, ...cards.flatMap((one) => [one.id === card.id ? el("strong", { text: `${one[key]}` }) : el("a", { href: `#run=${one.id}`, text: `${one[key]}`, title: one.name }), " "]),
        " · ", el("a", { href: `#compare=${text}`, text: "compare them" }));
    }

    async refresh() {
      this.card();
      const found = await ask(`/api/runs/${this.run}`);
      if (this.closed) return;
      const n = this.nodes;
      n.facts.replaceChildren(...found.summary.filter(([name]) => name !== "why" && name !== "state")
        .map(([name, value]) => el("div", {}, el("dt", { text: name }), el("dd", { text: value }))));
      this.water = found.water;
      drawWater(n.water, found.water);
      n.about.textContent = found.water.about;
      const more = found.figures.filter((figure) => figure.more);
      const returns = found.figures.filter((figure) => figure.name === "returns");
      n.noReturn.hidden = returns.length > 0;
      n.first.hidden = !n.noReturn.hidden;
      this.first.show(returns);
      this.charts.show(found.figures.filter((figure) => figure.name !== "returns" && !figure.more));
      this.others.show(more);
      this.otherBox.hidden = !more.length;
      this.otherBox.querySelector("h3").textContent = `More metrics (${more.length})`;
      n.processes.replaceChildren(processTable(found.processes));
      if (!n.config.childElementCount) n.config.replaceChildren(table(["setting", "value"], Object.entries(found.config)));
      const doctor = await ask(`/api/runs/${this.run}/doctor`);
      if (this.closed) return;
      this.showDoctor(doctor.verdicts);
      await this.showFilm();
    }

    showDoctor(verdicts) {
      const text = JSON.stringify(verdicts);
      if (text === this.verdicts) return;
      this.verdicts = text;
      const fired = verdicts.filter((one) => one.state === "red" || one.state === "yellow");
      const rest = verdicts.filter((one) => !fired.includes(one));
      const green = rest.filter((one) => one.state === "green").length;
      const head = fired.length
        ? `${fired.length} of ${verdicts.length} checks found a problem.`
        : green ? "No problems found." : "No check has enough data yet.";
      const worst = fired.some((one) => one.state === "red") ? "red" : fired.length ? "yellow" : green ? "green" : "unknown";
      this.nodes.verdict.textContent = `doctor: ${worst === "green" ? "no problems" : worst}`;
      this.nodes.verdict.dataset.state = worst;
      const open = this.nodes.doctor.querySelector("details")?.open;
      const more = el("details", {}, el("summary", { text: `${green} green, ${rest.length - green} unknown` }), ...rest.map(verdictRow));
      more.open = Boolean(open);
      this.nodes.doctor.replaceChildren(el("p", { class: "verdict-head", text: head }), ...fired.map(verdictRow), more);
    }

    async showFilm() {
      const film = await ask(`/api/runs/${this.run}/film`);
      if (this.closed) return;
      const words = {
        none: film.steps === null ? "No checkpoint yet; the film is made from the newest one." : "",
        waiting: "Waiting for another film to be finished.",
        making: "Filming one greedy episode as soon as a core is idle …",
        failed: `The film could not be made: ${film.why}`,
      };
      const key = `${film.state} ${film.steps}`;
      if (key !== this.filmed) {
        this.filmed = key;
        if (film.state === "ready") {
          const unit = this.runs.get(this.run)?.agent === "mixture" ? "frames" : "steps";
          const caption = `One greedy episode after ${film.steps.toLocaleString("en")} ${unit}`;
          this.nodes.film.replaceChildren(
            el("img", { src: `/api/runs/${this.run}/film.gif?steps=${film.steps}`, alt: caption }),
            el("p", { class: "note", text: `${caption}.` }));
        } else this.nodes.film.replaceChildren(el("p", { class: "note", text: words[film.state] }));
      }
      if (film.making !== null || film.state === "waiting") setTimeout(() => this.closed || this.showFilm().catch(() => {}), 1000);
    }

    repaint() {
      this.controls.changed();
      if (this.water) drawWater(this.nodes.water, this.water);
    }

    close() {
      this.closed = true;
      for (const charts of [this.first, this.charts, this.others]) charts.close();
    }
  }

  const traced = (text) => el("details", {}, el("summary", { text: "traceback" }), el("pre", { class: "scroll", text }));

  function verdictRow(one) {
    const { traceback, ...others } = one.evidence;
    const numbers = Object.entries(others).map(([name, value]) => `${name} ${plain(value)}`);
    const box = el("div", { class: "verdict", "data-state": one.state },
      el("span", { class: "mark", text: one.state }),
      el("div", {},
        el("p", {}, el("strong", { text: one.name }), ` ${one.message}`)));
    if (one.remedy) box.lastChild.append(el("p", { class: "remedy", text: `What to do: ${one.remedy}` }));
    if (numbers.length) box.lastChild.append(el("p", { class: "note", text: numbers.join(", ") }));
    if (traceback) box.lastChild.append(traced(traceback));
    return box;
  }

  function processTable(rows) {
    return table(["process", "health", "pid", "incarnation", "lost", "time", "last message"], rows.map((row) => {
      const state = el("span", { class: "state", "data-state": row.health, text: row.health });
      const shares = Object.entries(row.shares).map(([name, share]) => `${name} ${Math.round(share * 100)}%`).join(", ");
      return [row.name, state, row.pid ?? "–", row.incarnation ?? 0, row.losses, shares || "–", row.why || "–"];
    }));
  }

  window.millpond.RunView = RunView;
})();
