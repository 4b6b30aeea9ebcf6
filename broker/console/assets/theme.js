// Before the page is drawn, so that it does not flash in the other colours: light or dark, as chosen or as the system has it.
"use strict";

(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("trivet-theme");
  } catch {
    // Nothing may be stored here: the page looks as the system has it.
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
