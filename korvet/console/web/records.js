// Records of a topic: from an offset or time on, page by page, or followed as they arrive.

import { ask } from "./api.js";
import { block, isCut, line, visible, ways } from "./content.js";
import { h, heading, table, to } from "./dom.js";
import { count, moment, plural } from "./format.js";

const FOLLOW_SECONDS = 1;
const CATCH_UP_SECONDS = 0.2;
const REFRESH_SECONDS = 5;
const KEPT_MAX = 500;
const NAMES_MAX = 100;
const COUNTS = [25, 50, 100, 200];
const SEEKS = [
  ["newest", "newest"],
  ["earliest", "earliest"],
  ["offset", "offset"],
  ["time", "time"],
];

/** What was read for the current page. */
let state = fresh();

function fresh() {
  return { names: null, partitions: null, rows: null, next: null, logs: [], problems: [], unfinished: [], follow: false, asked: false, opened: new Set(), whole: new Map(), way: new Map(), text: "" };
}

export const records = {
  title: (parameters) => (parameters.get("topic") ? `Records of ${parameters.get("topic")}` : "Records"),

  enter() {
    state = fresh();
  },

  seconds() {
    if (!state.follow) return REFRESH_SECONDS;
    return isBehind() ? CATCH_UP_SECONDS : FOLLOW_SECONDS;
  },

  async load(parameters, signal) {
    const now = state;
    const topic = parameters.get("topic");
    now.names ??= (await ask("topics", { count: NAMES_MAX }, signal)).topics.map((each) => each.name);
    if (topic) {
      now.partitions ??= (await ask("topic", { name: topic }, signal)).partitions.length;
      await read(parameters, signal);
    }
    return { topics: now.names, partitions: now.partitions ?? 0 };
  },

  render(data, parameters, page) {
    const topic = parameters.get("topic");
    return [
      topic ? h("nav", { class: "path", "aria-label": "Path" }, h("a", { href: to("topic", { name: topic }) }, topic), " / ") : null,
      h("div", { class: "head" }, heading("Records")),
      form(data, parameters),
      topic && state.rows ? found(parameters, page) : h("p", { class: "facts" }, topic ? "Reading…" : "Choose a topic."),
    ];
  },
};

/** Read what the page shows: once from an offset, again for the newest records, continuously while following. */
async function read(parameters, signal) {
  const now = state;
  const place = { topic: parameters.get("topic"), partition: parameters.get("partition") || "all", count: parameters.get("count") || 50 };
  if (now.follow) {
    const data = await ask("records", { ...place, count: 200, at: now.next }, signal);
    const known = new Set(now.rows.map(keyOf));
    now.rows = [...now.rows, ...data.records.filter((each) => !known.has(keyOf(each)))].slice(-KEPT_MAX);
    Object.assign(now, { next: data.next, logs: data.logs, problems: data.problems, unfinished: data.unfinished });
    return;
  }
  if (now.asked && !isNewest(parameters)) return;
  const at = parameters.get("at");
  const seek = parameters.get("seek") || "newest";
  const sought = at ? { at } : { seek, to: seek === "offset" || seek === "time" ? parameters.get("to") : null };
  const data = await ask("records", { ...place, ...sought }, signal);
  // Open records stay, even if newer ones have arrived.
  const known = new Set(data.records.map(keyOf));
  const held = (now.rows ?? []).filter((each) => now.opened.has(keyOf(each)) && !known.has(keyOf(each)));
  Object.assign(now, { rows: [...held, ...data.records], next: data.next, logs: data.logs, problems: data.problems, unfinished: data.unfinished, asked: true });
}

function isNewest(parameters) {
  return !parameters.get("at") && (parameters.get("seek") || "newest") === "newest";
}

/** Whether there are more records than were read. */
function isBehind() {
  return state.logs.some((each) => BigInt(each.at) < BigInt(each.end));
}

function keyOf(record) {
  return `${record.partition}:${record.offset}`;
}

function form(data, parameters) {
  const seek = parameters.get("seek") || "newest";
  const partitions = Array.from({ length: data.partitions }, (_, index) => [String(index), String(index)]);
  const choose = (event) => {
    const fields = event.target.closest("form").elements;
    fields.offset.closest("label").hidden = fields.seek.value !== "offset";
    fields.time.closest("label").hidden = fields.seek.value !== "time";
  };
  const go = (event) => {
    event.preventDefault();
    const fields = event.target.elements;
    const time = fields.time.value ? new Date(fields.time.value).getTime() : Date.now();
    const sought = { newest: null, earliest: null, offset: fields.offset.value.trim() || "0", time: String(time) }[fields.seek.value];
    const wanted = to("records", {
      topic: fields.topic.value.trim(),
      partition: fields.topic.value.trim() === parameters.get("topic") ? fields.partition.value : "",
      seek: fields.seek.value,
      to: sought,
      count: fields.count.value,
    });
    if (wanted === location.hash) window.dispatchEvent(new HashChangeEvent("hashchange"));
    else location.hash = wanted;
  };
  return h(
    "form",
    { class: "seek", onsubmit: go, autocomplete: "off" },
    h("label", { class: "grows" }, "Topic", h("input", { name: "topic", list: "topic-names", value: parameters.get("topic") ?? "", required: true, spellcheck: "false", maxlength: 249 })),
    h("datalist", { id: "topic-names" }, data.topics.map((each) => h("option", { value: each }))),
    h("label", {}, "Partition", select("partition", [["", "all"], ...partitions], parameters.get("partition") ?? "")),
    h("label", {}, "From", select("seek", SEEKS, seek, choose)),
    h("label", { hidden: seek !== "offset" }, "Offset", h("input", { name: "offset", inputmode: "numeric", pattern: "[0-9]{1,19}", value: seek === "offset" ? parameters.get("to") : "" })),
    h("label", { hidden: seek !== "time" }, "Time", h("input", { name: "time", type: "datetime-local", step: "1", value: localTime(seek === "time" ? Number(parameters.get("to")) : Date.now() - 3600_000) })),
    h("label", {}, "Records", select("count", COUNTS.map((each) => [String(each), String(each)]), parameters.get("count") ?? "50")),
    h("button", { class: "main" }, "Show"),
  );
}

function select(name, options, chosen, onchange = null) {
  return h("select", { name, onchange }, options.map(([value, text]) => h("option", { value, selected: value === chosen }, text)));
}

function localTime(milliseconds) {
  return moment(Math.floor(milliseconds / 1000) * 1000).slice(0, 19).replace(" ", "T");
}

function found(parameters, page) {
  const descending = state.follow || isNewest(parameters);
  const wanted = state.text.toLowerCase();
  const matching = state.rows.filter((each) => !wanted || textOf(each).includes(wanted));
  const ordered = descending ? matching.toReversed() : matching;
  const follow = () => {
    state.follow = !state.follow;
    page.refresh();
  };
  const find = (event) => {
    state.text = event.target.value;
    page.draw();
  };
  const more = isBehind();
  return [
    h(
      "div",
      { class: "head below" },
      h("span", { class: "facts" }, plural(matching.length, "record"), wanted ? ` of ${count(state.rows.length)}` : "", descending ? ", newest first" : ""),
      h("label", { class: "filter" }, h("span", { class: "unseen" }, "Find in these records"), h("input", { type: "search", placeholder: "Find in these records", oninput: find, spellcheck: "false", autocomplete: "off" })),
      h("button", { type: "button", class: state.follow ? "live" : null, "aria-pressed": String(state.follow), onclick: follow }, state.follow ? "Following" : "Follow"),
    ),
    state.problems.map((each) => h("p", { class: "alert" }, each)),
    state.unfinished.length ? unfinished(parameters) : null,
    grid(parameters, ordered, page),
    state.follow || !more || (descending && !state.unfinished.length)
      ? null
      : h("nav", { class: "steps", "aria-label": "Pages" }, h("a", { href: to("records", { ...Object.fromEntries(parameters), at: state.next }) }, "Next →")),
  ];
}

/** Where to go on after a search for the newest records that took too long. */
function unfinished(parameters) {
  const links = state.unfinished.map((partition) => [" ", h("a", { href: to("records", { ...Object.fromEntries(parameters), partition }) }, `Partition ${partition}`)]);
  return h("p", { class: "facts" }, "Not all of the newest records were read in time. ", parameters.get("partition") ? "Choose fewer records, or go on." : ["Read one partition alone:", links]);
}

/** All that can be searched of a record. */
function textOf(record) {
  const headers = record.headers.flatMap((each) => [each.name, each.value?.text ?? ""]);
  return [record.offset, record.key?.text ?? "", record.value?.text ?? "", ...headers].join("\n").toLowerCase();
}

function grid(parameters, rows, page) {
  const columns = [
    { title: "Partition", number: true },
    { title: "Offset", number: true },
    { title: "Time", hint: "Local time; open a record to see UTC" },
    { title: "Key", class: "content" },
    { title: "Value", wide: true, class: "content" },
    { title: "Headers", number: true },
    { title: "Size", number: true, hint: "Bytes of the value" },
  ];
  const shown = rows.flatMap((each) => {
    const key = keyOf(each);
    const open = state.opened.has(key);
    const toggle = () => {
      if (open) state.opened.delete(key);
      else opening(parameters, each, page);
      page.draw();
    };
    const row = {
      key,
      class: open ? "opened" : null,
      cells: [
        each.partition,
        h("button", { type: "button", class: "plain", "data-row": true, "aria-expanded": String(open), onclick: toggle }, h("code", {}, each.offset)),
        h("time", {}, moment(each.timestamp)),
        line(each.key),
        line(each.value),
        each.header_count || "",
        each.value === null ? "" : count(each.value.bytes),
      ],
    };
    return open ? [row, { key: `${key} detail`, detail: detail(state.whole.get(key) ?? each, key, page) }] : [row];
  });
  return table("Records", columns, shown, state.text ? "None of these records matches." : "No records.");
}

/** Open a record, and read all of it if only its begin is known. */
async function opening(parameters, record, page) {
  const now = state;
  const key = keyOf(record);
  now.opened.add(key);
  const cut = isCut(record.key) || isCut(record.value) || record.headers.length < record.header_count || record.headers.some((each) => isCut(each.value));
  if (!cut || now.whole.has(key)) return;
  try {
    const whole = await ask("record", { topic: parameters.get("topic"), partition: record.partition, offset: record.offset });
    now.whole.set(key, whole);
  } catch (error) {
    now.problems = [`offset ${record.offset}: ${error.message}`];
  }
  if (now === state) page.draw();
}

function detail(record, key, page) {
  // Several may be open: what has a name says whose it is.
  const where = `partition ${record.partition}, offset ${record.offset}`;
  return h(
    "div",
    { class: "record" },
    h("p", { class: "facts" }, `${where}, `, record.timestamp < 0 ? "no timestamp" : `${moment(record.timestamp, { utc: true })} UTC (${record.timestamp})`),
    part("Key", where, record.key, `${key} key`, page),
    part("Value", where, record.value, `${key} value`, page),
    record.header_count ? headers(record, where) : null,
  );
}

function part(title, where, content, key, page) {
  const possible = ways(content);
  const way = possible.includes(state.way.get(key)) ? state.way.get(key) : possible[0];
  const choices = possible.map((each) =>
    h(
      "button",
      {
        type: "button",
        class: "small",
        "aria-pressed": String(each === way),
        onclick: () => {
          state.way.set(key, each);
          page.draw();
        },
      },
      { json: "JSON", text: "Text", hex: "Hex" }[each],
    ),
  );
  const size = content === null ? "" : `${plural(content.bytes, "byte")}${isCut(content) ? ", truncated" : ""}`;
  return h(
    "section",
    { "aria-label": `${title}, ${where}` },
    h("div", { class: "head" }, h("h2", {}, title), h("span", { class: "facts" }, size), possible.length > 1 ? h("span", { class: "choice", role: "group", "aria-label": `How ${title} is shown` }, choices) : null),
    block(content, way),
  );
}

function headers(record, where) {
  const columns = [{ title: "Header" }, { title: "Value", wide: true, class: "content" }];
  const rows = record.headers.map((each) => [h("code", {}, visible(each.name) || "(empty)"), line(each.value)]);
  const left = record.header_count - record.headers.length;
  return h("section", {}, h("h2", {}, "Headers"), table(`Headers, ${where}`, columns, rows), left ? h("p", { class: "facts" }, `${left} more`) : null);
}
