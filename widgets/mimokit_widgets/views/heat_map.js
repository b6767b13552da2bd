// A part of a tensor as a heat map: its cells under the pointer or the arrow keys.

import { drawCells, floatsOf, heatPixels } from "./heat_colors.js";
import { element } from "mimokit/dom.js";

const LARGEST_CELL = 16;
const MOST_HEIGHT = 460;
const LEAST_HEIGHT = 14;
const CURSOR_MOVES = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };

export class HeatMap {
  /** part: as `picture_view` makes it; said(words, cell) hears of a cell, chosen(cell) of a click. */
  constructor(part, { most, dark, width, said, chosen }) {
    Object.assign(this, { part, said, chosen, at: [0, 0] });
    this.values = floatsOf(part.cells);
    this.canvas = element("canvas", { class: "cells", tabindex: "0", role: "application",
      "aria-label": `${part.who ?? ""} ${part.shape}, ${part.said}; arrow keys tell its numbers`,
      mousemove: (event) => this.point(event), mouseleave: () => said("", null),
      click: (event) => { this.point(event); chosen(this.cell()); },
      keydown: (event) => this.key(event) });
    drawCells(this.canvas, this.values, part.lines, part.places, heatPixels(most, dark));
    this.marker = element("i", { class: "cursor" });
    this.marker.hidden = true;
    this.node = element("div", { class: "heat" }, this.canvas, this.marker, ...this.borders());
    this.size(width);
  }

  size(width) {
    const { lines, places } = this.part;
    const cell = Math.min(LARGEST_CELL, width / Math.max(places, 1));
    const high = Math.min(LARGEST_CELL, MOST_HEIGHT / Math.max(lines, 1), Math.max(cell, 4));
    this.node.style.width = `${Math.round(cell * places)}px`;
    this.node.style.height = `${Math.max(LEAST_HEIGHT, Math.round(high * lines))}px`;
  }

  /** Lines between samples. */
  borders() {
    const { bounds, window: [top, bottom] } = this.part;
    const shown = bounds.filter((row) => row > top && row < bottom);
    return shown.length > 64 ? [] : shown.map((row) => {
      const line = element("i", { class: "sample-border" });
      line.style.top = `${(100 * (row - top)) / (bottom - top)}%`;
      return line;
    });
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const place = (share, count) => Math.min(count - 1, Math.max(0, Math.floor(share * count)));
    this.move([place((event.clientY - box.top) / box.height, this.part.lines),
      place((event.clientX - box.left) / box.width, this.part.places)]);
  }

  key(event) {
    if (event.key === "Enter") this.chosen(this.cell());
    else if (event.key in CURSOR_MOVES) {
      const [down, right] = CURSOR_MOVES[event.key];
      this.move([Math.min(this.part.lines - 1, Math.max(0, this.at[0] + down)),
        Math.min(this.part.places - 1, Math.max(0, this.at[1] + right))]);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  move(at) {
    this.at = at;
    const { lines, places } = this.part;
    this.marker.hidden = false;
    Object.assign(this.marker.style, { top: `${(100 * at[0]) / lines}%`, height: `${100 / lines}%`,
      left: `${(100 * at[1]) / places}%`, width: `${100 / places}%` });
    const cell = this.cell();
    this.said(this.words(cell), cell);
  }

  /** What is under the cursor: rows and columns of the tensor, and the number. */
  cell() {
    const { window: [top, bottom, left, right], lines, places } = this.part;
    const span = (first, size, count, at) => [first + Math.floor((size * at) / count),
      first + Math.max(Math.floor((size * at) / count) + 1, Math.floor((size * (at + 1)) / count))];
    return { rows: span(top, bottom - top, lines, this.at[0]),
      columns: span(left, right - left, places, this.at[1]),
      value: this.values[this.at[0] * places + this.at[1]], exact: this.part.exact };
  }

  words({ rows, columns, value, exact }) {
    const { bounds, first = 0 } = this.part;
    const range = ([start, stop], what) =>
      (stop - start > 1 ? `${what}s ${start}–${stop - 1}` : `${what} ${start}`);
    const sample = bounds.length
      ? ` (sample ${first + bounds.findLastIndex((bound) => bound <= rows[0])})` : "";
    const number = Number.isFinite(value) ? Number(value.toPrecision(6)) : String(value);
    const is = exact ? "" : "farthest from 0: ";
    return `${range(rows, "row")}${sample}, ${range(columns, "column")}: ${is}${number}`;
  }
}
