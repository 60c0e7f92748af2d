// Keys, values and headers of records, made readable as text, JSON or hex. They may be any bytes.

import { h } from "./dom.js";

const HEX_ROW = 16;
const PRETTY_MAX = 200_000;
const DEPTH_SHOWN_MAX = 40;

// Characters that are invisible, or change the direction of text beside them, are shown by number.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff\ufff9-\ufffb]/gu;

/** Return text in one line, with invisible characters made visible. */
export function visible(text) {
  return text.replace(UNSEEN, (each) => (each === "\n" ? "↵" : each === "\t" ? "⇥" : escaped(each)));
}

function escaped(character) {
  return `\\u${character.codePointAt(0).toString(16).padStart(4, "0")}`;
}

/** Make a line of a content, for a table. */
export function line(content) {
  if (content === null) return h("span", { class: "nothing" }, "null");
  if (content.bytes === 0) return h("span", { class: "nothing" }, "empty");
  if (content.text === undefined) return h("code", { class: "bytes" }, `0x${hex(decoded(content)).slice(0, 96)}`);
  return h("code", {}, visible(content.text.slice(0, 400)));
}

/** Return the ways in which a content can be shown, the best one first. */
export function ways(content) {
  if (content === null || content.bytes === 0) return ["text"];
  if (content.text === undefined) return ["hex"];
  return isJson(content) ? ["json", "text", "hex"] : ["text", "hex"];
}

/** Make the whole of a content, in one of these ways. */
export function block(content, way) {
  if (content === null || content.bytes === 0) return h("pre", {}, line(content));
  if (way === "hex") return h("pre", { class: "hex", tabindex: "0" }, dump(decoded(content)));
  if (way === "json") return h("pre", { class: "json", tabindex: "0" }, pretty(content.text));
  const seen = content.text.replace(UNSEEN, (each) => (each === "\n" || each === "\t" ? each : escaped(each)));
  return h("pre", { tabindex: "0" }, seen);
}

/** Whether not all of a content is there. */
export function isCut(content) {
  return content !== null && decoded(content).length < content.bytes;
}

function decoded(content) {
  if (content.text !== undefined) return new TextEncoder().encode(content.text);
  return Uint8Array.from(atob(content.base64), (each) => each.charCodeAt(0));
}

function hex(data) {
  return Array.from(data, (each) => each.toString(16).padStart(2, "0")).join("");
}

function dump(data) {
  const rows = [];
  for (let at = 0; at < data.length; at += HEX_ROW) {
    const some = data.subarray(at, at + HEX_ROW);
    const codes = Array.from(some, (each) => each.toString(16).padStart(2, "0"));
    const left = codes.slice(0, 8).join(" ").padEnd(23);
    const right = codes.slice(8).join(" ").padEnd(23);
    const text = Array.from(some, (each) => (each >= 32 && each < 127 ? String.fromCharCode(each) : "·")).join("");
    rows.push(`${at.toString(16).padStart(8, "0")}  ${left}  ${right}  ${text}`);
  }
  return rows.join("\n");
}

function isJson(content) {
  if (isCut(content) || content.text.length > PRETTY_MAX || !/^\s*[[{]/.test(content.text)) return false;
  try {
    JSON.parse(content.text);
    return true;
  } catch {
    return false;
  }
}

const TOKENS = /"(?:[^"\\]|\\.)*"|[[\]{},:]|[^\s[\]{},:"]+/g;

/** Lay JSON out, token by token: numbers keep all their digits and names their order, which parsing would not. */
function pretty(text) {
  const out = [];
  const tokens = text.match(TOKENS) ?? [];
  let depth = 0;
  const newline = () => out.push(`\n${"  ".repeat(Math.min(depth, DEPTH_SHOWN_MAX))}`);
  tokens.forEach((token, index) => {
    const next = tokens[index + 1];
    if (token === "{" || token === "[") {
      out.push(token);
      if (next === "}" || next === "]") return;
      depth += 1;
      newline();
    } else if (token === "}" || token === "]") {
      const before = tokens[index - 1];
      if (before !== "{" && before !== "[") {
        depth -= 1;
        newline();
      }
      out.push(token);
    } else if (token === ",") {
      out.push(token);
      newline();
    } else if (token === ":") {
      out.push(": ");
    } else {
      const kind = token.startsWith('"') ? (next === ":" ? "name" : "string") : "literal";
      out.push(h("span", { class: kind }, token.replace(UNSEEN, escaped)));
    }
  });
  return out;
}
