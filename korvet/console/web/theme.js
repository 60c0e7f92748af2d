// Sets the theme before anything is painted: the last choice, else the system's preference.
"use strict";

(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("korvet.theme");
  } catch {
    // A browser without storage: the system's theme.
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
