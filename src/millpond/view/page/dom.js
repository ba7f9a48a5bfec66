// DOM helpers. Everything that comes from a run is inserted as text, never as markup.
"use strict";

window.millpond = window.millpond || {};

(() => {
  // `el("p", { class: "note", text: "…", onclick: go }, child)`.
  function el(name, about = {}, ...children) {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(about)) {
      if (key === "text") node.textContent = value;
      else if (key === "class") node.className = value;
      else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
      else node.setAttribute(key, value);
    }
    node.append(...children);
    return node;
  }

  const section = (title, kind, ...children) =>
    el("section", { class: `panel ${kind}` }, el("h3", { text: title }), ...children);

  const fold = (title, kind, ...children) =>
    el("details", { class: `panel ${kind}` }, el("summary", {}, el("h3", { text: title })), ...children);

  // Cells are text or nodes.
  function table(heads, rows) {
    const line = (cells, kind) => el("tr", {}, ...cells.map((cell) => (cell instanceof Node ? el(kind, {}, cell) : el(kind, { text: `${cell}` }))));
    return el("table", {}, el("thead", {}, line(heads, "th")), el("tbody", {}, ...rows.map((row) => line(row, "td"))));
  }

  // A select with a label; `choices` are pairs of value and text.
  function choice(label, choices, value, onchange) {
    const select = el("select", { onchange: () => onchange(select.value) });
    fill(select, choices, value);
    return { box: el("label", { class: "choice" }, el("span", { text: label }), select), select };
  }

  // Replace the options of a select, keeping its value if that still exists.
  function fill(select, choices, value = select.value) {
    const text = JSON.stringify(choices);
    if (select.dataset.choices !== text) {
      select.dataset.choices = text;
      select.replaceChildren(...choices.map(([key, shown]) => el("option", { value: key, text: shown })));
    }
    select.value = choices.some(([key]) => key === value) ? value : choices[0]?.[0] ?? "";
  }

  // Local storage, which a page opened from a file may not have.
  const memory = {
    get(name) {
      try { return localStorage.getItem(`millpond-${name}`); } catch { return null; }
    },
    set(name, value) {
      try { localStorage.setItem(`millpond-${name}`, value); } catch { /* it is only a convenience */ }
    },
  };

  Object.assign(window.millpond, { el, section, fold, table, choice, fill, memory });
})();
