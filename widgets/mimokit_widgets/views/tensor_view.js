// One tensor, large: of a rank, or whole with the borders of what each rank has.

import { HeatMap } from "./heat_map.js";
import { INFINITE, NOT_A_NUMBER, floatsOf, largest, thumbnails } from "./heat_colors.js";
import { button, choices, dotOf, element, setText } from "mimokit/dom.js";

const [ROWS, COLUMNS] = [48, 96];

export class TensorView {
  /** ask(type, more): sends a message to Python. */
  constructor(ask) {
    this.ask = ask;
    this.cell = null;
    this.title = element("h4", {});
    this.whole = choices("What is shown", "whole", [
      ["slice", "this rank", "What the rank has"],
      ["whole", "whole tensor", "What all ranks have, with the borders of their parts"],
    ], (value) => ask("whole", { whole: value === "whole" }));
    this.out = button("All of it", () => ask("window", { window: null }));
    this.field = element("input", { type: "text", size: "10", "aria-label": "Number in the cell",
      keydown: (event) => { if (event.key === "Enter") this.edit(); } });
    this.set = button("Set", () => this.edit(), { title: "The next step reads this number" });
    this.editor = element("span", { class: "editor" }, this.field, this.set);
    this.told = element("p", { class: "cell-told", "aria-live": "polite" });
    this.parts = element("div", { class: "parts" });
    this.node = element("section", { class: "tensor-view" }, element("div", { class: "tools" },
      this.title, this.whole.node, this.out, this.editor), this.told, this.parts);
  }

  draw(opened, dark) {
    this.node.hidden = !opened.name;
    if (!opened.name) return;
    const of = JSON.stringify([opened.rank, opened.name]);
    if (of !== this.of) this.cell = null; // it lies in another tensor
    Object.assign(this, { of, opened });
    setText(this.title, `${opened.name} of rank ${opened.rank}`);
    this.whole.set(opened.whole ? "whole" : "slice");
    const [only] = opened.parts;
    this.out.hidden = opened.whole || whole(only);
    this.follow(only);
    const most = largest(opened.parts.flatMap((part) => [largest(floatsOf(part.cells))]));
    const width = Math.max(240, (this.node.clientWidth || 900) - 190);
    this.parts.replaceChildren(...opened.parts.map((part) => this.part(part, { most, dark, width })));
    setText(this.told, opened.whole ? "Thick lines are the borders of what ranks have, dashed ones those of samples." : hint(only));
  }

  part(part, options) {
    const map = new HeatMap(part, { ...options,
      said: (words) => { if (words) setText(this.told, words); },
      chosen: (cell) => this.choose(cell) });
    const about = element("div", { class: "about" }, element("b", {}, part.who),
      element("span", { class: part.odd ? "odd" : "muted" }, part.said),
      part.unlike ? element("span", { class: "odd" }, "not what others have of these samples") : null,
      part.odd ? oddKeys() : null);
    const images = part.images && imagesOf(part.images, part.first);
    const words = element("ol", { class: "words", start: part.first },
      ...(part.words ?? []).map((line) => element("li", {}, line)));
    return element("div", { class: "part" }, about, element("div", {}, images, map.node, words));
  }

  /** Show the number that the chosen cell has now, unless the user is typing another. */
  follow(part) {
    const value = this.cell && valueAt(part, this.cell);
    this.editor.hidden = value === null || !this.opened.editable;
    if (value !== null && this.field !== document.activeElement) this.field.value = String(value);
  }

  /** A number is edited where each cell is one; else what is around it is shown. */
  choose({ rows, columns, value, exact }) {
    if (this.opened.whole) return;
    if (!exact) {
      const [top, left] = [Math.max(0, rows[0] - ROWS / 2), Math.max(0, columns[0] - COLUMNS / 2)];
      this.ask("window", { window: [top, top + ROWS, left, left + COLUMNS] });
      return;
    }
    this.cell = { row: rows[0], column: columns[0] };
    this.field.value = String(value);
    this.editor.hidden = !this.opened.editable;
    this.field.focus();
    this.field.select();
  }

  edit() {
    const { rank, name } = this.opened; // another may be open by the time that it is written
    this.ask("edit", { rank, name, ...this.cell, value: this.field.value });
  }
}

function whole({ window: [top, bottom, left, right], rows, columns }) {
  return top === 0 && left === 0 && bottom === rows && right === columns;
}

/** A number of a tensor; null where the picture has no cell for it. */
function valueAt({ window: [top, bottom, left, right], places, cells, exact }, { row, column }) {
  const seen = exact && top <= row && row < bottom && left <= column && column < right;
  return seen ? floatsOf(cells)[(row - top) * places + column - left] : null;
}

function hint(part) {
  const size = `${part.rows} × ${part.columns}`;
  const sketch = part.sketch ? "This is a sketch: not all numbers were read. " : "";
  return part.exact ? `${size}: point at a number; a click edits it.`
    : `${sketch}${size}: a cell stands for several numbers; a click shows what is around it.`;
}

function oddKeys() {
  return element("span", {}, dotOf(NOT_A_NUMBER), "NaN ", dotOf(INFINITE), "Inf");
}

/** A row of images with the numbers of their samples. */
export function imagesOf(images, first = 0) {
  const row = element("div", { class: "images" });
  thumbnails(images, (number) => {
    const canvas = element("canvas", { role: "img", "aria-label": `image ${first + number}` });
    canvas.style.width = `${Math.max(24, Math.min(96, images.width * 2))}px`;
    row.append(element("figure", {}, canvas, element("figcaption", {}, String(first + number))));
    return canvas;
  });
  return row;
}
