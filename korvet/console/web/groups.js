// Groups: the list, and one group with its members and the lag of each partition.

import { ask, unlocked } from "./api.js";
import { deleteGroup, resetGroup } from "./changes.js";
import { badge, h, heading, table, to } from "./dom.js";
import { count, plural } from "./format.js";
import { filter, steps } from "./listing.js";

const MOODS = { Stable: "good", PreparingRebalance: "busy", CompletingRebalance: "busy", Assigning: "busy", Reconciling: "busy", NotReady: "bad", Dead: "bad" };
const UNKNOWN = "With offset.encoding=time offsets do not count records. The broker whose keeper holds the lease shows the lag once it has counted it.";

const PROTOCOLS = { consumer: " · consumer protocol", share: " · share group", streams: " · streams group" };

const UNCOMMITTED = "auto.offset.reset says whether a consumer starts at the first record or after the last.";
const NOT_BEGUN = "The group has not begun: its share.auto.offset.reset says where it will start.";

/** The lag where offsets are committed, and up to how much it can be where none are. */
function lag(row) {
  const { type, lag, lag_unknown: unknown, uncommitted_count: without, uncommitted } = row;
  const known = lag === null ? null : count(lag);
  const more = unknown ? h("span", { class: "nothing", title: UNKNOWN }, known ? " or more" : "unknown") : null;
  if (!without) return known || more ? [known, more] : "–";
  const shares = type === "share";
  const rest = uncommitted === null ? (shares ? "not begun" : "uncommitted") : `up to ${count(uncommitted)}`;
  return [known, more, h("span", { class: "nothing", title: shares ? NOT_BEGUN : `Nothing is committed: ${UNCOMMITTED}` }, known || more ? ` + ${rest}` : rest)];
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
      { title: "Lag", number: true, hint: "Records after the committed offsets; of share groups those that they are not done with, in partitions of members" },
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
      table("Groups", columns, rows, parameters.get("q") ? "No group matches the filter." : "No groups yet."),
      steps("groups", parameters, data.groups.length, data.total),
    ];
  },
};

export const group = {
  title: (parameters) => parameters.get("name") ?? "Group",

  load: (parameters, signal) => ask("group", { name: parameters.get("name") ?? "" }, signal),

  render(data, _, page) {
    const shares = data.type === "share";
    return [
      h("nav", { class: "path", "aria-label": "Path" }, h("a", { href: "#/groups" }, "Groups"), " / "),
      h(
        "div",
        { class: "head" },
        heading(data.name),
        badge(data.state, MOODS[data.state] ?? ""),
        unlocked()
          ? [
              shares ? null : h("button", { type: "button", onclick: () => resetGroup(page, data) }, "Reset offsets"),
              h("button", { type: "button", class: "danger", onclick: () => deleteGroup(page, data) }, "Delete"),
            ]
          : null,
      ),
      h("p", { class: "facts" }, plural(data.members.length, "member"), PROTOCOLS[data.type] ?? "", data.protocol ? ` · ${data.protocol}` : "", " · lag ", lag(data)),
      data.uncommitted_count
        ? h("p", { class: "facts" }, shares ? `${plural(data.uncommitted_count, "partition")}: ${NOT_BEGUN}` : `No offset is committed in ${plural(data.uncommitted_count, "partition")}: ${UNCOMMITTED}`)
        : null,
      h("h2", {}, "Partitions"),
      offsets(data),
      data.timed_topics.length && !shares
        ? h("p", { class: "facts" }, `Lag counts records. Offsets of ${data.timed_topics.join(", ")} are times (offset.encoding=time): end minus committed offset is not a number of records.`)
        : null,
      h("h2", {}, "Members"),
      members(data),
    ];
  },
};

function offsets(data) {
  const shares = data.type === "share"; // several members may have a partition
  const columns = [
    { title: "Topic", wide: true },
    { title: "Partition", number: true },
    { title: shares ? "Start" : "Committed", number: true },
    { title: "End", number: true },
    { title: "Lag", number: true },
    ...(shares ? [] : [{ title: "Consumer" }]),
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
        ? lag({ type: data.type, lag: null, uncommitted_count: 1, uncommitted: each.uncommitted })
        : lag({ lag: each.lag, lag_unknown: each.lag === null }),
      ...(shares ? [] : [each.member ? h("span", { title: each.member }, each.client || each.member) : h("span", { class: "nothing" }, "none")]),
    ],
  }));
  return table("Partitions", columns, rows, `The group has no ${shares ? "starts" : "committed offsets"} and no assigned partitions.`);
}

function members(data) {
  const columns = [{ title: "Client" }, { title: "Host" }, { title: "Member" }, { title: "Instance" }, { title: "Partitions", wide: true, class: "prose" }];
  const rows = data.members.map((each) => ({
    key: each.id,
    cells: [each.client, h("code", {}, each.host), h("code", {}, each.id), each.instance ?? "–", each.partitions === null ? "unknown" : each.partitions.join(", ") || "none"],
  }));
  return table("Members", columns, rows, "The group has no active members.");
}
