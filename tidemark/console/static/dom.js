// Elements, numbers and tables. Texts of the cluster become text nodes and nothing else.

export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : String(value));
  }
  append(made, children);
  return made;
}

export function append(parent, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    parent.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

export function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  append(made, children);
  return made;
}

const UNKNOWN = "–";

export function count(value) {
  return value === null || value === undefined ? UNKNOWN : Number(value).toLocaleString("en-US");
}

export function bytes(value) {
  if (value === null || value === undefined) return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let amount = value;
  let unit = 0;
  while (amount >= 1024 && unit < units.length - 1) {
    amount /= 1024;
    unit += 1;
  }
  return `${unit === 0 || amount >= 100 ? Math.round(amount) : amount.toFixed(1)} ${units[unit]}`;
}

export function ago(ms) {
  if (ms === null || ms === undefined) return UNKNOWN;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

export function time(ms) {
  if (ms === null || ms === undefined || ms < 0) return UNKNOWN;
  const moment = new Date(ms);
  return Number.isNaN(moment.getTime()) ? String(ms) : moment.toISOString().replace("T", " ");
}

export function text(value) {
  return value === null || value === undefined || value === "" ? UNKNOWN : String(value);
}

export function badge(value, kind) {
  return el("span", { class: `badge ${kind}` }, value);
}

export function troubled(value, kind = "bad") {
  return value ? badge(count(value), kind) : count(value);
}

// How tables are sorted, by their names: a refresh keeps it.
const orders = new Map();

function compare(a, b) {
  const missing = (v) => v === null || v === undefined;
  if (missing(a) || missing(b)) return missing(a) - missing(b);
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

// columns: {title, key | of(row), show(row), number}; data: {rows, rows_left_out}.
export function table(name, caption, columns, data, empty) {
  if (!data.rows.length) return el("div", { class: "table" }, el("p", { class: "empty" }, empty));
  const valueOf = (column, row) => (column.of ? column.of(row) : row[column.key]);
  const body = el("tbody");
  const heads = columns.map((column, index) => {
    const arrow = el("span", { class: "arrow", "aria-hidden": "true" });
    const button = el("button", { type: "button", onclick: () => sort(index) }, column.title, arrow);
    return el("th", { scope: "col", class: column.number ? "number" : null }, button);
  });

  function fill() {
    const order = orders.get(name);
    const rows = [...data.rows];
    if (order) {
      const column = columns[order.index];
      rows.sort((a, b) => order.sign * compare(valueOf(column, a), valueOf(column, b)));
    }
    heads.forEach((head, index) => {
      const mine = order && order.index === index;
      head.setAttribute("aria-sort", mine ? (order.sign > 0 ? "ascending" : "descending") : "none");
      head.querySelector(".arrow").textContent = mine ? (order.sign > 0 ? "↑" : "↓") : "\u00a0";
    });
    body.replaceChildren(
      ...rows.map((row) =>
        el("tr", {}, columns.map((column) =>
          el("td", { class: column.number ? "number" : null },
            column.show ? column.show(row) : (column.number ? count : text)(valueOf(column, row))))),
      ),
    );
  }

  function sort(index) {
    const order = orders.get(name);
    const sign = order && order.index === index ? -order.sign : 1;
    orders.set(name, { index, sign });
    fill();
  }

  fill();
  return [
    el("div", { class: "table", tabindex: "0", role: "region", "aria-label": caption },
      el("table", {}, el("thead", {}, el("tr", {}, heads)), body)),
    data.rows_left_out
      ? el("p", { class: "quiet" }, `${count(data.rows_left_out)} more rows are not shown`)
      : null,
  ];
}

export function cards(entries) {
  return el("div", { class: "cards" }, entries.map(([title, value, note, long]) =>
    el("dl", { class: long ? "card wide" : "card" }, el("dt", {}, title),
      el("dd", { class: long ? "long" : null }, value), note && el("dd", { class: "note" }, note))));
}

export function notice(kind, title, message) {
  return el("div", { class: `notice ${kind}`, role: kind === "bad" ? "alert" : null },
    el("strong", {}, title), message);
}

export function notes(data) {
  return [
    data.log_dirs_error
      ? notice("warn", "Sizes and offsets are unknown", data.log_dirs_error)
      : null,
    data.topics_left_out
      ? notice("warn", `${count(data.topics_left_out)} topics are not counted here`,
          "The console asks for the first 1,000. Search for others in Topics.")
      : null,
  ];
}
