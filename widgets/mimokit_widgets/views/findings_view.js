// What came instead of what should have, next to each other.

import { HeatMap } from "./heat_map.js";
import { floatsOf, largest } from "./heat_colors.js";
import { element } from "mimokit/dom.js";
import { imagesOf } from "./tensor_view.js";

const WIDTH = 360;

export function findingViews(findings, dark) {
  return findings.map(({ words, right, came }) => {
    const most = Math.max(largest(floatsOf(right.cells)), largest(floatsOf(came.cells)));
    const told = element("p", { class: "muted cell-told", "aria-live": "polite" });
    const side = (title, part) => {
      const said = (text) => { told.textContent = text; };
      const map = new HeatMap(part, { most, dark, width: WIDTH, said, chosen: () => {} });
      return element("div", {}, element("span", { class: "muted" }, title),
        part.images ? imagesOf(part.images) : null, map.node);
    };
    return element("div", { class: "finding" }, element("p", {}, words),
      element("div", { class: "sides" }, side("should have come", right), side("came", came)), told);
  });
}
