// Changes, each in a dialog that says what will happen; and the token that they require.

import { change, lock, unlock } from "./api.js";
import { h, table } from "./dom.js";

const dialog = document.getElementById("dialog");

/**
 * Ask for input in a dialog. If `done(values)` throws, the dialog shows the error and stays open; it returns
 * what to show instead of closing, or nothing.
 */
function asked({ title, fields = [], text = null, action, danger = false, done }) {
  return new Promise((closed) => {
    const problem = h("p", { class: "alert", role: "alert", hidden: true });
    const result = h("div", {});
    const submit = h("button", { class: danger ? "danger" : "main" }, action);
    const form = h(
      "form",
      { autocomplete: "off" },
      h("h2", { id: "dialog-title" }, title),
      text === null ? null : h("p", {}, text),
      fields,
      result,
      problem,
      h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), submit),
    );
    form.onsubmit = async (event) => {
      event.preventDefault();
      submit.disabled = true;
      problem.hidden = true;
      try {
        const values = Object.fromEntries(new FormData(form));
        const shown = await done(values);
        if (shown) result.replaceChildren(shown);
        else dialog.close();
      } catch (error) {
        problem.textContent = error.message;
        problem.hidden = false;
      }
      submit.disabled = false;
    };
    dialog.onclose = closed;
    dialog.setAttribute("aria-labelledby", "dialog-title");
    dialog.replaceChildren(form);
    dialog.showModal();
  });
}

function field(label, name, attributes = {}, hint = null) {
  return h("label", {}, label, h("input", { name, spellcheck: "false", autocomplete: "off", ...attributes }), hint ? h("small", {}, hint) : null);
}

/** Ask for the token. */
export function askForToken() {
  return asked({
    title: "Unlock changes",
    text: "Enter the token in console.token.file. This page keeps it until you leave or reload it.",
    fields: [field("Token", "token", { type: "password", required: true, autofocus: true })],
    action: "Unlock",
    done: async ({ token }) => {
      try {
        await unlock(token.trim());
      } catch (error) {
        lock();
        throw error;
      }
    },
  });
}

/** Create a topic. */
export function createTopic(page) {
  return asked({
    title: "Create topic",
    fields: [
      field("Name", "name", { required: true, maxlength: 249, pattern: "[A-Za-z0-9._\\-]+", autofocus: true }, "letters, digits, . _ -"),
      field("Partitions", "partitions", { type: "number", min: 1, max: 10000, placeholder: "broker default" }),
      h("label", {}, "Configs", h("textarea", { name: "configs", rows: 3, spellcheck: "false", placeholder: "retention.ms=86400000" }), h("small", {}, "one NAME=VALUE per line")),
    ],
    action: "Create",
    done: async ({ name, partitions, configs }) => {
      const lines = configs.split("\n").map((each) => each.trim()).filter(Boolean);
      const pairs = lines.map((each) => [each.split("=", 1)[0].trim(), each.slice(each.indexOf("=") + 1).trim()]);
      if (lines.some((each) => !each.includes("="))) throw new Error("Configs: one NAME=VALUE per line");
      await change("POST", "topics", { name, partitions: partitions ? Number(partitions) : null, configs: Object.fromEntries(pairs) });
      page.say(`Created ${name}.`);
      page.refresh();
    },
  });
}

/** Add partitions to a topic. */
export function addPartitions(page, topic) {
  const now = topic.partitions.length;
  return asked({
    title: `Add partitions to ${topic.name}`,
    text: "Keys will map to other partitions: records with the same key keep their order only from now on. Partitions cannot be removed.",
    fields: [field("New total number of partitions", "partitions", { type: "number", required: true, min: now + 1, max: 10000, value: now + 1, autofocus: true })],
    action: "Add",
    done: async ({ partitions }) => {
      await change("POST", "topics/partitions", { name: topic.name, partitions: Number(partitions) });
      page.say(`${topic.name} has ${partitions} partitions.`);
      page.refresh();
    },
  });
}

/** Change a config of a topic. */
export function alterConfig(page, name, config) {
  return asked({
    title: `Change ${config.name}`,
    text: config.documentation,
    fields: [
      field("Value", "value", { value: config.value ?? "", autofocus: true }),
      config.own ? h("label", { class: "toggle" }, h("input", { type: "checkbox", name: "unset" }), " Remove this topic's own value") : null,
    ],
    action: "Change",
    done: async ({ value, unset }) => {
      await change("POST", "topics/configs", { name, configs: { [config.name]: unset ? null : value } });
      page.say(`Changed ${config.name} of ${name}.`);
      page.refresh();
    },
  });
}

/** Delete something, after its name has been typed. */
function deleted({ kind, path, name, text, back, page }) {
  return asked({
    title: `Delete ${kind} ${name}?`,
    text,
    fields: [field(`Type the name to confirm`, "name", { required: true, autofocus: true })],
    action: `Delete ${kind}`,
    danger: true,
    done: async (values) => {
      if (values.name !== name) throw new Error("The name does not match.");
      await change("DELETE", path, { name });
      page.say(`Deleted ${name}.`);
      location.hash = back;
    },
  });
}

/** Delete a topic. */
export function deleteTopic(page, name) {
  return deleted({ kind: "topic", path: "topics", name, text: "All of its records are deleted. This cannot be undone.", back: "#/topics", page });
}

/** Delete a group. */
export function deleteGroup(page, { name, type }) {
  const text =
    type === "share"
      ? "What it has read is forgotten. Consumers that return start by its share.auto.offset.reset."
      : "Its committed offsets are deleted. Consumers that return start by their auto.offset.reset.";
  return deleted({ kind: "group", path: "groups", name, text, back: "#/groups", page });
}

const TARGETS = [
  ["earliest", "earliest: the first record"],
  ["latest", "latest: only new records"],
  ["time", "time: the first record at or after it"],
  ["offset", "offset"],
  ["shift", "shift: by N offsets, negative is backward"],
];

/** Reset the offsets of a group, after a preview. */
export function resetGroup(page, group) {
  const topics = [...new Set(group.offsets.map((each) => each.topic))];
  const choose = (event) => {
    const { elements } = event.target.form;
    elements.value.closest("label").hidden = !["offset", "shift"].includes(elements.to.value);
    elements.time.closest("label").hidden = elements.to.value !== "time";
  };
  let seen = null;
  return asked({
    title: `Reset offsets of ${group.name}`,
    text: "The group must have no active members. Reset shows a preview; press it again to apply it.",
    fields: [
      h("label", {}, "Topic", h("select", { name: "topic" }, h("option", { value: "" }, "all topics"), topics.map((each) => h("option", { value: each }, each)))),
      h("label", {}, "To", h("select", { name: "to", onchange: choose }, TARGETS.map(([value, text]) => h("option", { value }, text)))),
      h("label", { hidden: true }, "Offset", h("input", { name: "value", value: "0", pattern: "-?[0-9]{1,19}", inputmode: "numeric" })),
      h("label", { hidden: true }, "Time", h("input", { name: "time", type: "datetime-local", step: "1" })),
    ],
    action: "Reset",
    danger: true,
    done: async ({ topic, to, value, time }) => {
      const at = to === "time" ? String(new Date(time).getTime()) : value;
      if (at === "NaN") throw new Error("Choose a time.");
      const spec = { name: group.name, to, value: at, topic: topic || null };
      const wanted = JSON.stringify(spec);
      const execute = seen === wanted;
      const { moves } = await change("POST", "groups/offsets", { ...spec, execute });
      seen = wanted;
      const failed = moves.filter((each) => each.error);
      if (execute && !failed.length) {
        page.say(`Reset offsets of ${group.name}.`);
        page.refresh();
        return null;
      }
      const columns = [{ title: "Partition", wide: true }, { title: "Committed", number: true }, { title: "New offset", number: true }];
      const rows = moves.map((each) => [`${each.topic}:${each.partition}`, each.before ?? "–", each.error ?? each.after]);
      const note = execute ? "Some offsets were not reset." : "Preview. Press Reset again to apply.";
      return h("div", {}, h("p", { class: "facts" }, note), table("Moves", columns, rows));
    },
  });
}
