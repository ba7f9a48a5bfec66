// The report: figures and water from the data that lies in the page itself.
"use strict";

(() => {
  const { Charts, Controls, drawWater } = window.millpond;
  const data = JSON.parse(document.getElementById("data").textContent);
  const all = [];
  for (const box of document.querySelectorAll("[data-charts]")) {
    const controls = new Controls({ seeds: "seeds" in box.dataset });
    const charts = new Charts(box, controls);
    box.before(controls.node);
    charts.show(data.figures[Number(box.dataset.charts)]);
    all.push(charts);
  }
  const water = () => {
    for (const box of document.querySelectorAll("[data-water]")) drawWater(box, data.water[Number(box.dataset.water)]);
  };
  water();
  addEventListener("resize", water);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => all.forEach((charts) => charts.repaint()));
})();
