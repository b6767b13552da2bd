// Frames of samples to type and drag, the loads of ranks, and what travels between them.

import { choices, element, freshId, setAttribute, setText } from "mimokit/dom.js";
import { TrafficView } from "./traffic_view.js";

const FRAME_FIELDS = [
  ["ranks", "Ranks", "that share the frames"],
  ["frame_time", "Time per frame", "of the encoder: 2 ms"],
  ["fixed_time", "Fixed time", "of the encoder on every rank, whatever frames it has: 100 ms"],
  ["bandwidth", "Bandwidth", "of a rank: 400 Gbit/s, 25 GB/s"],
  ["latency", "Latency", "of a collective: 20 us"],
];
const LEAST_SCALE = 8;
const KEYS = { ArrowUp: 1, ArrowRight: 1, ArrowDown: -1, ArrowLeft: -1, PageUp: 8, PageDown: -8 };

export class FrameView {
  /** send(message) tells Python what the user did. */
  constructor(host, send) {
    this.send = (message) => {
      if (!send({ type: "frames", ...message })) this.update(this.picture, this.numbers);
    };
    this.counts = element("textarea", { rows: 2, spellcheck: "false", id: freshId("counts"),
      input: () => this.send({ field: "counts", text: this.counts.value }) });
    this.inputs = Object.fromEntries(FRAME_FIELDS.map(([name, label, hint]) =>
      [name, element("input", { type: "text", title: hint, "aria-label": label,
        input: (event) => this.send({ field: name, text: event.target.value }) })]));
    this.planner = null;
    this.planners = element("div", {});
    this.problem = element("p", { class: "problem", role: "alert", id: freshId("problem") });
    this.sentence = element("p", { class: "sentence", role: "status" });
    this.samples = element("div", { class: "samples", role: "group",
      "aria-label": "Frames of every sample; drag or use the arrow keys" });
    this.more = element("p", { class: "muted" });
    this.axis = element("div", { class: "axis muted", "aria-hidden": "true" });
    this.build(host);
  }

  build(host) {
    const label = element("label", { for: this.counts.id, class: "muted" },
      "Frames of every sample; a slash starts the next rank");
    const fields = FRAME_FIELDS.map(([name, text]) =>
      element("label", { class: "field" }, element("span", {}, text), this.inputs[name]));
    const key = element("p", { class: "key muted" }, ...[["fixed", "whatever is encoded"],
      ["before", "as read"],
      ["kept", "encoded where read"], ["received", "encoded for other ranks"]].flatMap(
      ([name, text]) => [element("i", { class: `dot ${name}` }), element("span", {}, text)]));
    const matrix = element("div", {});
    this.root = element("div", { class: "frame-balance" }, label, this.counts,
      element("div", { class: "fields" }, ...fields, this.planners), this.problem, this.sentence,
      element("h4", {}, "Frames of the samples of each rank, and below them its encoder time"),
      key, element("div", { class: "with-axis" }, this.axis, this.samples), this.more,
      element("h4", {}, "What travels"), matrix);
    host.append(this.root);
    this.traffic = new TrafficView(matrix, () => {});
  }

  update(picture, numbers) {
    Object.assign(this, { picture, numbers });
    this.fill(this.counts, picture.fields.counts, "counts");
    for (const [name, input] of Object.entries(this.inputs)) {
      this.fill(input, picture.fields[name], name);
    }
    this.choosePlanner(picture);
    setText(this.problem, picture.problem?.sentence ?? "");
    this.problem.hidden = !picture.problem;
    this.root.classList.toggle("stale", Boolean(picture.problem));
    if (!picture.ranks.length) return;
    setText(this.sentence, picture.sentence);
    this.sentence.classList.toggle("good", picture.good);
    this.drawRanks(picture);
    this.drawSamples(picture);
    this.drawLoads(picture);
    this.traffic.update(picture.traffic, numbers);
  }

  /** Show a text, unless the user is typing another. */
  fill(input, text, name) {
    if (input !== input.getRootNode().activeElement) input.value = text;
    const wrong = this.picture.problem?.field === name;
    setAttribute(input, "aria-invalid", wrong ? "true" : null);
    setAttribute(input, "aria-describedby", wrong ? this.problem.id : null);
  }

  choosePlanner({ planners, fields }) {
    if (!this.planner) {
      this.planner = choices("Planner", "planner", planners,
        (name) => this.send({ field: "planner", text: name }));
      this.planners.replaceChildren(this.planner.node);
    }
    this.planner.set(fields.planner);
  }

  /** A column for each rank: its samples, its name, and below them its time. */
  drawRanks({ samples, ranks }) {
    const key = JSON.stringify([samples.map(({ rank }) => rank), ranks.map(({ label }) => label)]);
    if (key === this.columnsKey) return;
    this.columnsKey = key;
    const focused = this.bars?.findIndex((bar) => bar.slider === document.activeElement) ?? -1;
    this.bars = samples.map((_, at) => this.sampleBar(at));
    this.ranks = ranks.map((rank, number) => this.rankColumn(rank, this.bars.filter((_, at) =>
      samples[at].rank === number)));
    this.line = element("div", { class: "mean" }, element("span", {}));
    this.samples.replaceChildren(element("div", { class: "plot" },
      ...this.ranks.map(({ node }) => node), this.line));
    this.bars[focused]?.slider.focus();
  }

  rankColumn({ label }, bars) {
    const [fixed, before, kept, received] = ["fixed", "before", "kept", "received"].map((name) =>
      element("i", { class: name }));
    const again = element("i", { class: "fixed" });
    const node = element("div", { class: "load", role: "img" },
      element("div", { class: "pair" }, element("div", { class: "as-read" }, before, fixed),
        element("div", { class: "after" }, received, kept, again)));
    const column = element("div", { class: "rank-column",
      style: `min-width:${Math.max(20 * bars.length, 7 * label.length + 6)}px` },
    element("div", { class: "its-samples" }, ...bars.map((bar) => bar.slider)),
    element("div", { class: "rank muted" }, label), node);
    return { node: column, load: node, parts: { before, kept, received }, fixed: [fixed, again] };
  }

  drawSamples({ samples, more }) {
    const most = Math.max(LEAST_SCALE, ...samples.map((sample) => sample.frames));
    this.most = most;
    if (!this.dragging) this.scale = 1.25 * most;
    samples.forEach((sample, at) => {
      const bar = this.bars[at];
      if (this.dragging !== bar) this.setBar(bar, sample.frames);
      setAttribute(bar.slider, "aria-label", `Frames of sample ${at}, read by rank ${sample.rank}`);
    });
    setText(this.more, more ? `… and ${more.toLocaleString("en")} more samples` : "");
    this.more.hidden = !more;
  }

  sampleBar(at) {
    const fill = element("i", {});
    const count = element("span", { class: "count" });
    const slider = element("div", { class: "slider", role: "slider", tabindex: 0,
      "aria-orientation": "vertical", "aria-valuemin": 0,
      pointerdown: (event) => this.grab(event, bar), pointermove: (event) => this.drag(event, bar),
      pointerup: () => this.drop(), pointercancel: () => this.drop(),
      keydown: (event) => this.key(event, bar) }, count, fill);
    const bar = { at, slider, fill, count };
    return bar;
  }

  setBar(bar, frames) {
    bar.frames = frames;
    bar.fill.style.height = `${Math.min(100, 100 * frames / this.scale)}%`;
    setText(bar.count, String(frames));
    setAttribute(bar.slider, "aria-valuenow", frames);
    setAttribute(bar.slider, "aria-valuemax", Math.max(frames, Math.round(this.scale)));
  }

  grab(event, bar) {
    bar.slider.setPointerCapture(event.pointerId);
    this.dragging = bar;
    this.drag(event, bar);
  }

  drag(event, bar) {
    if (this.dragging !== bar) return;
    const box = bar.slider.getBoundingClientRect();
    const share = (box.bottom - event.clientY) / box.height;
    this.change(bar, Math.max(0, Math.round(share * this.scale)));
  }

  drop() {
    this.dragging = null;
    if (this.picture) this.drawSamples(this.picture);
  }

  key(event, bar) {
    const ends = { Home: -bar.frames, End: this.most - bar.frames };
    const by = ends[event.key] ?? KEYS[event.key];
    if (by === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    this.change(bar, Math.max(0, bar.frames + by));
  }

  /** Show another count at once; Python gets the last one of each animation frame. */
  change(bar, frames) {
    if (frames === bar.frames) return;
    this.setBar(bar, frames);
    this.due = { field: "sample", sample: bar.at, frames };
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.send(this.due);
    });
  }

  drawLoads({ ranks, fixed, mean, mean_text: text, words, ticks }) {
    const height = (node, share) => { node.style.height = `${(100 * share).toFixed(2)}%`; };
    ranks.forEach((rank, at) => {
      const { load, parts, fixed: fixedParts } = this.ranks[at];
      load.title = rank.title;
      setAttribute(load, "aria-label", rank.title);
      for (const [name, part] of Object.entries(parts)) height(part, rank[name]);
      for (const part of fixedParts) height(part, fixed);
    });
    this.axis.replaceChildren(...[[0, "0"], ...ticks].map(([share, text]) =>
      element("span", { style: `--at:${share}` }, text)));
    this.line.style.setProperty("--at", mean.toFixed(4));
    setText(this.line.firstChild, text);
    setAttribute(this.samples, "aria-label",
      `Frames of every sample; drag or use the arrow keys. ${words}`);
  }

  remove() {
    if (this.frame) cancelAnimationFrame(this.frame);
    this.traffic.remove();
  }
}
