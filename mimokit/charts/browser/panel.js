// One chart with its caption: draws itself, and hears the pointer and the keyboard.

import { PlotArea } from "./area.js";
import { CrossHair } from "./cross_hair.js";
import { element, lineLook, setAttribute, setChildren } from "./dom.js";

const SMALLEST_DRAG = 6; // pixels; less is a click

export class ChartPanel {
  /**
   * `chart` has height(store) and draw(area, store, theme), which returns what to `say` at a place,
   * what lines have `at` an iteration, and `keys` of name, colour and dashes. `view` is an
   * IterationView.
   */
  constructor(view, chart, { title, wide = false, overIterations = true }) {
    this.view = view;
    this.chart = chart;
    this.title = title;
    this.overIterations = overIterations;
    this.keys = element("span", { class: "keys" });
    this.canvas = element("canvas", { role: "img", tabindex: overIterations ? 0 : null });
    this.crossHair = overIterations ? new CrossHair() : null;
    this.heading = element("b", {}, title);
    this.figure = element("figure", { class: wide ? "wide" : null },
      element("figcaption", {}, this.heading, this.keys),
      element("div", { class: "plot" }, this.canvas, this.crossHair?.node));
    this.say = () => null;
    this.at = () => [];
    this.over = false; // is the pointer over this chart?
    this.dragFrom = null;
    this.listen();
  }

  /** `version` changes with all that the chart shows, pointer, marks and restarts aside. */
  draw(store, scope, theme, version) {
    const height = this.chart.height(store);
    const [marks, restarts] = [this.view.marks(), this.view.restarts()];
    const drawn = [version, this.canvas.clientWidth, height, window.devicePixelRatio,
      JSON.stringify([marks, restarts])].join();
    if (this.drawn !== drawn) {
      this.drawn = drawn;
      this.drawChart(store, scope, theme, height);
      if (this.overIterations) {
        this.area.restarts(restarts);
        this.area.marks(marks);
      }
    }
    this.cross();
  }

  drawChart(store, scope, theme, height) {
    this.area = new PlotArea(this.canvas, height, scope, theme);
    if (this.overIterations) this.area.warmup(this.view.warmup());
    const drawn = this.chart.draw(this.area, store, theme);
    this.say = drawn.say;
    this.at = drawn.at ?? (() => []);
    this.showKeys(drawn.keys, drawn.note);
    setAttribute(this.canvas, "aria-label", [this.title, drawn.text].filter(Boolean).join(": "));
  }

  /** Show where the pointer is, in this chart or in another one. */
  cross() {
    if (!this.area || !this.overIterations || this.figure.hidden) return;
    const { pointed } = this.view;
    const rows = this.over || pointed === null ? [] : this.at(pointed);
    this.crossHair.show(this.area, pointed, this.dragFrom?.iteration ?? null, rows);
  }

  showKeys(keys, note) {
    const nodes = keys.map(([text, color, dash]) => {
      const swatch = element("i", { class: dash ? "stroke" : null });
      swatch.style.background = lineLook(color, dash);
      return element("span", { class: "key" }, swatch, text);
    });
    if (note) nodes.push(element("span", {}, note));
    setChildren(this.keys, ...nodes);
  }

  listen() {
    this.canvas.addEventListener("pointermove", (event) => this.moved(event));
    this.canvas.addEventListener("pointerleave", () => this.left());
    this.canvas.addEventListener("click", (event) => this.chart.choose?.(event.offsetX, event.offsetY));
    if (!this.overIterations) return;
    this.canvas.addEventListener("pointerdown", (event) => this.pressed(event));
    this.canvas.addEventListener("pointerup", (event) => this.released(event));
    this.canvas.addEventListener("dblclick", () => this.view.zoomBack());
    this.canvas.addEventListener("keydown", (event) => this.view.key(event));
  }

  moved(event) {
    this.over = true;
    this.view.tip.show(event, this.say(event.offsetX, event.offsetY));
    if (this.overIterations) this.view.point(this.area?.iterationAt(event.offsetX) ?? null);
  }

  left() {
    this.over = false;
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
