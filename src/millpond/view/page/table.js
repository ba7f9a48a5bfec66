// RunTable: a sortable table of runs, in which the seeds of one setting form a group.
"use strict";

(() => {
  const { el, short, duration, percent, since } = window.millpond;

  const mean = (values) => (values.length ? values.reduce((a, b) => a + b, 0) / values.length : null);
  const numbers = (cards, key) => cards.map((card) => card[key]).filter((value) => Number.isFinite(value));
  const one = (cards, key) => {
    const different = [...new Set(cards.map((card) => card[key]))];
    return different.length === 1 ? different[0] : `${different.length} different`;
  };

  // Name, head, sort key of a card, whether the column is shown on a phone.
  const COLUMNS = [
    { name: "name", head: "run", value: (card) => card.name.toLowerCase(), narrow: true },
    { name: "env", head: "env", value: (card) => card.env },
    { name: "agent", head: "agent", value: (card) => card.agent },
    { name: "seed", head: "seed", value: (card) => card.seed, number: true },
    { name: "state", head: "state", value: (card) => card.state, narrow: true },
    { name: "progress", head: "progress", value: (card) => card.progress, number: true, left: true },
    { name: "x", head: "frames", value: (card) => card.x, number: true },
    { name: "greedy", head: "greedy", value: (card) => card.greedy, number: true, narrow: true },
    { name: "pace", head: "per second", value: (card) => card.pace, number: true },
    { name: "left_s", head: "time left", value: (card) => card.left_s, number: true },
    { name: "made", head: "begun", value: (card) => card.made, number: true },
  ];

  // Missing values come last in both directions.
  function compare(a, b, down) {
    const missing = (value) => value === null || value === undefined || value === "";
    if (missing(a) || missing(b)) return missing(a) - missing(b);
    const order = typeof a === "number" && typeof b === "number" ? a - b : `${a}`.localeCompare(`${b}`, "en", { numeric: true });
    return down ? -order : order;
  }

  // How to call runs with equal settings: seeds, unless a seed was run twice.
  const kindOf = (cards) => (new Set(cards.map((card) => card.seed)).size === cards.length ? "seeds" : "runs");

  const lastLine = (text) => text.trim().split("\n").at(-1);

  function progress(share, phase) {
    return el("span", { class: "progress-cell" }, el("progress", { max: "1", value: `${share}`, "aria-label": "progress" }), `${percent(share)}${phase ? ` ${phase}` : ""}`);
  }

  class RunTable {
    // `chosen` is the set of ids to compare; `onchosen` is called whenever it changes.
    constructor(chosen, onchosen, onsorted) {
      this.chosen = chosen;
      this.onchosen = onchosen;
      this.onsorted = onsorted;
      this.open = new Set(); // unfolded groups
      this.rows = new Map(); // key -> row
      this.heads = el("tr");
      this.body = el("tbody");
      this.node = el("table", { class: "runs-table" }, el("thead", {}, this.heads), this.body);
    }

    // `groups` are lists of cards, `names` the groups' names; `setting` is an extra column.
    show(groups, names, { sort, down, setting, settingOf }) {
      this.columns = setting ? [...COLUMNS.slice(0, 4), { name: "setting", head: setting, value: settingOf }, ...COLUMNS.slice(4)] : COLUMNS;
      this.shown = { groups, names, sort, down, setting, settingOf };
      this.showHeads(sort, down);
      const column = this.columns.find((one) => one.name === sort) || this.columns.at(-1);
      const inOrder = (cards) => cards.slice().sort((a, b) => compare(column.value(a), column.value(b), down));
      const ofGroup = (cards) => {
        const values = cards.map(column.value).filter((value) => value !== null && value !== undefined);
        return column.number && values.length ? mean(values) : column.value(inOrder(cards)[0]);
      };
      const ordered = groups.map((cards) => [cards, ofGroup(cards)]).sort(([, a], [, b]) => compare(a, b, down)).map(([cards]) => cards);
      const wanted = ordered.flatMap((cards) => {
        if (cards.length === 1) return [this.runRow(cards[0], false)];
        const open = this.open.has(cards[0].group);
        return [this.groupRow(cards, names[cards[0].group], open), ...(open ? inOrder(cards).map((card) => this.runRow(card, true)) : [])];
      });
      wanted.forEach((row, place) => {
        if (this.body.children[place] !== row) this.body.insertBefore(row, this.body.children[place] || null);
      });
      while (this.body.children.length > wanted.length) this.body.lastChild.remove();
      const kept = new Set(wanted);
      for (const [key, row] of this.rows) if (!kept.has(row)) this.rows.delete(key);
    }

    again() {
      const { groups, names, ...how } = this.shown;
      this.show(groups, names, how);
    }

    showHeads(sort, down) {
      const text = JSON.stringify([this.columns.map((column) => column.head), sort, down]);
      if (this.heads.dataset.text === text) return;
      this.heads.dataset.text = text;
      const focused = document.activeElement?.dataset?.sort;
      this.heads.replaceChildren(el("th", { class: "pick" }), ...this.columns.map((column) => {
        const sorted = column.name === sort;
        const button = el("button", { type: "button", "data-sort": column.name, text: column.head, onclick: () => this.onsorted(column.name, sorted ? !down : Boolean(column.number)) });
        const about = { scope: "col", "aria-sort": sorted ? (down ? "descending" : "ascending") : "none" };
        return el("th", { class: this.look(column), ...about }, button);
      }));
      if (focused) this.heads.querySelector(`[data-sort="${focused}"]`)?.focus();
    }

    look(column) {
      const kind = column.number ? (column.left ? "" : "number") : column.name === "env" ? "words" : "";
      return `${kind} ${column.narrow ? "" : "not-narrow"}`.trim();
    }

    // Update a row, replacing only the cells that have changed.
    row(key, kind, cells) {
      let row = this.rows.get(key);
      if (!row) {
        row = el("tr", { "data-key": key });
        this.rows.set(key, row);
      }
      row.className = kind;
      cells.forEach(([look, text, make], i) => {
        let cell = row.children[i];
        if (!cell) {
          cell = el("td");
          row.append(cell);
        }
        cell.className = look;
        if (cell.dataset.text === text) return;
        cell.dataset.text = text;
        cell.replaceChildren(make ? make() : text);
      });
      while (row.children.length > cells.length) row.lastChild.remove();
      return row;
    }

    pick(name, ids) {
      return ["pick", ids.join(), () => {
        const box = el("input", { type: "checkbox", "aria-label": `compare ${name}`, onchange: () => {
          for (const id of ids) this.chosen[box.checked ? "add" : "delete"](id);
          this.onchosen();
          this.again();
        } });
        return box;
      }];
    }

    picked(row, ids) {
      const box = row.querySelector("input");
      const count = ids.filter((id) => this.chosen.has(id)).length;
      box.checked = count === ids.length;
      box.indeterminate = count > 0 && count < ids.length;
      return row;
    }

    runRow(card, child) {
      const state = el("span", { class: "state", "data-state": card.state, text: card.state });
      const shown = {
        name: [`${card.name}\n${card.why}`, () => el("span", { class: "run-name" }, el("a", { href: `#run=${card.id}`, text: card.name }),
          el("span", { class: "sub", text: `${card.env} · ${card.agent} · ${percent(card.progress)}` }),
          ...(card.why ? [el("span", { class: "why", text: lastLine(card.why), title: card.why })] : []))],
        state: [card.state, () => state],
        progress: [`${percent(card.progress)} ${card.phase}`, () => progress(card.progress, card.phase)],
        x: [`${short(card.x)}${card.unit === "frames" ? "" : ` ${card.unit}`}`],
        greedy: [short(card.greedy)],
        pace: [card.state === "running" ? short(card.pace) : "–"],
        left_s: [card.left_s === null ? "–" : duration(card.left_s)],
        made: [since(card.made)],
      };
      const cells = this.columns.map((column) => {
        const [text, make] = shown[column.name] || [`${column.value(card) ?? "–"}`];
        return [this.look(column), text, make];
      });
      return this.picked(this.row(card.id, child ? "of-group" : "", [this.pick(card.name, [card.id]), ...cells]), [card.id]);
    }

    groupRow(cards, name, open) {
      const key = `group ${cards[0].group}`;
      const ids = cards.map((card) => card.id);
      const states = new Map();
      for (const card of cards) states.set(card.state, (states.get(card.state) || 0) + 1);
      const told = [...states].map(([state, count]) => `${count} ${state}`).join(" ");
      const greedy = numbers(cards, "greedy");
      const band = greedy.length > 1 ? `${short(Math.min(...greedy))} – ${short(Math.max(...greedy))}` : "";
      const toggle = () => {
        if (!this.open.delete(cards[0].group)) this.open.add(cards[0].group);
        this.again();
      };
      const shown = {
        name: [`${name} ${cards.length}`, () => el("span", { class: "run-name" },
          el("button", { type: "button", class: "unfold", onclick: toggle }, el("strong", { text: name }), " ", el("span", { class: "count", text: `${cards.length} ${kindOf(cards)}` })),
          el("span", { class: "sub", text: `${one(cards, "env")} · ${one(cards, "agent")}` }))],
        seed: [[...new Set([Math.min(...numbers(cards, "seed")), Math.max(...numbers(cards, "seed"))])].join(" – ")],
        state: [told, () => el("span", { class: "states" }, ...[...states].map(([state, count]) => el("span", { class: "state", "data-state": state, text: `${count} ${state}` })))],
        progress: [percent(mean(numbers(cards, "progress")) ?? 0), () => progress(mean(numbers(cards, "progress")) ?? 0, "")],
        greedy: [`${short(mean(greedy))} ${band}`, () => el("span", { title: `mean of the ${kindOf(cards)}, lowest to highest` }, short(mean(greedy)), el("span", { class: "band", text: band }))],
        pace: ["–"],
        left_s: [numbers(cards, "left_s").length ? duration(Math.max(...numbers(cards, "left_s"))) : "–"],
        made: [since(Math.max(...cards.map((card) => card.made)))],
        x: [short(mean(numbers(cards, "x")))],
      };
      const cells = this.columns.map((column) => {
        const [text, make] = shown[column.name] || [`${column.name === "setting" ? this.ofGroup(cards) : one(cards, column.name)}`];
        return [this.look(column), text, make];
      });
      const row = this.row(key, "group", [this.pick(`${cards.length} ${kindOf(cards)} of ${name}`, ids), ...cells]);
      row.querySelector(".unfold").setAttribute("aria-expanded", `${open}`);
      return this.picked(row, ids);
    }

    ofGroup(cards) {
      const different = [...new Set(cards.map(this.shown.settingOf))];
      return different.length === 1 ? different[0] ?? "–" : `${different.length} different`;
    }
  }

  Object.assign(window.millpond, { RunTable, lastLine, kindOf });
})();
