// Creates and updates elements. Text from elsewhere becomes text nodes and attributes only: nothing here can turn it
// into markup.

const HANDLERS = ["onclick", "onsubmit", "onchange", "oninput", "onkeydown"];
const SVG = "http://www.w3.org/2000/svg";

/** Make an element: `h("a", {href: "#/", class: "x"}, "text", [more])`; false, null and undefined are left out. */
export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** Make an element of SVG. */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (HANDLERS.includes(name)) element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

/** Make the content of an element what `fresh` is, changing as little as possible: focus, selection and scrolling stay. */
export function show(element, ...fresh) {
  const wanted = fresh.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false);
  const nodes = wanted.map((each) => (each instanceof Node ? each : document.createTextNode(String(each))));
  const keys = new Set(nodes.map(keyOf));
  const known = new Map([...element.childNodes].map((each) => [keyOf(each), each]));
  let now = element.firstChild;
  for (const node of nodes) {
    const key = keyOf(node);
    // Unwanted nodes are removed first, so that others need not be moved, which would cost them the focus.
    while (key && now && !(keyOf(now) && keys.has(keyOf(now)))) {
      const gone = now;
      now = now.nextSibling;
      gone.remove();
    }
    const same = key ? known.get(key) : keyOf(now) ? null : now;
    if (!same) {
      element.insertBefore(node, now);
      continue;
    }
    if (same === now) now = now.nextSibling;
    else element.insertBefore(same, now);
    update(same, node);
  }
  while (now) {
    const gone = now;
    now = now.nextSibling;
    gone.remove();
  }
}

function keyOf(node) {
  return node?.dataset?.key;
}

function update(now, fresh) {
  const alike =
    now.nodeType === fresh.nodeType &&
    now.nodeName === fresh.nodeName &&
    keyOf(now) === keyOf(fresh);
  if (!alike) {
    now.replaceWith(fresh);
    return;
  }
  if (now.nodeType === Node.TEXT_NODE) {
    if (now.data !== fresh.data) now.data = fresh.data;
    return;
  }
  for (const { name } of [...now.attributes]) {
    // What the user opened stays open.
    if (!fresh.hasAttribute(name) && !(name === "open" && now.nodeName === "DETAILS")) now.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (now.getAttribute(name) !== value) now.setAttribute(name, value);
  }
  for (const name of HANDLERS) now[name] = fresh[name];
  show(now, [...fresh.childNodes]);
}

/**
 * Make a table. `columns` are {title, number, wide, hint, unseen: the title is only heard}; `rows` are arrays of cells, or {key, cells, class}, or
 * {key, detail} for one that spans all columns. A cell is any content of an element.
 */
export function table(caption, columns, rows, empty = "Nothing here.") {
  // The roles are those of the elements, which lose them where rows are laid out as cards.
  const heads = columns.map((each) =>
    h("th", { scope: "col", role: "columnheader", class: classes(each), title: each.hint }, each.unseen ? h("span", { class: "unseen" }, each.title) : each.title),
  );
  const body = rows.map((row) => {
    const { cells, key, detail, class: name } = Array.isArray(row) ? { cells: row } : row;
    if (detail) {
      return h("tr", { "data-key": key, class: "detail", role: "row" }, h("td", { colspan: columns.length, role: "cell" }, detail));
    }
    return h(
      "tr",
      { "data-key": key, class: name, role: "row" },
      cells.map((cell, index) => h("td", { class: classes(columns[index]), role: "cell", "data-title": columns[index].unseen ? null : columns[index].title }, h("div", {}, cell))),
    );
  });
  if (!rows.length) body.push(h("tr", { class: "empty", role: "row" }, h("td", { colspan: columns.length, role: "cell" }, empty)));
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h(
      "table",
      { role: "table" },
      h("caption", { class: "unseen" }, caption),
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads)),
      h("tbody", { role: "rowgroup" }, body),
    ),
  );
}

function classes(column) {
  return [column.number && "number", column.wide && "wide", column.class].filter(Boolean).join(" ") || null;
}

/** Make a badge: a word whose colour says how good it is (good, bad, busy or none). */
export function badge(text, mood = "") {
  return h("span", { class: `badge ${mood}` }, text);
}

/** Make the heading of a page; it takes the focus when the page is entered. */
export function heading(...content) {
  return h("h1", { tabindex: "-1" }, content);
}

/** Return the address of a page in the console. */
export function to(page, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const query = new URLSearchParams(given).toString();
  return `#/${page}${query ? `?${query}` : ""}`;
}
