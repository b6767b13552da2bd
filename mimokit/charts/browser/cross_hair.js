// What follows the pointer over a chart: it lies above the canvas, so that nothing of the chart is
// drawn again.

import { element, setText } from "./dom.js";

const MOST_READ = 8;
const AIR = 6; // pixels next to the line

export class CrossHair {
  constructor() {
    this.chosen = element("i", { class: "chosen" });
    this.line = element("i", { class: "line" });
    this.lines = [];
    this.read = element("div", { class: "read" });
    this.node = element("div", { class: "cross", "aria-hidden": "true" }, this.chosen, this.line,
      this.read);
    this.node.hidden = true;
  }

  /**
   * Show an iteration of a plot, null for none; `from` is where a drag began, or null. Of the
   * rows, what lines have there, the first ones are written out.
   */
  show(area, pointed, from, rows) {
    const { first, last } = area.scope;
    this.node.hidden = pointed === null || pointed < first || pointed > last;
    if (this.node.hidden) return;
    const middle = area.middle(pointed);
    for (const node of [this.chosen, this.line, this.read]) node.style.top = `${area.y}px`;
    this.chosen.style.height = this.line.style.height = `${area.h}px`;
    this.line.style.left = `${Math.round(middle)}px`;
    this.choose(area, pointed, from);
    this.write(rows);
    const leftHalf = middle < area.x + area.w / 2;
    this.read.style.left = leftHalf ? `${middle + AIR}px` : "";
    this.read.style.right = leftHalf ? "" : `${area.width - middle + AIR}px`;
  }

  /** The part that is being chosen with the pointer. */
  choose(area, pointed, from) {
    this.chosen.hidden = from === null;
    if (from === null) return;
    const left = area.left(Math.min(from, pointed));
    this.chosen.style.left = `${left}px`;
    this.chosen.style.width = `${area.left(Math.max(from, pointed) + 1) - left}px`;
    this.chosen.style.background = `${area.theme.mark}33`;
  }

  write(rows) {
    const shown = rows.slice(0, MOST_READ);
    const more = rows.length - shown.length;
    if (more) shown.push({ text: `and ${more} more`, color: "transparent" });
    while (this.lines.length < shown.length) {
      const line = { swatch: element("i"), text: element("span") };
      line.node = element("div", {}, line.swatch, line.text);
      this.read.append(line.node);
      this.lines.push(line);
    }
    this.read.hidden = !shown.length;
    this.lines.forEach(({ node, swatch, text }, at) => {
      node.hidden = at >= shown.length;
      if (node.hidden) return;
      swatch.style.background = shown[at].color;
      setText(text, shown[at].text);
    });
  }
}
