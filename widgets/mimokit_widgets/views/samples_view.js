// Samples as histograms with tails to drag, steps over them, and which replicas wait in a batch.

import { button, chooser, element, freshId, offer, setText, tableParts, tickBox } from "mimokit/dom.js";
import { TimelineView } from "mimokit/timeline_view.js";

const SLIDER_STEPS = 200;

export class SamplesView {
  /** send(message) tells Python what the user did. */
  constructor(host, send) {
    this.send = (message) => send({ type: "samples", ...message });
    this.source = chooser(null, [], (source) => this.send({ source }), { id: freshId("source") });
    this.dropped = element("div", { class: "tools" });
    this.histograms = element("div", { class: "histograms" });
    this.problem = element("p", { class: "problem", role: "alert" });
    this.table = element("table", { class: "lines" });
    this.said = element("p", { class: "muted" });
    this.search = button("Find the best layout", () => this.send({ search: true }),
      { title: "Search all layouts for these samples, on as many GPUs as the tab Search says" });
    this.found = element("span", { role: "status" });
    this.take = button("Load", () => this.send({ take: true }), { title: "Load this layout" });
    this.batch = element("p", { class: "sentence", role: "status" });
    this.root = element("div", { class: "samples-view" },
      element("label", { for: this.source.id, class: "muted" }, "Samples of "), this.source,
      this.dropped, this.histograms, this.problem, element("div", { class: "scrolled" },
        this.table), this.said, element("div", { class: "tools" }, this.search, this.found, this.take),
      this.batch);
    this.timeline = new TimelineView(this.root);
    host.append(this.root);
    this.columns = new Map();
  }

  update(picture) {
    offer(this.source, picture.sources);
    this.source.value = picture.source;
    this.dropped.replaceChildren(...picture.modalities.map(({ name, on: isOn }) => {
      const box = tickBox(name, (on) => this.send({ modality: name, on }));
      box.checked = isOn;
      return box.parentNode;
    }));
    this.drawColumns(picture.columns);
    setText(this.problem, picture.problem);
    this.problem.hidden = !picture.problem;
    this.table.replaceChildren(...tableParts(picture.headings, picture.rows));
    setText(this.said, picture.said);
    setText(this.found, picture.found);
    this.search.disabled = picture.searching;
    this.take.hidden = !picture.loads;
    setText(this.batch, picture.batch ?? "");
    this.timeline.node.hidden = !picture.timeline;
    if (picture.timeline) this.timeline.update(picture.timeline);
  }

  /** A slider that is dragged stays the element that it is. */
  drawColumns(columns) {
    const names = columns.map(({ name }) => name).join();
    if (names !== this.names) {
      this.names = names;
      this.columns = new Map(columns.map((column) => [column.name, this.column(column)]));
      this.histograms.replaceChildren(...[...this.columns.values()].map(({ node }) => node));
    }
    for (const { name, bars, most, largest } of columns) {
      const { plot, slider, end } = this.columns.get(name);
      const tallest = Math.max(...bars.map(({ share }) => share), 1e-9);
      plot.replaceChildren(...bars.map(({ share, tail, label }, at) => element("button", {
        type: "button", class: tail || null, title: label, "aria-label": `${name} ${label}`,
        style: `height:${Math.max(2, 100 * share / tallest)}%`,
        click: () => this.send({ column: name, bar: at }) })));
      Object.assign(slider, { max: largest, step: largest / SLIDER_STEPS });
      if (slider !== slider.getRootNode().activeElement) slider.value = most;
      setText(end, `up to ${most.toLocaleString("en", { maximumFractionDigits: 1 })}`);
    }
  }

  column({ name }) {
    const plot = element("div", { class: "plot" });
    const slider = element("input", { type: "range", min: 0, "aria-label": `End of ${name}`,
      input: () => this.send({ column: name, most: Number(slider.value), dragging: true }),
      change: () => this.send({ column: name, most: Number(slider.value) }) });
    const end = element("span", { class: "muted" });
    const node = element("div", { class: "column" }, element("div", {}, name), plot, slider, end);
    return { node, plot, slider, end };
  }

  remove() {
    this.timeline.remove();
  }
}
