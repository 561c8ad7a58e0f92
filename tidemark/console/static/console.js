// The router: the hash names a page and its parameters, /api/ has its data.

import { el, notice, time } from "./dom.js";
import * as pages from "./pages.js";
import { records } from "./records.js";

const EVERY_MS = 5000;

// By the first part of the hash: the title, what draws, and the parameters of further parts.
const ROUTES = {
  "": { api: "overview", title: "Overview", draw: pages.overview, parts: [] },
  brokers: { api: "brokers", title: "Brokers", draw: pages.brokers, parts: [] },
  topics: { api: "topics", title: "Topics", draw: pages.topics, parts: [] },
  tier: { api: "tier", title: "Tier", draw: pages.tier, parts: [] },
  groups: { api: "groups", title: "Groups", draw: pages.groups, parts: [] },
  quorum: { api: "quorum", title: "Quorum", draw: pages.quorum, parts: [] },
  topic: { api: "topic", title: "Topic", draw: pages.topic, parts: ["topic"], under: "topics" },
  group: { api: "group", title: "Group", draw: pages.group, parts: ["group"], under: "groups" },
  records: { api: "records", title: "Records", draw: records, parts: ["topic", "partition"],
    under: "topics" },
};

const main = document.getElementById("main");
const status = document.getElementById("status");
const auto = document.getElementById("auto");
let turn = 0;
let drawn = "";

function asked() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const [name, ...parts] = path.split("/");
  const route = ROUTES[name];
  if (!route) return null;
  const parameters = Object.fromEntries(new URLSearchParams(query));
  try {
    route.parts.forEach((part, index) => {
      parameters[part] = decodeURIComponent(parts[index] ?? "");
    });
  } catch {
    return null;
  }
  return { name, route, parameters };
}

function drawNav(name) {
  const links = Object.entries(ROUTES).filter(([, route]) => !route.parts.length);
  document.getElementById("nav").replaceChildren(...links.map(([key, route]) =>
    el("a", { href: `#/${key}`, "aria-current": key === name ? "page" : null }, route.title)));
}

async function fetched(route, parameters) {
  // Of the origin: where the address has a password in it, fetch refuses a relative one.
  const url = new URL(`/api/${route.api}`, location.origin);
  url.search = new URLSearchParams(parameters);
  const response = await fetch(url, { cache: "no-store", credentials: "include" });
  const body = await response.json().catch(() => ({}));
  if (!response.ok) {
    const error = new Error(body.message || `the console answered ${response.status}`);
    error.name = body.error || "error";
    throw error;
  }
  return body;
}

async function draw() {
  const found = asked();
  const mine = (turn += 1);
  if (!found) {
    drawNav(null);
    main.replaceChildren(notice("warn", "No such page", el("a", { href: "#/" }, "Overview")));
    return;
  }
  const { name, route, parameters } = found;
  const isNew = drawn !== location.hash;
  drawNav(route.under ?? name);
  document.title = `${route.title} - Tidemark`;
  main.setAttribute("aria-busy", "true");
  if (isNew) status.textContent = "Asking the cluster";
  try {
    const data = await fetched(route, parameters);
    if (mine !== turn) return; // the user has gone on meanwhile
    const place = window.scrollY;
    main.replaceChildren(...route.draw(data, route, parameters).flat(Infinity).filter(Boolean));
    window.scrollTo(0, isNew ? 0 : place);
    status.textContent = `As of ${time(Date.now()).slice(0, 19)} UTC`;
    drawn = location.hash;
  } catch (error) {
    if (mine !== turn) return;
    const again = el("button", { type: "button", onclick: draw }, "Try again");
    main.replaceChildren(el("h1", {}, route.title),
      notice("bad", error.name === "TypeError" ? "The console does not answer" : error.name,
        error.message), again);
    status.textContent = "";
    drawn = "";
  } finally {
    if (mine === turn) main.removeAttribute("aria-busy");
  }
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("theme", theme);
  } catch { /* a browser without storage */ }
}

function isDark() {
  const theme = document.documentElement.dataset.theme;
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

try {
  const kept = localStorage.getItem("theme");
  if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept;
} catch { /* a browser without storage */ }

document.getElementById("theme").addEventListener("click", () =>
  setTheme(isDark() ? "light" : "dark"));
document.getElementById("refresh").addEventListener("click", draw);
document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input, select, textarea");
  if (event.key === "r" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) draw();
});
setInterval(() => {
  const isTyping = document.activeElement?.closest("input:not(#auto), select");
  if (auto.checked && !document.hidden && !isTyping) draw();
}, EVERY_MS);
window.addEventListener("hashchange", () => {
  draw();
  main.focus({ preventScroll: true });
});
draw();
