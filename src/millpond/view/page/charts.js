// Charts: figures of the server, dressed for light and dark. Shared by the page and the report.
"use strict";

window.millpond = window.millpond || {};

(() => {
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const axis = (given) => ({
    gridcolor: colour("--grid"),
    zerolinecolor: colour("--grid"),
    linecolor: colour("--line"),
    tickfont: { size: 11 },
    automargin: true,
    ...given,
    title: { ...(given || {}).title, font: { size: 11 }, standoff: 8 },
  });

  // A figure's layout with the fonts and grounds of the page.
  function layoutOf(figure) {
    const given = figure.layout;
    const shown = figure.data.filter((trace) => trace.showlegend !== false);
    const bars = figure.data.some((trace) => trace.type === "bar");
    const layout = {
      ...given,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, sans-serif", size: 12, color: colour("--text") },
      margin: { l: 48, r: 16, t: shown.length > 1 ? 34 : 14, b: 36 },
      hovermode: bars ? "closest" : "x unified",
      hoverlabel: { bgcolor: colour("--panel"), bordercolor: colour("--line"), font: { color: colour("--text"), size: 11 } },
      showlegend: shown.length > 1,
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", traceorder: "normal", font: { size: 11 } },
      xaxis: axis(given.xaxis),
      yaxis: axis(given.yaxis),
      dragmode: "zoom",
      uirevision: figure.name,
    };
    if (given.yaxis2) layout.yaxis2 = axis(given.yaxis2);
    return layout;
  }

  const config = { displayModeBar: false, responsive: true, doubleClick: "reset" };

  class Charts {
    // Draws figures into `parent`, one panel each; those out of sight are drawn when they are seen.
    constructor(parent) {
      this.parent = parent;
      this.panels = new Map();
      this.observer = new IntersectionObserver((seen) => {
        for (const one of seen) {
          const panel = this.panels.get(one.target.dataset.figure);
          if (!panel) continue;
          panel.seen = one.isIntersecting;
          if (panel.seen && panel.stale) this.paint(panel);
        }
      }, { rootMargin: "200px" });
    }

    show(figures) {
      const names = figures.map((figure) => figure.name);
      for (const [name, panel] of this.panels) {
        if (names.includes(name)) continue;
        this.observer.unobserve(panel.box);
        Plotly.purge(panel.plot);
        panel.box.remove();
        this.panels.delete(name);
      }
      figures.forEach((figure, place) => {
        let panel = this.panels.get(figure.name);
        if (!panel) {
          panel = this.make(figure);
          this.panels.set(figure.name, panel);
          this.parent.insertBefore(panel.box, this.parent.children[place] || null);
          this.observer.observe(panel.box);
        }
        const text = JSON.stringify(figure);
        if (text === panel.text) return;
        panel.text = text;
        panel.figure = figure;
        panel.note.textContent = figure.note;
        panel.plot.setAttribute("aria-label", `${figure.title}. ${figure.note}`);
        if (panel.seen) this.paint(panel);
        else panel.stale = true;
      });
    }

    make(figure) {
      const box = document.createElement("section");
      box.className = "panel chart";
      if (figure.name === "returns" || figure.name === "compare-greedy") box.classList.add("wide");
      box.dataset.figure = figure.name;
      const title = document.createElement("h3");
      title.textContent = figure.title;
      const plot = document.createElement("div");
      plot.className = "plot";
      plot.setAttribute("role", "img");
      const note = document.createElement("p");
      note.className = "note";
      box.append(title, plot, note);
      return { box, plot, note, seen: false, stale: true, text: "", figure };
    }

    paint(panel) {
      panel.stale = false;
      Plotly.react(panel.plot, panel.figure.data, layoutOf(panel.figure), config);
    }

    repaint() {
      for (const panel of this.panels.values()) {
        if (panel.seen) this.paint(panel);
        else panel.stale = true;
      }
    }

    close() {
      this.observer.disconnect();
      for (const panel of this.panels.values()) Plotly.purge(panel.plot);
      this.panels.clear();
      this.parent.replaceChildren();
    }
  }

  window.millpond.Charts = Charts;
})();
