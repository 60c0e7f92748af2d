// This broker: whether it is ready, its traffic and processes; and the brokers of its cluster.

import { ask, Failed } from "./api.js";
import { badge, h, heading, svg, table, to } from "./dom.js";
import { bytes, bytesPerSecond, count, duration, moment, perSecond, plural } from "./format.js";
import { course, rate } from "./rates.js";

const MOODS = { accepting: "good", starting: "busy", draining: "busy", dead: "bad" };

const FLOWS = [
  ["received_records", "Records in", perSecond],
  ["received_bytes", "In", bytesPerSecond],
  ["sent_records", "Records out", perSecond],
  ["sent_bytes", "Out", bytesPerSecond],
  ["requests", "Requests", perSecond],
];

/** The part of the memory limit from which on it is shown as a problem. */
const FULL = 0.8;

const PROBLEMS = [
  ["restarts", "process restart", "process restarts"],
  ["produce_errors", "refused batch", "refused batches"],
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
      h("section", { class: "cards", "aria-label": "Cluster and storage" }, amounts(cluster, now), storage(now)),
      now.redis.length > 1 ? h("section", {}, h("h2", {}, "Nodes of Redis"), nodes(cluster, now)) : null,
      now.refused.length ? h("section", {}, h("h2", {}, "Refused batches"), refused(now)) : null,
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
  // A Redis that does not answer is named already.
  if (ready.redis === "ok" && ready.producers !== "ok") problems.push(`Producers are ${ready.producers}`);
  if (!ready.workers.accepting) problems.push("No worker accepts connections.");
  const counts = { ...now.totals, restarts: now.restarts };
  const counted = PROBLEMS.filter(([name]) => counts[name] > 0).map(([name, one, more]) =>
    badge(`${count(counts[name])} ${counts[name] === 1 ? one : more}`, "busy"),
  );
  // A broker is ready with one master of a Redis Cluster: those that are away are a problem all the same.
  const well = ready.ready && !problems.length;
  return h(
    "section",
    { class: `banner ${well ? "good" : "bad"}`, "aria-label": "State" },
    h("strong", {}, ready.ready ? "Ready" : "Not ready"),
    h("span", {}, well ? `${plural(ready.workers.accepting, "worker")} accepting connections, Redis answers.` : problems.join(" ")),
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

function card(title, value, more = null, href = null) {
  return h(
    "div",
    { class: "card" },
    h("span", { class: "label" }, title),
    h("strong", {}, href ? h("a", { href }, value) : value),
    more === null ? null : h("span", { class: "more" }, more),
  );
}

/** How much the cluster has; nothing is known while it does not answer. */
function amounts(cluster, now) {
  const { lag } = cluster;
  // One broker alone counts as soon as its keeper has the lease.
  const soon = now.totals.keeper_leader || cluster.brokers.every((each) => each.own);
  const uncounted = soon ? "not counted here yet" : "not counted here: the broker does whose keeper holds the lease";
  return [
    card("Topics", count(cluster.topics), cluster.problem ? null : plural(cluster.partitions, "partition"), "#/topics"),
    card("Groups", count(cluster.groups), null, "#/groups"),
    lag?.group
      ? card("Largest lag", count(lag.records), lag.group, to("group", { name: lag.group }))
      : card("Largest lag", lag ? "0" : "–", lag ? "no group has committed" : cluster.problem ? null : uncounted),
  ];
}

/** What the one Redis says of memory, durability and replicas; the nodes of a cluster have a table. */
function storage({ redis: nodes }) {
  if (nodes.length > 1) return [];
  const [redis] = nodes;
  if (redis?.memory === undefined) return card("Redis", "no answer");
  const { memory, memory_max: most, replicas_wanted: wanted } = redis;
  const part = most ? Math.min(memory / most, 1) : null;
  const percent = part === null ? null : `${(part * 100).toFixed(part < 0.1 ? 1 : 0)} %`;
  const fsync = redis.fsync ? `append-only file, fsync ${redis.fsync}` : "append-only file";
  return [
    card("Redis memory", bytes(memory), most ? [`${percent} of ${bytes(most)}`, share(part, `${percent} of the limit`)] : "no limit (maxmemory)"),
    redis.aof && redis.persists
      ? card("Durability", "on disk", fsync)
      : card("Durability", badge(redis.aof ? "failing" : "in memory", "bad"), redis.aof ? "the last write to disk failed" : "no append-only file: a restart loses records"),
    redis.master
      ? card("Replicas", redis.replicas < wanted ? badge(`${redis.replicas} of ${wanted}`, "bad") : count(redis.replicas), wanted ? `${wanted} wanted` : "none wanted (replicas, min.insync.replicas)")
      : card("Replicas", badge("no master", "bad"), "this Redis is a replica: it takes no writes"),
  ];
}

/** The masters of a Redis Cluster. */
function nodes(cluster, now) {
  const columns = [
    { title: "Node", wide: true },
    { title: "Partitions", number: true },
    { title: "Logs", number: true, hint: "Bytes of entries" },
    { title: "Memory", number: true },
    { title: "Limit", number: true, hint: "maxmemory" },
    { title: "Commands", number: true },
    { title: "CPU", number: true, hint: "Share of one core" },
    { title: "Replicas", number: true },
    { title: "Durability" },
  ];
  const rows = now.redis.map((each) => {
    const held = cluster.nodes?.[each.node];
    const logs = [held ? count(held.partitions) : "–", held ? bytes(held.bytes) : "–"];
    if (each.memory === undefined) return [h("code", {}, each.node), ...logs, badge("no answer", "bad"), "–", "–", "–", "–", "–"];
    const cpu = rate(`node ${each.node} cpu`);
    const full = each.memory_max && each.memory / each.memory_max > FULL;
    return [
      h("code", {}, each.node),
      ...logs,
      full ? badge(bytes(each.memory), "bad") : bytes(each.memory),
      each.memory_max ? bytes(each.memory_max) : "none",
      perSecond(rate(`node ${each.node} commands`)),
      cpu === null ? "–" : `${(cpu * 100).toFixed(0)} %`,
      each.replicas < each.replicas_wanted ? badge(`${each.replicas} of ${each.replicas_wanted}`, "bad") : count(each.replicas),
      each.aof && each.persists ? "on disk" : badge(each.aof ? "failing" : "in memory", "bad"),
    ];
  });
  return table("Nodes of Redis", columns, rows);
}

function share(part, label) {
  return svg(
    "svg",
    { class: `share ${part > FULL ? "full" : ""}`, viewBox: "0 0 120 8", preserveAspectRatio: "none", role: "img", "aria-label": label },
    svg("rect", { class: "all", width: 120, height: 8, rx: 4 }),
    svg("rect", { class: "done", width: 120 * part, height: 8, rx: 4 }),
  );
}

function refused(now) {
  const columns = [
    { title: "Error", wide: true },
    { title: "Batches", number: true, hint: "Since the broker started" },
    { title: "Last", hint: "Local time" },
    { title: "Ago", number: true },
  ];
  const rows = now.refused.map((each) => ({
    key: each.error,
    cells: [h("code", {}, each.error), count(each.batches), each.last ? moment(each.last).slice(0, 19) : "–", each.last ? duration(now.now - each.last) : "–"],
  }));
  return table("Refused batches", columns, rows);
}

function brokers(cluster) {
  const columns = [{ title: "ID", number: true }, { title: "Address", wide: true }, { title: "Rack" }, { title: "Version" }, { title: "Format", number: true, hint: "Highest format of data" }, { title: "Role" }];
  const rows = cluster.brokers.map((each) => [
    each.id,
    h("code", {}, each.address),
    each.rack ?? "–",
    each.version ?? "–",
    each.format ?? "–",
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
