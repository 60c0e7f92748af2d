// How far topics are archived: which part of each log is in the lake, in Redis, or in both.

import { ask } from "./api.js";
import { badge, h, heading, svg, table, to } from "./dom.js";

export const lake = {
  title: () => "Lake",

  load: (_, signal) => ask("lake", {}, signal),

  render(data, _, page) {
    const columns = [
      { title: "Topic", wide: true },
      { title: "Partition", number: true },
      { title: "Start", number: true, hint: "First offset, in the lake or in Redis" },
      { title: "In Redis from", number: true },
      { title: "Archived to", number: true, hint: "Offset after the last archived record" },
      { title: "End", number: true },
      { title: "Archived" },
      { title: "State" },
    ];
    const rows = data.partitions.map((each) => ({
      key: `${each.topic} ${each.partition}`,
      cells: [
        h("a", { href: to("topic", { name: each.topic }), "data-row": true }, each.topic),
        each.partition,
        ...[each.start, each.local, each.archived, each.end].map((offset) => h("code", {}, offset ?? "–")),
        share(each),
        progress(each),
      ],
    }));
    const configured = page.overview?.lake;
    return [
      h("div", { class: "head" }, heading("Lake")),
      configured ? null : h("p", { class: "facts" }, "lake.path is not set on this broker: it cannot read archived records."),
      table("Archived partitions", columns, rows, "No topic has remote.storage.enable=true."),
      data.left_out ? h("p", { class: "facts" }, `${data.left_out} more are not shown.`) : null,
    ];
  },
};

const WIDTH = 120;

/** Draw how much of the range of offsets is archived. */
function share({ start, archived, end }) {
  const [first, last] = [BigInt(start ?? 0), BigInt(end ?? 0)];
  const length = last - first;
  if (length <= 0n) return "–";
  const done = archived === null ? 0n : BigInt(archived) - first;
  const permille = Number((done * 1000n) / length);
  const part = Math.min(Math.max(permille, 0), 1000) / 1000;
  return svg(
    "svg",
    { class: "share", viewBox: `0 0 ${WIDTH} 8`, role: "img", "aria-label": `${(part * 100).toFixed(0)} % of offsets archived` },
    svg("rect", { class: "all", width: WIDTH, height: 8, rx: 4 }),
    svg("rect", { class: "done", width: WIDTH * part, height: 8, rx: 4 }),
  );
}

function progress({ archived, end, start }) {
  if (end === null || end === start) return badge("empty");
  if (archived === null) return badge("not started", "busy");
  return BigInt(archived) >= BigInt(end) ? badge("all", "good") : badge("in progress", "busy");
}
