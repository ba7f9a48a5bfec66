// Controls shared by all charts of a page: smoothing, x axis, means or single runs, zoom.
"use strict";

(() => {
  const { el, choice, memory } = window.millpond;
  const UNITS = { frames: "frames", steps: "steps", time: "minutes" };

  class Controls {
    // With `seeds`, means over the runs of a group are offered.
    constructor({ seeds = false } = {}) {
      this.x = memory.get("x") in UNITS ? memory.get("x") : "frames";
      this.smooth = Number(memory.get("smooth")) || 0;
      this.mean = seeds;
      this.range = null; // zoomed range of x; null: all
      this.revision = 0; // a new revision makes Plotly forget a zoom in a chart
      this.charts = new Set();
      const value = el("output", { text: this.smooth.toFixed(2) });
      const slider = el("input", { type: "range", min: "0", max: "0.99", step: "0.01", value: `${this.smooth}`, "aria-label": "smoothing",
        oninput: () => {
          this.smooth = Number(slider.value);
          value.textContent = this.smooth.toFixed(2);
          memory.set("smooth", slider.value);
          this.changed();
        } });
      const x = choice("x", Object.keys(UNITS).map((name) => [name, name]), this.x, (name) => {
        this.x = name;
        memory.set("x", name);
        this.reset();
      });
      this.back = el("button", { type: "button", class: "quiet", disabled: "", text: "reset zoom", onclick: () => this.reset() });
      this.node = el("div", { class: "controls", role: "toolbar", "aria-label": "charts" },
        el("label", { class: "choice" }, el("span", { text: "smoothing" }), slider, value), x.box);
      if (seeds) {
        const curves = choice("curves", [["mean", "mean of seeds"], ["each", "every run"]], "mean", (name) => {
          this.mean = name === "mean";
          this.changed();
        });
        this.node.append(curves.box);
      }
      this.node.append(this.back);
    }

    // The traces of a figure over the chosen x, and its title. On a time axis, runs without times
    // are left out if others have them.
    placed(figure) {
      const own = figure.layout.xaxis?.title?.text;
      const timed = this.x === "time" && figure.data.some((trace) => trace.at?.time);
      if (figure.apart || this.x === "frames" || (this.x === "time" && !timed)) return { data: figure.data, title: own, x: "frames" };
      const data = figure.data.filter((trace) => !timed || trace.at?.time);
      return { data: data.map((trace) => ({ ...trace, x: trace.at?.[this.x] ?? trace.x })), title: UNITS[this.x], x: this.x };
    }

    zoom(range) {
      if (this.range && range[0] === this.range[0] && range[1] === this.range[1]) return;
      this.range = range;
      this.changed();
    }

    reset() {
      this.range = null;
      this.revision += 1;
      this.changed();
    }

    changed() {
      this.back.disabled = !this.range;
      if (this.due) return;
      this.due = requestAnimationFrame(() => {
        this.due = 0;
        for (const charts of this.charts) charts.repaint();
      });
    }
  }

  window.millpond.Controls = Controls;
})();
