// Charts: draws the server's figures with Plotly, in light or dark. Shared by page and report.
"use strict";

(() => {
  const { el, escaped, smoothed, together, saveCsv, savePng } = window.millpond;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const FEW = 4; // most curves that a small chart names in any case
  const CROWD = 16; // most curves with a legend; more show their names only on hover
  const BANDS = 12; // most means with bands, which would otherwise hide one another
  const EVERYWHERE = [-Infinity, Infinity];
  const WIDE = ["returns", "compare-greedy", "parallel", "arms-curves"];

  const axis = (given) => ({
    gridcolor: colour("--grid"),
    zerolinecolor: colour("--grid"),
    linecolor: colour("--line"),
    tickfont: { size: 11 },
    automargin: true,
    ...given,
    title: { ...(given || {}).title, font: { size: 11 }, standoff: 8 },
  });

  const isCurve = (trace) => trace.type === "scatter" && !trace.fill && (trace.mode || "lines") !== "markers";

  // Smoothed curves, with the measured values faintly behind; other traces unchanged.
  function smoothTraces(data, weight) {
    if (!weight) return data;
    return data.flatMap((trace) => {
      if (!isCurve(trace)) return [trace];
      const behind = { ...trace, opacity: 0.25, showlegend: false, hoverinfo: "skip", mode: "lines", line: { ...trace.line, width: 1 } };
      const before = data.length > CROWD ? [] : [behind];
      return [...before, { ...trace, y: smoothed(trace.y, weight) }];
    });
  }

  // The mean of each group, with a band from its lowest to its highest run.
  function meansOf(data, weight) {
    const groups = new Map();
    for (const trace of data) groups.set(trace.group.key, [...(groups.get(trace.group.key) || []), trace]);
    const bands = [];
    const lines = [];
    for (const [key, traces] of groups) {
      const { group } = traces[0];
      const found = together(traces.map((trace) => ({ x: trace.x, y: smoothed(trace.y, weight) })));
      if (!found.x.length) continue;
      if (traces.length > 1 && groups.size <= BANDS) {
        bands.push({ type: "scatter", mode: "lines", fill: "toself", fillcolor: group.line.color, opacity: 0.15, name: "band",
          x: [...found.x, ...found.x.slice().reverse()], y: [...found.high, ...found.low.slice().reverse()],
          line: { width: 0, color: group.line.color }, hoverinfo: "skip", showlegend: false });
      }
      const name = traces.length > 1 ? `${group.name} (${traces.length})` : group.name;
      const crowded = groups.size > CROWD;
      const mode = found.x.length > 60 || crowded ? "lines" : "lines+markers";
      lines.push({ type: "scatter", mode, name, x: found.x, y: found.mean, key, line: { ...group.line, width: crowded ? 1.3 : 2 }, marker: { color: group.line.color, size: 5 } });
    }
    return [...bands, ...lines];
  }

  // The lowest and highest y between two x values.
  function extent(data, [from, to], log) {
    const seen = data.filter((trace) => trace.type === "scatter" && trace.yaxis !== "y2")
      .flatMap((trace) => trace.y.filter((y, i) => Number.isFinite(y) && (!log || y > 0) && trace.x[i] >= from && trace.x[i] <= to))
      .map((y) => (log ? Math.log10(y) : y));
    if (!seen.length) return null;
    const low = seen.reduce((a, b) => Math.min(a, b));
    return [low, seen.reduce((a, b) => Math.max(a, b))];
  }

  // The same with a margin.
  function rangeWithin(data, x, log) {
    const found = extent(data, x, log);
    if (!found) return null;
    const [low, high] = found;
    const air = (high - low) * 0.05 || Math.abs(high) * 0.05 || 1;
    return [low - air, high + air];
  }

  // Without a y axis, labels lie on top of the lines and need a background.
  const readable = (words, given) => (given.yaxis?.visible === false ? words.map((one) => ({ ...one, bgcolor: colour("--panel"), opacity: 0.9 })) : words);

  const moved = (marks, x) => (marks || []).map((mark) => {
    const at = mark.at?.[x];
    if (at === undefined) return mark;
    return "x0" in mark ? { ...mark, x0: at, x1: at } : { ...mark, x: at };
  });

  // The traces and layout that Plotly draws for a figure, given the page's controls.
  function dress(figure, controls, log, ground) {
    const given = figure.layout;
    const placed = controls.placed(figure);
    const mean = controls.mean && placed.data.every((trace) => trace.group);
    const weight = figure.apart ? 0 : controls.smooth;
    const data = mean ? meansOf(placed.data, weight) : smoothTraces(placed.data, weight);
    const named = data.filter((trace) => trace.showlegend !== false);
    const bars = data.some((trace) => trace.type === "bar");
    const linked = !bars && !figure.apart;
    const zooms = !bars && given.xaxis?.type !== "category";
    // Small charts have room for few short names; the hover label shows them all.
    const letters = named.reduce((sum, trace) => sum + `${trace.name}`.length + 6, 0);
    const legend = named.length > 1 && (WIDE.includes(figure.name) ? named.length <= CROWD : named.length <= FEW || letters <= 110);
    const layout = {
      ...given,
      paper_bgcolor: ground,
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, sans-serif", size: 12, color: colour("--text") },
      margin: { l: 48, r: 16, t: legend ? 34 : 14, b: 36 },
      hovermode: given.hovermode || (bars || named.length > CROWD ? "closest" : "x unified"),
      hoverlabel: { bgcolor: colour("--panel"), bordercolor: colour("--line"), font: { color: colour("--text"), size: 11 }, namelength: 60 },
      showlegend: legend,
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", traceorder: "normal", font: { size: 11 } },
      xaxis: axis({ ...given.xaxis, ...(linked ? { title: { text: placed.title } } : {}), fixedrange: !zooms }),
      yaxis: axis({ ...given.yaxis, fixedrange: true }),
      shapes: moved(given.shapes, placed.x),
      annotations: readable(moved(given.annotations, placed.x), given),
      dragmode: zooms ? "zoom" : false,
      uirevision: `${figure.name} ${controls.revision}`,
    };
    if (given.yaxis2) layout.yaxis2 = axis({ ...given.yaxis2, fixedrange: true });
    if (log !== (given.yaxis?.type === "log")) {
      layout.yaxis.type = log ? "log" : "linear";
      delete layout.yaxis.range;
    }
    if (log) {
      delete layout.yaxis.rangemode;
      const [low, high] = extent(data, EVERYWHERE, true) || [0, 0];
      if (high - low < 3) layout.yaxis.dtick = "D2"; // ticks at 1, 2, 5; all nine would overlap
      layout.yaxis.exponentformat = "e"; // powers would need inline styles, which our policy refuses
    }
    if (linked && !log) { // around a single value, Plotly would show fractions of a step, or -1 to 1
      const [low, high] = extent(data, EVERYWHERE, false) || [0, 1];
      if (low === high) layout.yaxis.rangemode ??= "tozero";
      if (named.every((trace) => (trace.x?.length ?? 2) < 2)) layout.xaxis.rangemode ??= "tozero";
    }
    if (linked && controls.range) {
      layout.xaxis.range = [...controls.range];
      const fit = given.yaxis?.range && !log ? null : rangeWithin(data, controls.range, log);
      if (fit) layout.yaxis.range = fit;
    }
    const notes = [figure.note];
    if (mean && data.length > named.length) notes.push("Band: lowest to highest seed.");
    if (named.length > CROWD) notes.push(`${named.length} curves; point at one for its name.`);
    return { data, layout, linked, note: notes.filter(Boolean).join(" ") };
  }

  // In linked charts a double click resets all of them.
  const config = (linked) => ({ displayModeBar: false, responsive: true, doubleClick: linked ? false : "reset" });

  class Charts {
    // Draws figures into `parent`, one panel each, as soon as they are visible.
    // `onwanted()` is called when a figure without data becomes visible.
    constructor(parent, controls, onwanted = () => {}) {
      this.parent = parent;
      this.controls = controls;
      this.onwanted = onwanted;
      this.panels = new Map();
      controls.charts.add(this);
      this.observer = new IntersectionObserver((seen) => {
        for (const one of seen) {
          const panel = this.panels.get(one.target.dataset.figure);
          if (!panel) continue;
          panel.seen = one.isIntersecting;
          if (panel.seen && panel.waiting) this.onwanted();
          if (panel.seen && panel.stale) this.paint(panel);
        }
      }, { rootMargin: "200px" });
    }

    // Names of the visible figures.
    inSight() {
      return [...this.panels.values()].filter((panel) => panel.seen).map((panel) => panel.figure.name);
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
        panel.waiting = !figure.data.length;
        panel.plot.classList.toggle("waiting", panel.waiting && !panel.drawn);
        if (panel.waiting) return;
        const text = JSON.stringify(figure);
        if (text === panel.text) return;
        panel.text = text;
        panel.figure = figure;
        panel.plot.setAttribute("aria-label", `${figure.title}. ${figure.note}`);
        if (panel.seen) this.paint(panel);
        else panel.stale = true;
      });
    }

    make(figure) {
      const tool = (text, title, onclick) => el("button", { type: "button", class: "tool", text, title, "aria-label": `${title}: ${figure.title}`, onclick });
      const panel = { figure, seen: false, stale: true, waiting: false, text: "", log: null };
      panel.plot = el("div", { class: "plot", role: "img" });
      panel.note = el("p", { class: "note" });
      panel.scale = tool("log", "logarithmic y", () => {
        panel.log = !this.logOf(panel);
        this.paint(panel);
      });
      const csv = tool("CSV", "download the points drawn as CSV", () => saveCsv(panel.figure));
      const png = tool("PNG", "download as PNG", () => {
        const { data, layout } = dress(panel.figure, this.controls, this.logOf(panel), colour("--panel"));
        savePng(panel.figure, data, { ...layout, title: { text: escaped(panel.figure.title) }, margin: { l: 70, r: 30, t: 90, b: 60 } });
      });
      panel.box = el("section", { class: "panel chart", "data-figure": figure.name },
        el("div", { class: "chart-head" }, el("h3", { text: figure.title }), el("span", { class: "tools" }, panel.scale, csv, png)),
        panel.plot, panel.note);
      if (figure.height) panel.plot.style.height = `${figure.height}px`;
      if (WIDE.includes(figure.name)) panel.box.classList.add("wide");
      return panel;
    }

    logOf(panel) {
      return panel.log ?? panel.figure.layout.yaxis?.type === "log";
    }

    paint(panel) {
      if (!panel.figure.data.length) return;
      panel.stale = false;
      const log = this.logOf(panel);
      const { data, layout, linked, note } = dress(panel.figure, this.controls, log, "rgba(0,0,0,0)");
      panel.scale.setAttribute("aria-pressed", `${log}`);
      panel.scale.hidden = data.some((trace) => trace.type === "bar") || panel.figure.layout.yaxis?.visible === false || panel.figure.layout.yaxis?.type === "category";
      panel.note.textContent = note;
      const fresh = !panel.drawn;
      panel.drawn = true;
      Plotly.react(panel.plot, data, layout, config(linked));
      if (fresh && linked) this.link(panel.plot);
    }

    // A zoom in one chart applies to all charts of the page; a double click resets it.
    link(plot) {
      plot.on("plotly_relayout", (event) => {
        const [from, to] = event["xaxis.range"] || [event["xaxis.range[0]"], event["xaxis.range[1]"]];
        if (from !== undefined && to !== undefined) this.controls.zoom([from, to]);
      });
      plot.on("plotly_doubleclick", () => this.controls.reset());
    }

    repaint() {
      for (const panel of this.panels.values()) {
        if (panel.seen) this.paint(panel);
        else panel.stale = true;
      }
    }

    close() {
      this.controls.charts.delete(this);
      this.observer.disconnect();
      for (const panel of this.panels.values()) Plotly.purge(panel.plot);
      this.panels.clear();
      this.parent.replaceChildren();
    }
  }

  window.millpond.Charts = Charts;
})();
