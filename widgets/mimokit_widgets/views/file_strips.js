// A strip for each file, from its first byte to its last, and the parts that belong to something.

import { element, setAttribute } from "mimokit/dom.js";
import { Redraw } from "mimokit/redraw.js";
import { prepared, themeOf } from "mimokit/theme.js";

const HEIGHT = 14;
const FIELDS = 5;

export class FileStrips {
  constructor(host) {
    this.host = host;
    this.owner = null;
    this.runs = new Map();
    this.strips = [];
    this.redraw = new Redraw(host, () => this.draw());
  }

  /** numbers is a DataView of 32-bit floats: owner, file, start, stop, and 1 for part of it. */
  update(files, numbers) {
    this.runs.clear();
    for (let at = 0; at < numbers.byteLength; at += 4 * FIELDS) {
      const [owner, file, start, stop, part] = Array.from({ length: FIELDS },
        (_, field) => numbers.getFloat32(at + 4 * field, true));
      if (!this.runs.has(owner)) this.runs.set(owner, []);
      this.runs.get(owner).push({ file, start, stop, part });
    }
    this.strips = files.map(({ name, bytes }) => {
      const canvas = element("canvas", { role: "img" });
      return { name, canvas, node: element("div", { class: "file" },
        element("span", { class: "muted" }, element("code", {}, name), ` ${bytes}`),
        element("div", {}, canvas)) };
    });
    this.host.replaceChildren(...this.strips.map((strip) => strip.node));
    this.redraw.soon();
  }

  /** Show the parts of a rank, in its colour, or of a tensor. */
  show(owner, color) {
    this.owner = owner;
    this.color = color;
    this.redraw.soon();
  }

  draw() {
    if (!this.strips.length) return;
    const theme = themeOf(this.host);
    const runs = this.runs.get(this.owner) ?? [];
    this.strips.forEach(({ name, canvas }, file) => {
      const wide = canvas.parentElement.clientWidth;
      const context = prepared(canvas, wide, HEIGHT);
      context.fillStyle = theme.empty;
      context.fillRect(0, 0, wide, HEIGHT);
      const mine = runs.filter((run) => run.file === file);
      for (const { start, stop, part } of mine) {
        context.fillStyle = this.color ?? theme.accent;
        context.globalAlpha = part ? 0.4 : 1;
        context.fillRect(start * wide, 0, Math.max(1, (stop - start) * wide), HEIGHT);
      }
      context.globalAlpha = 1;
      const share = mine.reduce((sum, run) => sum + run.stop - run.start, 0);
      setAttribute(canvas, "aria-label", this.owner === null ? `${name}: nothing is selected`
        : `${name}: ${(100 * share).toFixed(1)} % of its bytes`);
    });
  }

  remove() {
    this.redraw.end();
  }
}
