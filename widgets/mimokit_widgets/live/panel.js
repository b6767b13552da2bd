// One chart with its caption: draws itself, and hears the pointer and the keyboard.

import { element, setAttribute } from "../views/dom.js";
import { PlotArea } from "./area.js";

const SMALLEST_DRAG = 6; // pixels; less is a click

export class ChartPanel {
  /** `chart` has height(store) and draw(area, store, theme); `view` is the whole monitor. */
  constructor(view, chart, { title, wide = false, overIterations = true }) {
    this.view = view;
    this.chart = chart;
    this.title = title;
    this.overIterations = overIterations;
    this.keys = element("span", { class: "keys" });
    this.shownKeys = "";
    this.canvas = element("canvas", { role: "img", tabindex: overIterations ? 0 : null });
    this.figure = element("figure", { class: wide ? "wide" : null },
      element("figcaption", {}, element("b", {}, title), this.keys), this.canvas);
    this.say = () => null;
    this.dragFrom = null;
    this.listen();
  }

  draw(store, scope, theme) {
    const area = new PlotArea(this.canvas, this.chart.height(store), scope, theme);
    this.area = area;
    if (this.overIterations) area.warmup(this.view.warmup());
    const drawn = this.chart.draw(area, store, theme);
    this.say = drawn.say;
    this.showKeys(drawn.keys, drawn.note);
    const words = [this.title, drawn.text].filter((part) => part).join(": ");
    setAttribute(this.canvas, "aria-label", words);
    if (!this.overIterations) return;
    area.guides(this.view.marks(), this.view.pointed);
    if (this.dragFrom !== null && this.view.pointed !== null) {
      area.selection(this.dragFrom.iteration, this.view.pointed);
    }
  }

  showKeys(keys, note) {
    const now = JSON.stringify([keys, note]);
    if (now === this.shownKeys) return;
    this.shownKeys = now;
    const nodes = keys.map(([text, color]) => {
      const swatch = element("i");
      swatch.style.background = color;
      return element("span", { class: "key" }, swatch, text);
    });
    if (note) nodes.push(element("span", {}, note));
    this.keys.replaceChildren(...nodes);
  }

  listen() {
    this.canvas.addEventListener("pointermove", (event) => this.moved(event));
    this.canvas.addEventListener("pointerleave", () => this.left());
    if (!this.overIterations) return;
    this.canvas.addEventListener("pointerdown", (event) => this.pressed(event));
    this.canvas.addEventListener("pointerup", (event) => this.released(event));
    this.canvas.addEventListener("dblclick", () => this.view.zoomBack());
    this.canvas.addEventListener("keydown", (event) => this.view.key(event));
  }

  moved(event) {
    this.view.tip.show(event, this.say(event.offsetX, event.offsetY));
    if (this.overIterations) this.view.point(this.area?.iterationAt(event.offsetX) ?? null);
  }

  left() {
    this.view.tip.hide();
    this.dragFrom = null;
    this.view.point(null);
  }

  pressed(event) {
    const iteration = this.area?.iterationAt(event.offsetX) ?? null;
    this.dragFrom = iteration === null ? null : { iteration, x: event.offsetX };
  }

  released(event) {
    const from = this.dragFrom;
    const iteration = this.area?.iterationAt(event.offsetX) ?? null;
    this.dragFrom = null;
    if (from === null || iteration === null) return;
    if (Math.abs(event.offsetX - from.x) < SMALLEST_DRAG) this.view.toggleMark(iteration);
    else this.view.zoom(Math.min(from.iteration, iteration), Math.max(from.iteration, iteration));
  }
}
