// Consumer groups: the list, and one group with its members and the lag of each partition.

import { ask, unlocked } from "./api.js";
import { deleteGroup, resetGroup } from "./changes.js";
import { badge, h, heading, table, to } from "./dom.js";
import { count, plural } from "./format.js";
import { filter, steps } from "./listing.js";

const MOODS = { Stable: "good", PreparingRebalance: "busy", CompletingRebalance: "busy", Assigning: "busy", Reconciling: "busy", Dead: "bad" };
const UNKNOWN = "In storage format record offsets do not count records. The broker whose keeper holds the lease shows the lag once it has counted it.";

const UNCOMMITTED = "auto.offset.reset says whether a consumer starts at the first record or after the last.";

/** The lag where offsets are committed, and up to how much it can be where none are. */
function lag(row) {
  const { lag, lag_unknown: unknown, uncommitted_count: without, uncommitted } = row;
  const known = lag === null ? null : count(lag);
  const more = unknown ? h("span", { class: "nothing", title: UNKNOWN }, known ? " or more" : "unknown") : null;
  if (!without) return known || more ? [known, more] : "–";
  const rest = uncommitted === null ? "uncommitted" : `up to ${count(uncommitted)}`;
  return [known, more, h("span", { class: "nothing", title: `Nothing is committed: ${UNCOMMITTED}` }, known || more ? ` + ${rest}` : rest)];
}

export const groups = {
  title: () => "Groups",

  load: (parameters, signal) => ask("groups", { q: parameters.get("q"), from: parameters.get("from") }, signal),

  render(data, parameters) {
    const columns = [
      { title: "Group", wide: true },
      { title: "State" },
      { title: "Type" },
      { title: "Members", number: true },
      { title: "Partitions", number: true },
      { title: "Lag", number: true, hint: "Records after the committed offsets" },
      { title: "Topics", class: "prose" },
    ];
    const rows = data.groups.map((each) => ({
      key: each.name,
      cells: [
        h("a", { href: to("group", { name: each.name }), "data-row": true }, each.name || "(empty name)"),
        badge(each.state || "unknown", MOODS[each.state] ?? ""),
        each.type || "–",
        count(each.count),
        count(each.partition_count),
        lag(each),
        each.topics.slice(0, 5).join(", ") + (each.topics.length > 5 ? ` and ${each.topics.length - 5} more` : "") || "–",
      ],
    }));
    return [
      h("div", { class: "head" }, heading("Groups"), h("span", { class: "total" }, count(data.total)), filter("groups", parameters, "Filter groups")),
      table("Groups", columns, rows, parameters.get("q") ? "No group matches the filter." : "No consumer groups yet."),
      steps("groups", parameters, data.groups.length, data.total),
    ];
  },
};

export const group = {
  title: (parameters) => parameters.get("name") ?? "Group",

  load: (parameters, signal) => ask("group", { name: parameters.get("name") ?? "" }, signal),

  render(data, _, page) {
    return [
      h("nav", { class: "path", "aria-label": "Path" }, h("a", { href: "#/groups" }, "Groups"), " / "),
      h(
        "div",
        { class: "head" },
        heading(data.name),
        badge(data.state, MOODS[data.state] ?? ""),
        unlocked()
          ? [
              h("button", { type: "button", onclick: () => resetGroup(page, data) }, "Reset offsets"),
              h("button", { type: "button", class: "danger", onclick: () => deleteGroup(page, data.name) }, "Delete"),
            ]
          : null,
      ),
      h("p", { class: "facts" }, plural(data.members.length, "member"), data.type === "consumer" ? " · consumer protocol" : "", data.protocol ? ` · ${data.protocol}` : "", " · lag ", lag(data)),
      data.uncommitted_count ? h("p", { class: "facts" }, `No offset is committed in ${plural(data.uncommitted_count, "partition")}: ${UNCOMMITTED}`) : null,
      h("h2", {}, "Partitions"),
      offsets(data),
      h("h2", {}, "Members"),
      members(data),
    ];
  },
};

function offsets(data) {
  const columns = [
    { title: "Topic", wide: true },
    { title: "Partition", number: true },
    { title: "Committed", number: true },
    { title: "End", number: true },
    { title: "Lag", number: true },
    { title: "Consumer" },
  ];
  const rows = data.offsets.map((each) => ({
    key: `${each.topic} ${each.partition}`,
    cells: [
      h("a", { href: to("topic", { name: each.topic }), "data-row": true }, each.topic),
      each.partition,
      each.committed === null
        ? h("span", { class: "nothing" }, "none")
        : h("a", { href: to("records", { topic: each.topic, partition: each.partition, seek: "offset", to: each.committed }), title: "Records from this offset on" }, h("code", {}, each.committed)),
      h("code", {}, each.end ?? "deleted"),
      each.committed === null
        ? lag({ lag: null, uncommitted_count: 1, uncommitted: each.uncommitted })
        : lag({ lag: each.lag, lag_unknown: each.lag === null }),
      each.member ? h("span", { title: each.member }, each.client || each.member) : h("span", { class: "nothing" }, "none"),
    ],
  }));
  return table("Partitions", columns, rows, "The group has no committed offsets and no assigned partitions.");
}

function members(data) {
  const columns = [{ title: "Client" }, { title: "Host" }, { title: "Member" }, { title: "Instance" }, { title: "Partitions", wide: true, class: "prose" }];
  const rows = data.members.map((each) => ({
    key: each.id,
    cells: [each.client, h("code", {}, each.host), h("code", {}, each.id), each.instance ?? "–", each.partitions === null ? "unknown" : each.partitions.join(", ") || "none"],
  }));
  return table("Members", columns, rows, "The group has no active members.");
}
