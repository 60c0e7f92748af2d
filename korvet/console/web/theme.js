// The theme, before anything is painted: what was chosen here last, else what the system prefers.
"use strict";

(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("korvet.theme");
  } catch {
    // A browser that keeps nothing: the system's theme it is.
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
