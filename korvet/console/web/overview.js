// This broker: whether it serves, how much goes through it, its processes; and the brokers of its cluster.

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

const TROUBLES = [
  ["restarts", "restart of a process", "restarts of processes"],
  ["produce_errors", "refused batch", "refused batches"],
  ["redis_unavailable", "request failed by Redis", "requests failed by Redis"],
  ["throttled", "throttled request", "throttled requests"],
];

export const overview = {
  title: () => "Overview",

  async load(_, signal) {
    try {
      return await ask("cluster", {}, signal);
    } catch (error) {
      // Its own processes are told nevertheless.
      if (error instanceof Failed) return { problem: error.message, brokers: [] };
      throw error;
    }
  },

  render(cluster, _, page) {
    const told = page.overview;
    if (!told) return [heading("Overview"), h("p", {}, "The broker tells nothing of itself.")];
    return [
      heading("Overview"),
      state(told),
      h("section", { class: "cards", "aria-label": "Traffic" }, FLOWS.map(flow), level(told, "connections", "Connections"), level(told, "in_flight", "In flight")),
      h(
        "div",
        { class: "beside" },
        h("section", {}, h("h2", {}, "Processes"), processes(told)),
        h("section", {}, h("h2", {}, "Brokers"), cluster.problem ? h("p", { class: "alert" }, cluster.problem) : brokers(cluster)),
      ),
    ];
  },
};

function state(told) {
  const { ready } = told;
  const problems = [];
  if (ready.draining) problems.push("The broker is draining: it takes no new clients.");
  if (ready.redis !== "ok") problems.push(`Redis: ${ready.redis}`);
  if (!ready.workers.accepting) problems.push("No worker accepts clients.");
  const troubles = { ...told.totals, restarts: told.restarts };
  const counted = TROUBLES.filter(([name]) => troubles[name] > 0).map(([name, one, more]) =>
    badge(`${count(troubles[name])} ${troubles[name] === 1 ? one : more}`, "busy"),
  );
  return h(
    "section",
    { class: `banner ${ready.ready ? "good" : "bad"}`, "aria-label": "State" },
    h("strong", {}, ready.ready ? "Ready" : "Not ready"),
    h("span", {}, ready.ready ? `${plural(ready.workers.accepting, "worker")} accept${ready.workers.accepting === 1 ? "s" : ""} clients, Redis answers.` : problems.join(" ")),
    counted.length ? h("span", { class: "counted", title: "Since the broker was started" }, counted) : null,
    h("span", { class: "version" }, `Korvet ${told.version}`),
  );
}

function flow([name, title, form]) {
  const now = rate(`total ${name}`);
  return h("div", { class: "card" }, h("span", { class: "label" }, title), h("strong", {}, form(now)), course(`total ${name}`, `${title}, recent course`));
}

function level(told, name, title) {
  return h("div", { class: "card" }, h("span", { class: "label" }, title), h("strong", {}, count(told.totals[name])));
}

function brokers(cluster) {
  const columns = [{ title: "Id", number: true }, { title: "Address", wide: true }, { title: "Rack" }, { title: "Role" }];
  const rows = cluster.brokers.map((each) => [
    each.id,
    h("code", {}, each.address),
    each.rack ?? "–",
    [each.own ? badge("this one") : null, " ", each.controller ? badge("controller") : null],
  ]);
  return table("Brokers", columns, rows, "The cluster has no brokers.");
}

function processes(told) {
  const columns = [{ title: "Process", wide: true }, { title: "State" }, { title: "Process id", number: true }, { title: "Up", number: true }];
  const rows = told.processes.map((each) => [
    each.name,
    // Only workers accept anything; of others the same state says that they do their work.
    badge(each.state === "accepting" && !each.name.startsWith("worker") ? "running" : each.state, MOODS[each.state] ?? ""),
    each.pid || "–",
    duration(told.now - each.started),
  ]);
  return table("Processes", columns, rows);
}
