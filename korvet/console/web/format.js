// Numbers and times for people.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const NONE = "–";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

/** 1,234,567 */
export function count(number) {
  return number === null || number === undefined ? NONE : whole.format(number);
}

/** 1.2 MiB */
export function bytes(number) {
  if (number === null || number === undefined) return NONE;
  let unit = 0;
  let value = number;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit && value < 100 ? value.toFixed(1) : whole.format(value)} ${UNITS[unit]}`;
}

/** 12.3 /s */
export function perSecond(number) {
  if (number === null || number === undefined) return NONE;
  return `${number < 10 ? short.format(number) : whole.format(number)}/s`;
}

/** 1.2 MiB/s */
export function bytesPerSecond(number) {
  return number === null || number === undefined ? NONE : `${bytes(number)}/s`;
}

/** 3 d 4 h, of milliseconds; the largest two units. */
export function duration(milliseconds) {
  if (milliseconds === null || milliseconds === undefined || milliseconds < 0) return NONE;
  let left = Math.floor(milliseconds / 1000);
  const parts = [];
  for (const [unit, seconds] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]) {
    const many = Math.floor(left / seconds);
    left %= seconds;
    if (many || (unit === "s" && !parts.length)) parts.push(`${many} ${unit}`);
    if (parts.length === 2) break;
  }
  return parts.join(" ");
}

/** 2026-01-31 12:34:56.789, in UTC or local time. */
export function moment(milliseconds, { utc = false } = {}) {
  if (milliseconds < 0) return NONE;
  const at = new Date(utc ? milliseconds : milliseconds - new Date(milliseconds).getTimezoneOffset() * 60000);
  return Number.isNaN(at.getTime()) ? String(milliseconds) : at.toISOString().replace("T", " ").replace("Z", "");
}

/** "1 topic", "2 topics". */
export function plural(number, word) {
  return `${count(number)} ${word}${number === 1 ? "" : "s"}`;
}

/** A setting in milliseconds: "-1" is unlimited. */
export function retention(text) {
  if (text === undefined || text === null) return NONE;
  return Number(text) < 0 ? "unlimited" : duration(Number(text));
}
