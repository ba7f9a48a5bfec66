// The report: draws the figures and water whose data is in the page.
"use strict";

(() => {
  const { el, Charts, Controls, drawWater } = window.millpond;
  const data = JSON.parse(document.getElementById("data").textContent);
  const all = [];
  for (const box of document.querySelectorAll("[data-charts]")) {
    const controls = new Controls({ seeds: "seeds" in box.dataset });
    const charts = new Charts(box, controls);
    const figures = data.figures[Number(box.dataset.charts)];
    if (figures.some((figure) => !figure.apart)) box.before(controls.node);
    charts.show(figures.filter((figure) => !figure.more));
    const others = figures.filter((figure) => figure.more);
    if (others.length) {
      const more = el("div", { class: "charts" });
      box.after(el("details", { class: "others" }, el("summary", {}, el("h3", { text: `More metrics (${others.length})` })), more));
      const rest = new Charts(more, controls);
      rest.show(others);
      all.push(rest);
    }
    all.push(charts);
  }
  const water = () => {
    for (const box of document.querySelectorAll("[data-water]")) drawWater(box, data.water[Number(box.dataset.water)]);
  };
  water();
  addEventListener("resize", water);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => all.forEach((charts) => charts.repaint()));
})();
