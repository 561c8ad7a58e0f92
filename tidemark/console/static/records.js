// The page of records. Keys, values and headers are hostile: they become text nodes.

import { bytes, count, el, notice, text, time } from "./dom.js";
import { link } from "./pages.js";

function select(label, name, chosen, options) {
  return el("label", {}, label, el("select", { name },
    options.map(([value, title]) =>
      el("option", { value, selected: value === chosen }, title))));
}

function hashOf(data, parameters, changes) {
  const kept = { limit: parameters.limit, format: parameters.format,
    isolation: parameters.isolation, ...changes };
  const query = new URLSearchParams(
    Object.entries(kept).filter(([, value]) => value !== undefined && value !== ""));
  const base = link("records", data.topic, data.partition);
  return query.size ? `${base}?${query}` : base;
}

function controls(data, parameters) {
  const form = el("form", {},
    el("label", {}, "From offset", el("input", { type: "text", inputmode: "numeric",
      class: "short", name: "offset", value: parameters.offset, placeholder: "the last" })),
    el("label", {}, "or from time (UTC)", el("input", { type: "datetime-local", step: "1",
      name: "moment", value: parameters.timestamp
        ? new Date(Number(parameters.timestamp)).toISOString().slice(0, 19) : undefined })),
    el("label", {}, "Records", el("input", { type: "number", class: "short", name: "limit",
      min: 1, max: 200, value: parameters.limit || 50 })),
    select("Show as", "format", parameters.format || "auto",
      [["auto", "what fits"], ["text", "text"], ["json", "JSON"], ["hex", "hex"]]),
    select("Transactions", "isolation", parameters.isolation || "read_uncommitted",
      [["read_uncommitted", "all records"], ["read_committed", "committed only"]]),
    el("button", { type: "submit", class: "primary" }, "Read"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const fields = Object.fromEntries(new FormData(form));
    const moment = fields.moment ? Date.parse(`${fields.moment}Z`) : NaN;
    location.hash = hashOf(data, {}, {
      limit: fields.limit, format: fields.format, isolation: fields.isolation,
      offset: fields.offset.trim(),
      timestamp: fields.offset.trim() || Number.isNaN(moment) ? "" : String(moment),
    });
  });
  return form;
}

function pager(data, parameters) {
  const limit = Number(parameters.limit || 50);
  const go = (title, offset, isThere) =>
    el("button", { type: "button", disabled: !isThere,
      onclick: () => { location.hash = hashOf(data, parameters, { offset }); } }, title);
  return el("div", { class: "pager" },
    go("First", data.log_start_offset, data.first_offset > data.log_start_offset),
    go("Earlier", Math.max(data.log_start_offset, data.first_offset - limit),
      data.first_offset > data.log_start_offset),
    go("Later", data.next_offset, data.next_offset < data.end_offset),
    go("Last", "", data.next_offset < data.end_offset),
    el("span", { class: "quiet" },
      `offsets ${count(data.first_offset)} to ${count(data.next_offset)} of ` +
      `${count(data.log_start_offset)} to ${count(data.end_offset)}`));
}

function field(found) {
  if (found.as === "null") return el("span", { class: "quiet" }, "null");
  if (!found.bytes) return el("span", { class: "quiet" }, "empty");
  return [
    el("pre", { tabindex: found.text.length > 600 ? "0" : null }, found.text),
    el("span", { class: "kind" },
      `${found.as}, ${bytes(found.bytes)}${found.cut ? ", cut after 16 KiB" : ""}`),
  ];
}

function headers(record) {
  if (!record.headers.length) return null;
  return el("ul", { class: "headers" },
    record.headers.map((one) =>
      el("li", {}, el("code", {}, one.key), ": ",
        one.value.as === "null" ? el("span", { class: "quiet" }, "null")
          : el("span", { class: "mono" }, one.value.text))),
    record.headers_left_out ? el("li", {}, `and ${count(record.headers_left_out)} more`) : null);
}

export function records(data, _, parameters) {
  const rows = data.records.map((record) =>
    el("tr", {},
      el("td", { class: "number" }, count(record.offset)),
      el("td", { class: "mono" }, time(record.timestamp_ms)),
      el("td", {}, field(record.key)),
      el("td", {}, field(record.value)),
      el("td", {}, headers(record))));
  const isOver = data.next_offset >= data.end_offset;
  return [
    el("h1", {}, el("a", { href: link("topic", data.topic) }, data.topic),
      ` partition ${data.partition}`),
    controls(data, parameters),
    data.is_late
      ? notice("warn", "This took too long", "These are the records that came in time.") : null,
    pager(data, parameters),
    rows.length
      ? el("div", { class: "table records", tabindex: "0", role: "region",
          "aria-label": "Records" },
          el("table", {}, el("thead", {}, el("tr", {},
            ["Offset", "Time (UTC)", "Key", "Value", "Headers"].map((title, index) =>
              el("th", { scope: "col", class: index ? null : "number" }, title)))),
          el("tbody", {}, rows)))
      : el("div", { class: "table" }, el("p", { class: "empty" },
          isOver && text(data.end_offset) === text(data.log_start_offset)
            ? "The partition is empty" : "There are no records at these offsets")),
  ];
}
