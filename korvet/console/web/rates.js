// Rates of counters between readings, and their recent history.

import { svg } from "./dom.js";

const SAMPLES_MAX = 90;
const SERIES_MAX = 4000;
const WIDTH = 120;
const HEIGHT = 28;

const series = new Map();

/** Note the value of a counter at a time (ms). One that has fallen has restarted. */
export function sample(name, at, value) {
  if (value === undefined || value === null) return;
  let course = series.get(name);
  if (!course) {
    if (series.size >= SERIES_MAX) series.clear();
    course = { at, value, rates: [] };
    series.set(name, course);
    return;
  }
  if (at <= course.at) return;
  if (value >= course.value) course.rates.push(((value - course.value) * 1000) / (at - course.at));
  else course.rates.length = 0;
  course.rates.splice(0, course.rates.length - SAMPLES_MAX);
  course.at = at;
  course.value = value;
}

/** Return the rate per second between the last two readings; null if there was only one. */
export function rate(name) {
  return series.get(name)?.rates.at(-1) ?? null;
}

/** Draw the recent history of a rate. */
export function course(name, label) {
  const rates = series.get(name)?.rates ?? [];
  const most = Math.max(...rates, 1e-9);
  const step = WIDTH / (SAMPLES_MAX - 1);
  const points = rates.map((each, index) => {
    const x = WIDTH - (rates.length - 1 - index) * step;
    return `${x.toFixed(1)},${(HEIGHT - 1 - (each / most) * (HEIGHT - 3)).toFixed(1)}`;
  });
  const begin = WIDTH - (rates.length - 1) * step;
  return svg(
    "svg",
    { class: "course", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
    points.length > 1 &&
      svg("polygon", { points: `${begin.toFixed(1)},${HEIGHT} ${points.join(" ")} ${WIDTH},${HEIGHT}` }),
    points.length > 1 && svg("polyline", { points: points.join(" ") }),
  );
}
