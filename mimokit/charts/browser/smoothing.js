// The slider that says how smooth curves are drawn.

import { element, setText } from "./dom.js";

/** A label with a slider; change(share) is called with 0 for curves as they are. */
export function smoothingSlider(change) {
  const words = element("span", { class: "muted smoothed" }, "none");
  const slider = element("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: 0,
    "aria-label": "Smoothing", input: () => {
      const share = Number(slider.value);
      setText(words, share ? share.toFixed(2) : "none");
      change(share);
    } });
  return element("label", { class: "smoothing" }, "smoothing ", slider, words);
}
