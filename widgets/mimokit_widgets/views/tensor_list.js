// The tensors of a rank, each with a small picture; one of them can be opened.

import { drawCells, floatsOf, heatPixels, largest } from "./heat_colors.js";
import { button, element, setAttribute, setText } from "mimokit/dom.js";

export class TensorList {
  constructor(open) {
    this.open = open;
    this.title = element("h4", {});
    this.list = element("div", { class: "tensor-list", role: "group" });
    this.node = element("section", { class: "tensors-of-rank" }, this.title, this.list);
  }

  draw(tensors, opened, dark) {
    const { rank, pictures } = tensors;
    this.node.hidden = rank === undefined;
    if (rank === undefined) return;
    if (tensors !== this.drawn || dark !== this.dark) {
      setText(this.title, pictures.length ? `Tensors of rank ${rank}`
        : `Rank ${rank} has no tensors between its steps here.`);
      this.list.setAttribute("aria-label", this.title.textContent);
      this.entries = new Map(pictures.map((each) => [each.name, this.entry(each, dark)]));
      this.list.replaceChildren(...this.entries.values());
    }
    Object.assign(this, { drawn: tensors, dark });
    for (const [name, entry] of this.entries) {
      setAttribute(entry, "aria-pressed", String(name === opened));
    }
  }

  entry(picture, dark) {
    const canvas = element("canvas", { "aria-hidden": "true" });
    const values = floatsOf(picture.cells);
    drawCells(canvas, values, picture.lines, picture.places, heatPixels(largest(values), dark));
    const entry = button("", () => this.open(picture.name), { class: "tensor",
      "data-key": `tensor ${picture.name}` });
    entry.append(canvas, element("b", {}, picture.name),
      element("span", { class: "muted" }, `${picture.shape} ${picture.dtype}`),
      element("span", { class: picture.odd ? "odd" : "muted" }, picture.said));
    return entry;
  }
}
