// For pages with long lists: the filter above, and the links to other pages below.

import { h, to } from "./dom.js";
import { count } from "./format.js";

const PAUSE_MS = 200;

let typing = 0;

/** Make the filter of a list; what is typed goes into the address of the page. */
export function filter(name, parameters, label) {
  return h(
    "label",
    { class: "filter" },
    h("span", { class: "unseen" }, label),
    h("input", {
      type: "search",
      placeholder: `${label}  (/)`,
      value: parameters.get("q") ?? "",
      spellcheck: "false",
      autocomplete: "off",
      maxlength: 249,
      oninput: (event) => {
        clearTimeout(typing);
        const text = event.target.value;
        typing = setTimeout(() => {
          history.replaceState(null, "", to(name, { q: text }));
          parameters.set("q", text);
          parameters.delete("from");
          document.dispatchEvent(new CustomEvent("korvet.refresh"));
        }, PAUSE_MS);
      },
    }),
  );
}

/** Make the links to the previous and next page; null if there is only one page. */
export function steps(name, parameters, shown, total) {
  const from = Number(parameters.get("from") ?? 0);
  if (total <= shown && from === 0) return null;
  const q = parameters.get("q");
  const before = Math.max(0, from - Math.max(shown, 1));
  return h(
    "nav",
    { class: "steps", "aria-label": "Pages" },
    from > 0 ? h("a", { href: to(name, { q, from: before || null }) }, "← Previous") : h("span", {}),
    h("span", {}, `${count(Math.min(from + 1, total))} – ${count(from + shown)} of ${count(total)}`),
    from + shown < total ? h("a", { href: to(name, { q, from: from + shown }) }, "Next →") : h("span", {}),
  );
}
