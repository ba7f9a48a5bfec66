// Downloads: a figure as CSV or PNG, made in the browser.
"use strict";

(() => {
  const quoted = (value) => {
    const text = value === null || value === undefined ? "" : `${value}`;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };

  // Undo the escapes that names have for Plotly.
  const plain = (name) => `${name}`.replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");

  const escaped = (text) => `${text}`.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

  // All points that are drawn, one per line, including bars and bands.
  function csvOf(figure) {
    const unit = plain(figure.layout.xaxis?.title?.text || "x");
    const lines = [["curve", unit, "steps", "minutes", plain(figure.layout.yaxis?.title?.text || "value")]];
    for (const trace of figure.data) {
      const sideways = trace.orientation === "h";
      const at = trace.at || {};
      const steps = figure.apart ? [] : at.steps || trace.x;
      trace.y.forEach((y, i) => {
        lines.push([plain(trace.name), sideways ? y : trace.x[i], steps[i], at.time?.[i], sideways ? trace.x[i] : y]);
      });
    }
    return `${lines.map((line) => line.map(quoted).join(",")).join("\r\n")}\r\n`;
  }

  function save(name, address) {
    const link = document.createElement("a");
    link.href = address;
    link.download = name;
    link.click();
  }

  function saveCsv(figure) {
    const address = URL.createObjectURL(new Blob([csvOf(figure)], { type: "text/csv" }));
    save(`${figure.name}.csv`, address);
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  }

  async function savePng(figure, data, layout) {
    const size = { format: "png", width: 1000, height: 560, scale: 2 };
    save(`${figure.name}.png`, await Plotly.toImage({ data, layout, config: { staticPlot: true } }, size));
  }

  Object.assign(window.millpond, { escaped, csvOf, saveCsv, savePng });
})();
