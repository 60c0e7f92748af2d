// Topics: the list with sizes and traffic, and one topic with its partitions and configs.

import { ask, unlocked } from "./api.js";
import { addPartitions, alterConfig, createTopic, deleteTopic } from "./changes.js";
import { badge, h, heading, table, to } from "./dom.js";
import { bytes, bytesPerSecond, count, duration, perSecond, plural, retention } from "./format.js";
import { filter, steps } from "./listing.js";
import { course, rate, sample } from "./rates.js";

const TRAFFIC = ["received_records", "received_bytes", "sent_records", "sent_bytes"];

const GROWTH = "Growth of the size in Redis; empty while retention removes more than is produced";
const UNLIMITED = "9223372036854775807";

let showAll = false;

function note(name, now, topic) {
  for (const each of TRAFFIC) sample(`topic ${each} ${name}`, now, topic.traffic?.[each]);
  sample(`size ${name}`, now, sizeOf(topic));
}

/** Return the bytes of all partitions; null if that of one is unknown. */
function sizeOf(topic) {
  if (!Array.isArray(topic.partitions)) return topic.size;
  return topic.partitions.some((each) => each.size === null) ? null : topic.partitions.reduce((sum, each) => sum + each.size, 0);
}

export const topics = {
  title: () => "Topics",

  async load(parameters, signal) {
    const data = await ask("topics", { q: parameters.get("q"), from: parameters.get("from") }, signal);
    for (const each of data.topics) note(each.name, data.now, each);
    return data;
  },

  render(data, parameters, page) {
    const columns = [
      { title: "Topic", wide: true },
      { title: "Partitions", number: true },
      { title: "Size", number: true, hint: "Size in Redis" },
      { title: "Growth", number: true, hint: GROWTH },
      { title: "Records in", number: true, hint: "Through this broker" },
      { title: "In", number: true, hint: "Through this broker" },
      { title: "Out", number: true, hint: "Through this broker" },
      { title: "Cleanup" },
      { title: "Retention", number: true },
      { title: "Format" },
    ];
    const rows = data.topics.map((each) => ({
      key: each.name,
      cells: [
        h("a", { href: to("topic", { name: each.name }), "data-row": true }, each.name),
        count(each.partitions),
        bytes(each.size),
        bytesPerSecond(rate(`size ${each.name}`)),
        perSecond(rate(`topic received_records ${each.name}`)),
        bytesPerSecond(rate(`topic received_bytes ${each.name}`)),
        bytesPerSecond(rate(`topic sent_bytes ${each.name}`)),
        each.configs["cleanup.policy"] || "none",
        retention(each.configs["retention.ms"]),
        [each.configs["storage.format"] ?? "–", each.configs["remote.storage.enable"] === "true" ? [" ", badge("lake")] : null],
      ],
    }));
    return [
      h("div", { class: "head" }, heading("Topics"), h("span", { class: "total" }, count(data.total)), filter("topics", parameters, "Filter topics"), unlocked() ? h("button", { type: "button", onclick: () => createTopic(page) }, "Create topic") : null),
      table("Topics", columns, rows, parameters.get("q") ? "No topic matches the filter." : "No topics yet."),
      steps("topics", parameters, data.topics.length, data.total),
    ];
  },
};

export const topic = {
  title: (parameters) => parameters.get("name") ?? "Topic",

  async load(parameters, signal) {
    const data = await ask("topic", { name: parameters.get("name") ?? "" }, signal);
    note(data.name, data.now, data);
    for (const each of data.partitions) sample(`size ${data.name} ${each.partition}`, data.now, each.size);
    return data;
  },

  render(data, _, page) {
    return [
      h("nav", { class: "path", "aria-label": "Path" }, h("a", { href: "#/topics" }, "Topics"), " / "),
      h(
        "div",
        { class: "head" },
        heading(data.name),
        data.internal ? badge("internal") : null,
        h("a", { class: "button", href: to("records", { topic: data.name }) }, "Records"),
        unlocked()
          ? [
              h("button", { type: "button", onclick: () => addPartitions(page, data) }, "Add partitions"),
              h("button", { type: "button", class: "danger", onclick: () => deleteTopic(page, data.name) }, "Delete"),
            ]
          : null,
      ),
      h("p", { class: "facts" }, plural(data.partitions.length, "partition"), " · ", bytes(sizeOf(data)), " · id ", h("code", {}, data.id)),
      h("section", { class: "cards", "aria-label": "Traffic through this broker" }, [
        card(`size ${data.name}`, "Growth", bytesPerSecond),
        card(`topic received_records ${data.name}`, "Records in", perSecond),
        card(`topic received_bytes ${data.name}`, "In", bytesPerSecond),
        card(`topic sent_records ${data.name}`, "Records out", perSecond),
        card(`topic sent_bytes ${data.name}`, "Out", bytesPerSecond),
      ]),
      h("h2", {}, "Partitions"),
      partitions(data),
      configs(data, page),
    ];
  },
};

function card(key, title, form) {
  return h("div", { class: "card" }, h("span", { class: "label" }, title), h("strong", {}, form(rate(key))), course(key, `${title} over time`));
}

function partitions(data) {
  const columns = [
    { title: "Partition", number: true },
    { title: "Leader", number: true },
    { title: "Start", number: true },
    { title: "End", number: true, hint: "Offset of the next record" },
    { title: "Size", number: true },
    { title: "Growth", number: true, hint: GROWTH },
    { title: "Records", wide: true, unseen: true },
  ];
  const rows = data.partitions.map((each) => ({
    key: each.partition,
    cells: [
      each.partition,
      each.leader ?? "–",
      h("code", {}, each.start ?? "–"),
      h("code", {}, each.end ?? "–"),
      bytes(each.size),
      bytesPerSecond(rate(`size ${data.name} ${each.partition}`)),
      h("a", { href: to("records", { topic: data.name, partition: each.partition }), "data-row": true }, "Records"),
    ],
  }));
  return table("Partitions", columns, rows);
}

function configs(data, page) {
  const shown = data.configs.filter((each) => showAll || each.own || !/Has no effect here/.test(each.documentation ?? ""));
  const columns = [{ title: "Config" }, { title: "Value" }, { title: "Source" }, { title: "Description", wide: true, class: "prose" }];
  if (unlocked()) columns.push({ title: "Change", unseen: true });
  const rows = shown.map((each) => ({
    key: each.name,
    class: each.own ? "own" : null,
    cells: [
      h("code", {}, each.name),
      [h("code", {}, each.value === "" ? "(empty)" : (each.value ?? "(secret)")), meaning(each)],
      each.own ? badge("topic") : each.source,
      each.documentation ?? "",
      unlocked() ? h("button", { type: "button", class: "small", "aria-label": `Change ${each.name}`, onclick: () => alterConfig(page, data.name, each) }, "Change") : null,
    ].slice(0, columns.length),
  }));
  const toggle = h("button", { type: "button", class: "small", onclick: () => ((showAll = !showAll), page.draw()) }, showAll ? "Show fewer" : "Show all");
  return [h("div", { class: "head" }, h("h2", {}, "Configs"), toggle), table("Configs", columns, rows)];
}

/** Show a value in ms or bytes in larger units. */
function meaning({ name, value }) {
  if (value === UNLIMITED) return h("span", { class: "meaning" }, "no limit");
  const number = Number(value);
  if (value === "" || value === null || !Number.isSafeInteger(number) || number < 1000) return null;
  if (name.endsWith(".ms")) return h("span", { class: "meaning" }, duration(number));
  if (name.endsWith(".bytes")) return h("span", { class: "meaning" }, bytes(number));
  return null;
}
