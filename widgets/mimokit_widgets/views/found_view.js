// What a search found: a chart and the best few as a table; a click on either takes a layout.

import { button, element, setAttribute, setText, tableParts } from "mimokit/dom.js";
import { ParetoChart, modeSign } from "./pareto_chart.js";

export class FoundView {
  /** take(index) is called with the clicked layout. */
  constructor(host, take) {
    this.take = take;
    this.title = element("p", { class: "found-title" });
    this.cut = element("ul", { class: "muted" });
    this.legend = element("div", { class: "legend" });
    this.area = element("div", { class: "area" });
    this.table = element("table", { class: "best" });
    this.telling = element("p", { class: "telling" });
    this.root = element("div", { class: "found" }, this.title, this.cut, this.legend, this.area,
      this.table, this.telling);
    host.append(this.root);
    this.chart = new ParetoChart(this.area, take, (index) => this.look(index));
    this.rows = [];
  }

  update(found) {
    setText(this.title, found.title);
    this.cut.hidden = !found.cut.length;
    this.cut.replaceChildren(...found.cut.map((sentence) => element("li", {}, sentence)));
    this.legend.replaceChildren(
      ...found.modes.map(({ name, color }) => element("span", {}, modeSign(name, color), name)),
      element("span", { class: "muted" }, "larger: more GPUs"),
      element("span", { class: "muted" }, "filled: none beats it in time, memory and GPUs at once"),
      element("span", { class: "muted" }, "ring: the best"));
    this.fill(found);
    this.tell(found);
    this.chart.update(found);
  }

  fill(found) {
    const colors = new Map(found.modes.map(({ name, color }) => [name, color]));
    this.figures = found.figures;
    this.verbs = found.verbs ?? ["Load", "Loaded"];
    const best = found.layouts.slice(0, found.rows);
    this.rows = best.map((layout, at) => this.row(layout, at, colors.get(layout.mode)));
    const heads = ["", ...this.figures.map(([, label]) => label), "layout"];
    this.table.replaceChildren(element("caption", {}, "The best layouts"),
      ...tableParts(heads, this.rows.map((row) => row.node)));
  }

  /** Offer the layouts whose runs would teach most. */
  tell({ telling, layouts }) {
    this.telling.hidden = !telling.length;
    this.telling.replaceChildren("To fit predictions to your cluster, run these and give them to "
      + "calibrate --from: ", ...telling.flatMap((at) => [
      button(layouts[at].short, () => this.take(at), { title: layouts[at].words }), " "]));
  }

  row(layout, at, color) {
    const [verb] = this.verbs;
    const load = button(verb, () => this.take(at), {
      "aria-label": `${verb} layout ${at + 1}: ${layout.words}`,
      keydown: (event) => this.key(event, at), focus: () => this.look(at),
      blur: () => this.look(null) });
    const how = element("td", { class: "how" }, modeSign(layout.mode, color), layout.mode,
      ...layout.modules.map((module) => element("div", { class: "muted" }, module)));
    const node = element("tr", { "data-index": at,
      click: (event) => event.target === load || this.take(at),
      pointerenter: () => this.look(at), pointerleave: () => this.look(null) },
    element("td", {}, load), ...this.figures.map(([key]) => this.figure(layout, key)), how);
    return { node, load };
  }

  figure({ texts, notes, fits }, key) {
    return element("td", { class: key === "memory" && !fits ? "bad" : "" }, texts[key],
      notes[key] ? element("div", { class: "muted" }, notes[key]) : null);
  }

  key(event, at) {
    const by = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    this.rows[at + by]?.load.focus();
  }

  look(index) {
    this.rows.forEach(({ node }, at) => node.classList.toggle("looked", at === index));
    this.chart.mark(index);
  }

  /** Say which layout stands in the planner, or was picked. */
  show(loaded) {
    this.chart.show(loaded);
    this.rows.forEach(({ node, load }, at) => {
      node.classList.toggle("loaded", at === loaded);
      setText(load, this.verbs[at === loaded ? 1 : 0]);
      setAttribute(load, "aria-pressed", at === loaded ? "true" : null);
    });
  }
}
