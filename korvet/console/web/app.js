// The console: which page is shown, when it is refreshed, and what the keys do.

import { readiness, ask, lock, unlocked } from "./api.js";
import { askForToken } from "./changes.js";
import { badge, h, heading, show } from "./dom.js";
import { group, groups } from "./groups.js";
import { lake } from "./lake.js";
import { overview } from "./overview.js";
import { sample } from "./rates.js";
import { records } from "./records.js";
import { topic, topics } from "./topics.js";
import { transactions } from "./transactions.js";

const REFRESH_SECONDS = 5;

// Each page: {title, load(parameters, signal) -> data, render(data, parameters, page) -> elements, seconds}.
const PAGES = { "": overview, topics, topic, groups, group, records, lake, transactions, unknown: unknown() };
const SECTIONS = [
  ["", "Overview", ["overview"]],
  ["topics", "Topics", ["topics", "topic"]],
  ["groups", "Groups", ["groups", "group"]],
  ["records", "Records", ["records"]],
  ["lake", "Lake", ["lake"]],
  ["transactions", "Transactions", ["transactions"]],
];

const at = (id) => document.getElementById(id);
const kept = {
  get: (name) => {
    try {
      return localStorage.getItem(`korvet.${name}`);
    } catch {
      return null;
    }
  },
  set: (name, value) => {
    try {
      localStorage.setItem(`korvet.${name}`, value);
    } catch {
      // A browser without storage: the setting is lost with the page.
    }
  },
};

/** The state of the whole page. */
const page = {
  name: null,
  parameters: new URLSearchParams(),
  data: null,
  overview: null,
  readAt: -Infinity,
  paused: false,
  keys: kept.get("keys") !== "off",
  abort: null,
  timer: 0,
  /** Read the data again, now. */
  refresh: () => refresh(),
  /** Draw the known data again. */
  draw: () => draw(),
  /** Show for a moment that something was done. */
  say,
};

function route() {
  const [name, query] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const known = Object.hasOwn(PAGES, name) ? name : "unknown";
  const moved = known !== page.name;
  page.name = known;
  page.parameters = new URLSearchParams(query ?? "");
  page.data = null;
  PAGES[known].enter?.(page.parameters);
  document.title = `${PAGES[known].title(page.parameters)} – Korvet`;
  drawNavigation();
  show(at("main"), h("p", { class: "waiting" }, "Loading…"));
  if (moved) window.scrollTo(0, 0);
  refresh(true);
}

/** The page of all addresses that lead nowhere. */
function unknown() {
  return {
    title: () => "Page not found",
    load: () => location.hash,
    render: (address) => [
      heading("Page not found"),
      h("p", {}, "The console has no page ", h("code", {}, address), "."),
      h("a", { class: "button", href: "#/" }, "Overview"),
    ],
  };
}

async function refresh(entered = false) {
  page.abort?.abort();
  clearTimeout(page.timer);
  const abort = (page.abort = new AbortController());
  const shown = PAGES[page.name];
  // A page that refreshes more often does not read the overview each time.
  const due = performance.now() - page.readAt >= REFRESH_SECONDS * 900;
  const [state, data] = await Promise.allSettled([
    due ? Promise.all([ask("overview", {}, abort.signal), readiness()]) : null,
    shown.load(page.parameters, abort.signal, page),
  ]);
  if (abort.signal.aborted) return;
  if (due) {
    page.readAt = state.status === "fulfilled" ? performance.now() : -Infinity;
    if (state.status === "fulfilled") note(...state.value);
    drawState(state);
  }
  if (data.status === "fulfilled") {
    page.data = data.value;
    complain(null);
    draw();
    if (entered) at("main").querySelector("h1")?.focus({ preventScroll: true });
  } else {
    complain(data.reason);
    if (page.data === null) show(at("main"), h("h1", { tabindex: "-1" }, shown.title(page.parameters)));
  }
  later();
}

function later() {
  clearTimeout(page.timer);
  if (page.paused || document.hidden) return;
  const seconds = PAGES[page.name].seconds?.() ?? REFRESH_SECONDS;
  page.timer = setTimeout(() => refresh(), seconds * 1000);
}

function draw() {
  if (page.data === null) return;
  show(at("main"), PAGES[page.name].render(page.data, page.parameters, page));
}

function note(overview, ready) {
  page.overview = { ...overview, ready };
  for (const [name, value] of Object.entries(overview.totals)) sample(`total ${name}`, overview.now, value);
  for (const { node, commands, cpu_seconds: cpu } of overview.redis) {
    sample(`node ${node} commands`, overview.now, commands);
    sample(`node ${node} cpu`, overview.now, cpu);
  }
}

function drawNavigation() {
  const links = SECTIONS.map(([name, title, pages], index) =>
    h(
      "a",
      {
        href: `#/${name}`,
        "aria-current": pages.includes(page.name || "overview") ? "page" : null,
        "aria-keyshortcuts": String(index + 1),
        title: `${title} (${index + 1})`,
      },
      title,
    ),
  );
  show(at("nav"), links);
}

function drawState(outcome) {
  const { overview: now } = page;
  if (outcome.status === "rejected") {
    show(at("state"), badge("no answer", "bad"));
  } else if (now) {
    const mood = now.ready.ready ? "good" : "bad";
    const word = now.ready.ready ? "ready" : now.draining ? "draining" : "not ready";
    show(at("state"), badge(word, mood), h("span", { class: "cluster" }, `broker ${now.broker} · ${now.cluster}`));
  }
  drawTools();
}

function drawTools() {
  const pause = at("pause");
  pause.textContent = page.paused ? "Paused" : "Live";
  pause.className = page.paused ? "" : "live";
  pause.setAttribute("aria-pressed", String(page.paused));
  pause.title = page.paused ? "Resume refreshing the page (p)" : "Pause refreshing the page (p)";
  const theme = document.documentElement.dataset.theme ?? "auto";
  at("theme").textContent = `◐ ${{ auto: "Auto", light: "Light", dark: "Dark" }[theme]}`;
  at("theme").title = `Theme: ${theme} (d)`;
  at("theme").setAttribute("aria-label", `Theme: ${theme}`);
  const token = at("token");
  token.hidden = !page.overview?.changes;
  token.textContent = unlocked() ? "Lock" : "Unlock";
  token.title = unlocked() ? "Forget the token" : "Enter the token for changes";
}

function complain(error) {
  const alert = at("alert");
  alert.hidden = error === null;
  alert.textContent = error === null ? "" : `${error.message}${page.data ? "; showing older data." : ""}`;
}

let saying = 0;

function say(text) {
  const said = at("said");
  clearTimeout(saying);
  said.textContent = text;
  said.hidden = false;
  saying = setTimeout(() => (said.hidden = true), 6000);
}

function pause() {
  page.paused = !page.paused;
  drawTools();
  if (page.paused) clearTimeout(page.timer);
  else refresh();
}

function changeTheme() {
  const order = ["auto", "light", "dark"];
  const now = document.documentElement.dataset.theme ?? "auto";
  const next = order[(order.indexOf(now) + 1) % order.length];
  if (next === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  kept.set("theme", next);
  drawTools();
}

async function changeToken() {
  if (unlocked()) lock();
  else await askForToken();
  drawTools();
  draw();
}

const KEYS = [
  ["1 – 5", "go to a section"],
  ["/", "go to the filter, or the first field"],
  ["j  k", "next row, previous row"],
  ["Enter", "open the row"],
  ["r", "refresh now"],
  ["p", "pause or resume refreshing"],
  ["d", "theme: system, light, dark"],
  ["?", "show this list"],
  ["Esc", "close"],
];

function help() {
  const dialog = at("dialog");
  const toggle = h("input", {
    type: "checkbox",
    checked: page.keys,
    onchange: (event) => {
      page.keys = event.target.checked;
      kept.set("keys", page.keys ? "on" : "off");
    },
  });
  dialog.replaceChildren(
    h("h2", {}, "Keyboard shortcuts"),
    h("dl", { class: "keys" }, KEYS.map(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)])),
    h("label", { class: "toggle" }, toggle, " Enable single-key shortcuts"),
    h("form", { method: "dialog", class: "buttons" }, h("button", { autofocus: true }, "Close")),
  );
  dialog.showModal();
}

function move(step) {
  const links = [...document.querySelectorAll("main tbody [data-row]")];
  if (!links.length) return;
  const now = links.indexOf(document.activeElement);
  const next = now < 0 ? (step > 0 ? 0 : links.length - 1) : Math.min(Math.max(now + step, 0), links.length - 1);
  links[next].focus();
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || at("dialog").open) return;
  if (event.target.closest("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (!page.keys && event.key !== "?") return;
  const section = SECTIONS[Number(event.key) - 1];
  const actions = {
    r: () => refresh(),
    p: pause,
    d: changeTheme,
    j: () => move(1),
    k: () => move(-1),
    "?": help,
    "/": () => document.querySelector("main input, main select")?.focus(),
  };
  if (section) location.hash = `#/${section[0]}`;
  else if (Object.hasOwn(actions, event.key)) actions[event.key]();
  else return;
  event.preventDefault();
}

/** Open a row, wherever it is clicked, unless it was for a control in it or to select text. */
function onClick(event) {
  const opener = event.target.closest("tbody tr")?.querySelector("[data-row]");
  if (!opener || event.target.closest("a, button") || getSelection().type === "Range") return;
  opener.click();
}

at("pause").onclick = pause;
at("theme").onclick = changeTheme;
at("token").onclick = changeToken;
at("help").onclick = help;
document.querySelector(".skip").onclick = (event) => {
  event.preventDefault();
  at("main").focus();
};
at("main").addEventListener("click", onClick);
document.addEventListener("keydown", onKey);
document.addEventListener("visibilitychange", () => (document.hidden || page.paused ? undefined : refresh()));
window.addEventListener("hashchange", route);
document.addEventListener("korvet.refresh", () => refresh());
drawTools();
route();
