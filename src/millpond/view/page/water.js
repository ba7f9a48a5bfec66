// Water: places with their levels, and the flows between them, as SVG. Shared by page and report.
"use strict";

window.millpond = window.millpond || {};

(() => {
  const NS = "http://www.w3.org/2000/svg";
  const TANK = { w: 118, h: 104 };
  let number = 0;

  function node(name, attributes, ...children) {
    const found = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
    found.append(...children);
    return found;
  }

  const text = (x, y, kind, words, anchor = "middle") =>
    node("text", { x, y, class: kind, "text-anchor": anchor }, words);

  // The path of a wave, wider than its tank so that it can drift.
  function wave(x, y, width, bottom) {
    let path = `M ${x} ${y}`;
    for (let at = 0; at < width * 2; at += 30) path += ` q 7.5 -5 15 0 t 15 0`;
    return `${path} V ${bottom} H ${x} Z`;
  }

  function tank(cx, cy, place) {
    const left = cx - TANK.w / 2;
    const top = cy - TANK.h / 2;
    const level = Math.min(1, Math.max(0, place.level ?? 0));
    const surface = top + TANK.h - Math.max(level > 0 ? 5 : 0, level * (TANK.h - 8));
    const id = `tank-${number++}`;
    const frame = { x: left, y: top, width: TANK.w, height: TANK.h, rx: 12 };
    const share = place.level === null ? "" : level > 0 && level < 0.01 ? "<1%" : `${Math.round(level * 100)}%`;
    return node("g", {},
      node("clipPath", { id }, node("rect", frame)),
      node("rect", { ...frame, class: "tank" }),
      node("g", { "clip-path": `url(#${id})` },
        node("path", { d: wave(left - 60, surface + 4, TANK.w, top + TANK.h + 2), class: "water back" }),
        node("path", { d: wave(left - 30, surface, TANK.w, top + TANK.h + 2), class: "water" })),
      node("rect", { ...frame, class: "glass" }),
      // The number is in the water or above it, wherever there is more room.
      level > 0.5
        ? text(cx, (surface + top + TANK.h) / 2 + 8, "level over", share)
        : text(cx, (surface + top) / 2 + 6, "level", share));
  }

  function actor(cx, cy, place) {
    const first = place.text.match(/^\d+/);
    const many = first ? Math.min(4, Number(first[0])) : 1;
    const group = node("g", {});
    for (let i = many - 1; i >= 0; i--) {
      const x = cx + (i - (many - 1) / 2) * 16;
      group.append(node("circle", { cx: x, cy, r: 30, class: "actor" }));
      group.append(node("circle", { cx: x - 9, cy: cy - 4, r: 3.5, class: "eye" }));
      group.append(node("circle", { cx: x + 9, cy: cy - 4, r: 3.5, class: "eye" }));
    }
    return group;
  }

  const half = (place) => (place.tank ? TANK.w / 2 : 34 + (/^\d/.test(place.text) ? 24 : 0));

  function across(svg, water) {
    const count = water.places.length;
    const step = 1000 / count;
    const y = 74;
    svg.setAttribute("viewBox", `0 0 1000 ${water.back ? 232 : 190}`);
    const x = (i) => step * (i + 0.5);
    water.flows.forEach((flow, i) => {
      const from = x(i) + half(water.places[i]) + 6;
      const to = x(i + 1) - half(water.places[i + 1]) - 8;
      svg.append(pipe(`M ${from} ${y} H ${to}`, flow));
      svg.append(text((from + to) / 2, y - 12, "flow-name", flow.name));
    });
    if (water.back) {
      const last = count - 1;
      svg.append(pipe(`M ${x(last)} 180 C ${x(last)} 224, ${x(0)} 224, ${x(0)} 184`, water.back));
      svg.append(text(500, 206, "flow-name", water.back.name));
    }
    water.places.forEach((place, i) => {
      svg.append(place.tank ? tank(x(i), y, place) : actor(x(i), y, place));
      svg.append(text(x(i), 148, "place-name", place.name), text(x(i), 167, "place-text", place.text));
    });
  }

  function down(svg, water) {
    const step = 158;
    const cx = 96;
    const y = (i) => 64 + step * i;
    svg.setAttribute("viewBox", `0 0 360 ${step * water.places.length}`);
    const tall = (place) => (place.tank ? TANK.h / 2 : 34);
    water.flows.forEach((flow, i) => {
      const from = y(i) + tall(water.places[i]) + 5;
      const to = y(i + 1) - tall(water.places[i + 1]) - 8;
      svg.append(pipe(`M ${cx} ${from} V ${to}`, flow));
      svg.append(text(cx + 16, (from + to) / 2 + 4, "flow-name", flow.name, "start"));
    });
    if (water.back) {
      const last = y(water.places.length - 1);
      svg.append(pipe(`M ${cx - 40} ${last} C 6 ${last}, 6 ${y(0)}, ${cx - 66} ${y(0)}`, water.back));
      svg.append(text(10, y(0) + 60, "flow-name", water.back.name, "start"));
    }
    water.places.forEach((place, i) => {
      svg.append(place.tank ? tank(cx, y(i), place) : actor(cx, y(i), place));
      svg.append(text(cx + 80, y(i), "place-name", place.name, "start"));
      svg.append(text(cx + 80, y(i) + 20, "place-text", place.text, "start"));
    });
  }

  const pipe = (d, flow) =>
    node("g", {},
      node("path", { d, class: "pipe", "marker-end": "url(#arrow)" }),
      node("path", { d, class: flow.moves ? "stream moves" : "stream" }));

  // Draw a run's water into `parent`: horizontally, or vertically if it is narrow.
  function drawWater(parent, water) {
    const narrow = parent.clientWidth > 0 && parent.clientWidth < 620;
    const known = JSON.stringify([water, narrow]);
    if (parent.dataset.known === known) return;
    parent.dataset.known = known;
    const levels = water.places.filter((place) => place.tank && place.level !== null)
      .map((place) => `${place.name} ${Math.round(place.level * 100)}% full`);
    const svg = node("svg", { class: narrow ? "water-map narrow" : "water-map", role: "img", "aria-label": `${water.about} ${levels.join(", ")}` },
      node("defs", {}, node("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 4, refY: 4, markerWidth: 3, markerHeight: 3, orient: "auto-start-reverse" },
        node("path", { d: "M 0 0 L 8 4 L 0 8 Z", class: "arrow" }))));
    (narrow ? down : across)(svg, water);
    parent.replaceChildren(svg);
  }

  window.millpond.drawWater = drawWater;
})();
