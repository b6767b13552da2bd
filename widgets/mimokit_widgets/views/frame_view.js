// Frames of samples to type and drag, the loads of ranks, and what travels between them.

import { choices, element, freshId, setAttribute, setText } from "./dom.js";
import { themeOf, watchTheme } from "./theme.js";
import { TrafficView } from "./traffic_view.js";

const FRAME_FIELDS = [
  ["ranks", "Ranks", "that share the frames"],
  ["frame_time", "Time per frame", "of the encoder: 2 ms"],
  ["bandwidth", "Bandwidth", "of a rank: 400 Gbit/s, 25 GB/s"],
  ["latency", "Latency", "of a collective: 20 us"],
];
const LEAST_SCALE = 8;
const KEYS = { ArrowUp: 1, ArrowRight: 1, ArrowDown: -1, ArrowLeft: -1, PageUp: 8, PageDown: -8 };

export class FrameView {
  /** send(message) tells Python what the user did. */
  constructor(host, send) {
    this.send = (message) => send({ type: "frames", ...message });
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
    this.loads = element("div", { class: "loads", role: "img" });
    this.build(host);
    this.stopWatching = watchTheme(() => themeOf(this.root));
  }

  build(host) {
    const label = element("label", { for: this.counts.id, class: "muted" },
      "Frames of every sample; a slash starts the next rank");
    const fields = FRAME_FIELDS.map(([name, text]) =>
      element("label", { class: "field" }, element("span", {}, text), this.inputs[name]));
    const key = element("p", { class: "key muted" }, ...[["before", "as read"],
      ["kept", "encoded where read"], ["received", "encoded for other ranks"]].flatMap(
      ([name, text]) => [element("i", { class: `dot ${name}` }), element("span", {}, text)]));
    const matrix = element("div", {});
    this.root = element("div", { class: "frame-balance" }, label, this.counts,
      element("div", { class: "fields" }, ...fields, this.planners), this.problem, this.sentence,
      element("h4", {}, "Frames per sample"), this.samples, this.more,
      element("h4", {}, "Encoder time per rank"), key, this.loads,
      element("h4", {}, "What travels"), matrix);
    host.append(this.root);
    this.traffic = new TrafficView(matrix, () => {});
  }

  update(picture, numbers) {
    this.picture = picture;
    themeOf(this.root);
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

  drawSamples({ samples, more }) {
    const most = Math.max(LEAST_SCALE, ...samples.map((sample) => sample.frames));
    if (!this.dragging) this.scale = 1.25 * most;
    if (this.bars?.length !== samples.length) {
      this.bars = samples.map((_, at) => this.sampleBar(at));
      this.samples.replaceChildren(...this.bars.map((bar) => bar.node));
    }
    samples.forEach((sample, at) => {
      const bar = this.bars[at];
      const begins = at === 0 || samples[at - 1].rank !== sample.rank;
      bar.node.classList.toggle("begins", begins);
      setText(bar.rank, begins ? `rank ${sample.rank}` : "");
      if (this.dragging !== bar) this.setBar(bar, sample.frames);
      setAttribute(bar.slider, "aria-label", `Frames of sample ${at}, read by rank ${sample.rank}`);
    });
    setText(this.more, more ? `… and ${more.toLocaleString("en")} more samples` : "");
    this.more.hidden = !more;
  }

  sampleBar(at) {
    const fill = element("i", {});
    const count = element("span", { class: "count" });
    const rank = element("span", { class: "rank muted" });
    const slider = element("div", { class: "slider", role: "slider", tabindex: 0,
      "aria-orientation": "vertical", "aria-valuemin": 0,
      pointerdown: (event) => this.grab(event, bar), pointermove: (event) => this.drag(event, bar),
      pointerup: () => this.drop(), pointercancel: () => this.drop(),
      keydown: (event) => this.key(event, bar) }, count, fill);
    const bar = { at, slider, fill, count, rank, node: element("div", { class: "sample" }, slider,
      rank) };
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
    const by = event.key === "Home" ? -bar.frames : KEYS[event.key];
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

  drawLoads({ ranks, mean, mean_text: text, words }) {
    if (this.ranks?.length !== ranks.length) {
      this.ranks = ranks.map(() => {
        const parts = ["before", "kept", "received"].map((name) =>
          element("i", { class: name }));
        const label = element("span", { class: "muted" });
        const node = element("div", { class: "load" },
          element("div", { class: "pair" }, parts[0], element("div", { class: "after" },
            parts[2], parts[1])), label);
        return { node, label, parts };
      });
      this.line = element("div", { class: "mean" }, element("span", {}));
      this.plot = element("div", { class: "plot" }, ...this.ranks.map((rank) => rank.node),
        this.line);
      this.loads.replaceChildren(this.plot);
    }
    this.loads.classList.toggle("many", ranks.length > 32);
    ranks.forEach((rank, at) => {
      const { node, label, parts } = this.ranks[at];
      node.title = rank.title;
      setText(label, rank.label);
      ["before", "kept", "received"].forEach((name, part) => {
        parts[part].style.height = `${(100 * rank[name]).toFixed(2)}%`;
      });
    });
    this.line.style.setProperty("--at", mean.toFixed(4));
    setText(this.line.firstChild, text);
    setAttribute(this.loads, "aria-label", words);
  }

  remove() {
    if (this.frame) cancelAnimationFrame(this.frame);
    this.stopWatching();
    this.traffic.remove();
  }
}
