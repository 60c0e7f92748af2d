// Transactions: the transactional ids, whose transaction is open, since when, and in which partitions.

import { ask } from "./api.js";
import { badge, h, heading, table, to } from "./dom.js";
import { count, duration } from "./format.js";
import { filter, steps } from "./listing.js";

const MOODS = { Ongoing: "busy", PrepareCommit: "busy", PrepareAbort: "busy", CompleteCommit: "good" };
const PARTITIONS_SHOWN = 5;

export const transactions = {
  title: () => "Transactions",

  load: (parameters, signal) => ask("transactions", { q: parameters.get("q"), from: parameters.get("from") }, signal),

  render(data, parameters) {
    const columns = [
      { title: "Transactional id", wide: true },
      { title: "State" },
      { title: "Open for", number: true },
      { title: "Timeout", number: true, hint: "After it an open transaction is aborted" },
      { title: "Producer id", number: true },
      { title: "Epoch", number: true },
      { title: "Partitions", class: "prose" },
    ];
    const rows = data.transactions.map((each) => ({
      key: each.name,
      cells: [
        each.name || "(empty name)",
        badge(each.state, MOODS[each.state] ?? ""),
        duration(each.start === null ? null : data.now - each.start),
        duration(each.timeout),
        h("code", {}, each.producer),
        each.epoch ?? "–",
        partitions(each.partitions),
      ],
    }));
    return [
      h("div", { class: "head" }, heading("Transactions"), h("span", { class: "total" }, count(data.total)), filter("transactions", parameters, "Filter transactions")),
      data.unanswered.map(({ broker, error }) =>
        h("p", { class: "alert" }, `Broker ${broker} did not answer. Transactions that it coordinates are missing: ${error}`),
      ),
      table("Transactions", columns, rows, parameters.get("q") ? "No transactional id matches the filter." : "No transactional ids yet."),
      steps("transactions", parameters, data.transactions.length, data.total),
    ];
  },
};

/** Links to the topics of the first partitions, and how many more there are. */
function partitions(all) {
  if (!all.length) return "–";
  const links = all.slice(0, PARTITIONS_SHOWN).flatMap((each, at) => [
    at ? ", " : "",
    h("a", { href: to("topic", { name: each.topic }) }, `${each.topic}-${each.partition}`),
  ]);
  return [...links, all.length > PARTITIONS_SHOWN ? ` and ${all.length - PARTITIONS_SHOWN} more` : ""];
}
