// What is changed, each in a dialog that says what will happen; and the token that it takes.

import { change, lock, unlock } from "./api.js";
import { h, table } from "./dom.js";

const dialog = document.getElementById("dialog");

/**
 * Ask for something in a dialog. `done(values)` may throw, which is told there and leaves the dialog open; it returns
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
    text: "The token of console.token.file. It is kept in this page, until it is left or loaded anew.",
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

/** Make a topic. */
export function createTopic(page) {
  return asked({
    title: "Create topic",
    fields: [
      field("Name", "name", { required: true, maxlength: 249, pattern: "[A-Za-z0-9._\\-]+", autofocus: true }, "letters, digits, . _ -"),
      field("Partitions", "partitions", { type: "number", min: 1, max: 100000, placeholder: "the broker's default" }),
      h("label", {}, "Configs", h("textarea", { name: "configs", rows: 3, spellcheck: "false", placeholder: "retention.ms=86400000" }), h("small", {}, "one NAME=VALUE in a line")),
    ],
    action: "Create",
    done: async ({ name, partitions, configs }) => {
      const lines = configs.split("\n").map((each) => each.trim()).filter(Boolean);
      const pairs = lines.map((each) => [each.split("=", 1)[0].trim(), each.slice(each.indexOf("=") + 1).trim()]);
      if (lines.some((each) => !each.includes("="))) throw new Error("configs: one NAME=VALUE in a line");
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
    text: "Records with a key go to other partitions afterwards: their order holds only among those from now on. There is no way back.",
    fields: [field("Partitions in all", "partitions", { type: "number", required: true, min: now + 1, max: 100000, value: now + 1, autofocus: true })],
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
      config.own ? h("label", { class: "toggle" }, h("input", { type: "checkbox", name: "unset" }), " Take away what is set for this topic") : null,
    ],
    action: "Change",
    done: async ({ value, unset }) => {
      await change("POST", "topics/configs", { name, configs: { [config.name]: unset ? null : value } });
      page.say(`Changed ${config.name} of ${name}.`);
      page.refresh();
    },
  });
}

/** Delete something, once its name was typed. */
function deleted({ kind, path, name, text, back, page }) {
  return asked({
    title: `Delete ${kind} ${name}?`,
    text,
    fields: [field(`Type its name to delete it`, "name", { required: true, autofocus: true })],
    action: `Delete ${kind}`,
    danger: true,
    done: async (values) => {
      if (values.name !== name) throw new Error("That is another name.");
      await change("DELETE", path, { name });
      page.say(`Deleted ${name}.`);
      location.hash = back;
    },
  });
}

/** Delete a topic. */
export function deleteTopic(page, name) {
  return deleted({ kind: "topic", path: "topics", name, text: "All of its records go with it, at once and for good.", back: "#/topics", page });
}

/** Delete a group. */
export function deleteGroup(page, name) {
  return deleted({ kind: "group", path: "groups", name, text: "All that it has committed goes with it. Consumers that come back begin by their own rules.", back: "#/groups", page });
}

const TARGETS = [
  ["earliest", "earliest: the first record"],
  ["latest", "latest: only what comes from now on"],
  ["time", "time: the first record from then on"],
  ["offset", "offset"],
  ["shift", "shift: so many offsets forth, or back where negative"],
];

/** Move the offsets of a group; what will happen is shown first. */
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
    text: "The members of the group must be stopped. What will happen is shown first; ask twice for it.",
    fields: [
      h("label", {}, "Topic", h("select", { name: "topic" }, h("option", { value: "" }, "all that it has committed"), topics.map((each) => h("option", { value: each }, each)))),
      h("label", {}, "To", h("select", { name: "to", onchange: choose }, TARGETS.map(([value, text]) => h("option", { value }, text)))),
      h("label", { hidden: true }, "Offset", h("input", { name: "value", value: "0", pattern: "-?[0-9]{1,19}", inputmode: "numeric" })),
      h("label", { hidden: true }, "Time", h("input", { name: "time", type: "datetime-local", step: "1" })),
    ],
    action: "Reset",
    danger: true,
    done: async ({ topic, to, value, time }) => {
      const at = to === "time" ? String(new Date(time).getTime()) : value;
      if (at === "NaN") throw new Error("Choose a time.");
      const wish = { name: group.name, to, value: at, topic: topic || null };
      const told = JSON.stringify(wish);
      const execute = seen === told;
      const { moves } = await change("POST", "groups/offsets", { ...wish, execute });
      seen = told;
      const failed = moves.filter((each) => each.error);
      if (execute && !failed.length) {
        page.say(`Moved offsets of ${group.name}.`);
        page.refresh();
        return null;
      }
      const columns = [{ title: "Partition", wide: true }, { title: "Committed", number: true }, { title: "Then", number: true }];
      const rows = moves.map((each) => [`${each.topic}:${each.partition}`, each.before ?? "–", each.error ?? each.after]);
      const note = execute ? "Not all were moved." : "This will happen. Reset once more to do it.";
      return h("div", {}, h("p", { class: "facts" }, note), table("Moves", columns, rows));
    },
  });
}
