// This broker: whether it is ready, its traffic and processes; and the brokers of its cluster.

import { ask, Failed } from "./api.js";
import { badge, h, heading, table } from "./dom.js";
import { bytesPerSecond, count, duration, perSecond, plural } from "./format.js";
import { course, rate } from "./rates.js";

const MOODS = { accepting: "good", starting: "busy", draining: "busy", dead: "bad" };

const FLOWS = [
  ["received_bytes", "In", bytesPerSecond],
  ["sent_bytes", "Out", bytesPerSecond],
  ["requests", "Requests", perSecond],
];

const PROBLEMS = [
  ["restarts", "process restart", "process restarts"],
  ["produce_errors", "rejected batch", "rejected batches"],
  ["redis_unavailable", "request failed because of Redis", "requests failed because of Redis"],
  ["throttled", "throttled request", "throttled requests"],
];

export const overview = {
  title: () => "Overview",

  async load(_, signal) {
    try {
      return await ask("cluster", {}, signal);
    } catch (error) {
      // The processes are shown all the same.
      if (error instanceof Failed) return { problem: error.message, brokers: [] };
      throw error;
    }
  },

  render(cluster, _, page) {
    const now = page.overview;
    if (!now) return [heading("Overview"), h("p", {}, "No data from this broker yet.")];
    return [
      heading("Overview"),
      state(now),
      h("section", { class: "cards", "aria-label": "Traffic" }, FLOWS.map(flow), level(now, "connections", "Connections"), level(now, "in_flight", "In flight")),
      h(
        "div",
        { class: "beside" },
        h("section", {}, h("h2", {}, "Processes"), processes(now)),
        h("section", {}, h("h2", {}, "Brokers"), cluster.problem ? h("p", { class: "alert" }, cluster.problem) : brokers(cluster)),
      ),
    ];
  },
};

function state(now) {
  const { ready } = now;
  const problems = [];
  if (ready.draining) problems.push("The broker is shutting down.");
  if (ready.redis !== "ok") problems.push(`Redis: ${ready.redis}`);
  if (!ready.workers.accepting) problems.push("No worker accepts connections.");
  const counts = { ...now.totals, restarts: now.restarts };
  const counted = PROBLEMS.filter(([name]) => counts[name] > 0).map(([name, one, more]) =>
    badge(`${count(counts[name])} ${counts[name] === 1 ? one : more}`, "busy"),
  );
  return h(
    "section",
    { class: `banner ${ready.ready ? "good" : "bad"}`, "aria-label": "State" },
    h("strong", {}, ready.ready ? "Ready" : "Not ready"),
    h("span", {}, ready.ready ? `${plural(ready.workers.accepting, "worker")} accepting connections, Redis answers.` : problems.join(" ")),
    counted.length ? h("span", { class: "counted", title: "Since the broker started" }, counted) : null,
    h("span", { class: "version" }, `Korvet ${now.version}`),
  );
}

function flow([name, title, form]) {
  const now = rate(`total ${name}`);
  return h("div", { class: "card" }, h("span", { class: "label" }, title), h("strong", {}, form(now)), course(`total ${name}`, `${title} over time`));
}

function level(now, name, title) {
  return h("div", { class: "card" }, h("span", { class: "label" }, title), h("strong", {}, count(now.totals[name])));
}

function brokers(cluster) {
  const columns = [{ title: "ID", number: true }, { title: "Address", wide: true }, { title: "Rack" }, { title: "Role" }];
  const rows = cluster.brokers.map((each) => [
    each.id,
    h("code", {}, each.address),
    each.rack ?? "–",
    [each.own ? badge("this one") : null, " ", each.controller ? badge("controller") : null],
  ]);
  return table("Brokers", columns, rows, "No brokers.");
}

function processes(now) {
  const columns = [{ title: "Process", wide: true }, { title: "State" }, { title: "PID", number: true }, { title: "Uptime", number: true }];
  const rows = now.processes.map((each) => [
    each.name,
    // Only workers accept connections; other processes in this state are running.
    badge(each.state === "accepting" && !each.name.startsWith("worker") ? "running" : each.state, MOODS[each.state] ?? ""),
    each.pid || "–",
    duration(now.now - each.started),
  ]);
  return table("Processes", columns, rows);
}
