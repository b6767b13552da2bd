// The batch split: samples in a row, below them who computes which.

import { button, choices, element, freshId, setAttribute, setText, vector } from "mimokit/dom.js";
import { Redraw } from "mimokit/redraw.js";
import { inkOn, shades, themeOf } from "mimokit/theme.js";
import { Tip } from "mimokit/tip.js";

const WIDEST_LABEL = 170;
const [SAMPLE_HEIGHT, LANE_HEIGHT, BETWEEN] = [24, 34, 40];
const MOST_BOXES = 128;
const LETTER = 0.6; // width of a letter as a share of its size, in boxes
const LABEL_LETTER = 8.3; // pixels

const topOfLane = (at) => SAMPLE_HEIGHT + BETWEEN + at * (LANE_HEIGHT + BETWEEN);

export class BatchSplitView {
  /** follow(sample or null, backward) is called with the sample to follow. */
  constructor(host, follow) {
    this.follow = follow;
    this.walk = null;
    const live = freshId("walk");
    this.picture = element("div", { role: "img", class: "batch", "aria-describedby": live,
      click: (event) => this.choose(this.sampleUnder(event)),
      pointermove: (event) => this.hover(event), pointerleave: () => this.tip.hide() });
    this.number = element("input", { type: "text", inputmode: "numeric", size: 5,
      "aria-label": "Sample to follow", placeholder: "none",
      change: () => this.choose(this.number.value.trim() === "" ? null : Number(this.number.value)),
    });
    this.count = element("span", { class: "muted" });
    this.way = choices("Direction", "way", [["forward", "forward"], ["backward", "backward"]],
      (value) => this.choose(this.walk?.sample ?? 0, value === "backward"));
    this.way.set("forward");
    this.steps = element("ol", { class: "steps", id: live, "aria-live": "polite" });
    const tools = element("div", { class: "tools" }, "Follow sample",
      button("‹", () => this.stepBy(-1), { "aria-label": "Sample before" }), this.number,
      button("›", () => this.stepBy(1), { "aria-label": "Next sample" }), this.count,
      this.way.node);
    this.note = element("div", { class: "muted" });
    const area = element("div", { class: "area" }, this.picture);
    this.root = element("div", { class: "batch-split" },
      element("div", { class: "bar" }, this.note, tools), area, this.steps);
    host.append(this.root);
    this.tip = new Tip(area);
    this.redraw = new Redraw(area, () => this.draw());
  }

  update(batch) {
    this.batch = batch;
    setText(this.count, `of ${batch.samples.toLocaleString("en")}`);
    const times = batch.microbatches === 1 ? "once" : `${batch.microbatches.toLocaleString("en")} times`;
    setText(this.note, `One micro-batch; ${times} a step.`);
    this.redraw.soon();
  }

  showWalk(walk) {
    this.walk = walk && "sample" in walk ? walk : null;
    if (document.activeElement !== this.number) this.number.value = this.walk?.sample ?? "";
    this.way.set(this.walk?.backward ? "backward" : "forward");
    this.steps.replaceChildren(...(this.walk?.steps ?? []).map((step) => element("li", {}, step)));
    this.redraw.soon();
  }

  choose(sample, backward = this.walk?.backward ?? false) {
    const wrong = sample !== null && !Number.isInteger(sample);
    setAttribute(this.number, "aria-invalid", wrong ? "true" : null);
    if (!wrong) this.follow(sample, backward);
  }

  stepBy(by) {
    const sample = this.walk === null ? 0 : this.walk.sample + by;
    this.number.value = sample;
    this.choose(Math.min(this.batch.samples - 1, Math.max(0, sample)));
  }

  sampleUnder(event) {
    const { left } = this.picture.getBoundingClientRect();
    const place = (event.clientX - left - this.labels) / this.wide;
    return place < 0 || place >= 1 ? null : Math.floor(place * this.batch.samples);
  }

  hover(event) {
    const sample = this.sampleUnder(event);
    if (sample === null) return this.tip.hide();
    const lane = this.batch.lanes[event.target.closest("[data-lane]")?.dataset.lane];
    const lines = (lane ? [lane] : this.batch.lanes).map(({ module, each, ranks }) => {
      const replica = Math.floor(sample / each);
      return `${module}  replica ${replica}${ranks[replica] ? `, ${ranks[replica]}` : ""}`;
    });
    return this.tip.show(event, [`sample ${sample}`, ...lines].join("\n"));
  }

  draw() {
    const { batch, picture } = this;
    if (!batch || !picture.clientWidth) return;
    const theme = themeOf(this.root);
    const names = ["micro-batch", ...batch.lanes.map(({ module }) => module)];
    const longest = Math.max(...names.map((name) => name.length));
    this.labels = Math.min(WIDEST_LABEL, Math.ceil(LABEL_LETTER * longest) + 12);
    this.wide = picture.clientWidth - this.labels;
    picture.style.gridTemplateColumns = `${this.labels}px 1fr`;
    picture.replaceChildren(this.bridges(), ...names.map((name, at) =>
      element("b", { style: `grid-row:${at + 1}`, class: at ? null : "muted", title: name }, name)),
    this.samples(), ...batch.lanes.map((lane, at) => this.lane(lane, at, theme)),
    ...(this.walk ? this.walked() : []));
    setAttribute(picture, "aria-label", batch.words);
  }

  samples() {
    const count = Math.min(this.batch.samples, MOST_BOXES);
    const numbered = count === this.batch.samples && this.wide / count > 17;
    return boxes(0, Array.from({ length: count }, (_, at) => element("div", {},
      numbered ? at : "")), this.wide / count);
  }

  /** A box for each replica; many of them are a pattern of their two colours. */
  lane(lane, at, theme) {
    const colors = shades(lane.color, theme);
    const wide = this.wide / lane.replicas;
    if (lane.replicas > MOST_BOXES) {
      const share = 100 / lane.replicas;
      return element("div", { class: "boxes", "data-lane": at, style: `grid-row:${at + 2};background:`
        + `repeating-linear-gradient(90deg,${colors[0]} 0 ${share}%,${colors[1]} 0 ${2 * share}%)` });
    }
    const words = wordsOf(lane, wide);
    return boxes(at + 1, Array.from({ length: lane.replicas }, (_, replica) => {
      const color = colors[replica % 2];
      return element("div", { style: `background:${color};color:${inkOn(color)}` },
        ...words(replica));
    }), wide, at);
  }

  /** Lines from the replicas of a source to those of its destination: they fan in or out. */
  bridges() {
    const { samples, lanes, bridges } = this.batch;
    const paths = bridges.map(({ source, destination }) => {
      const [from, to] = [source, destination].map((name) =>
        lanes.findIndex(({ module }) => module === name));
      const shown = Math.min(MOST_BOXES, Math.max(lanes[from].replicas, lanes[to].replicas));
      const [y1, y2] = [topOfLane(from) + LANE_HEIGHT, topOfLane(to)];
      const curves = Array.from({ length: shown }, (_, piece) => {
        const [x1, x2] = [from, to].map((at) => {
          const { each } = lanes[at];
          return (Math.floor(((piece + 0.5) / shown) * samples / each) + 0.5) * each;
        });
        return `M${x1},${y1}C${x1},${(y1 + y2) / 2} ${x2},${(y1 + y2) / 2} ${x2},${y2}`;
      });
      return vector("path", { d: curves.join(""), stroke: lanes[from].color,
        "stroke-width": Math.max(0.6, Math.min(1.6, 90 / shown)) });
    });
    const height = topOfLane(lanes.length) - BETWEEN;
    return vector("svg", { viewBox: `0 0 ${samples} ${height}`, preserveAspectRatio: "none",
      style: `grid-row:1 / span ${lanes.length + 1};height:${height}px` }, ...paths);
  }

  /** Frames around the sample and its replicas; arrows down the gaps, or up with its gradient. */
  walked() {
    const { sample, replicas, backward } = this.walk;
    const { samples, lanes } = this.batch;
    const share = (count) => `${(100 * count) / samples}%`;
    const places = [[sample, 1], ...lanes.map(({ module, each }) => [replicas[module] * each, each])];
    return places.flatMap(([from, each], at) => [
      element("i", { class: "frame", style: `grid-row:${at + 1};left:${share(from)};width:${share(each)}` }),
      ...(at < lanes.length ? [element("i", { class: backward ? "arrow up" : "arrow",
        style: `grid-row:${at + 1};left:${share(sample + 0.5)}` })] : [])]);
  }

  remove() {
    this.redraw.end();
  }
}

function boxes(row, made, wide, lane = null) {
  return element("div", { class: row ? "boxes" : "boxes samples", "data-lane": lane,
    style: `grid-row:${row + 1};--gap:${wide > 6 ? 2 : 0.7}px` }, ...made);
}

/** What stands in the boxes of a lane: all alike, in the size at which the longest fits. */
function wordsOf({ replicas, ranks }, wide) {
  const fits = (letters, size, room) => letters * LETTER * size <= room;
  const digits = String(replicas - 1).length;
  const size = [11, 10, 9].find((each) => fits(digits, each, wide - 4));
  const named = fits("replica ".length + digits, 11, wide - 8);
  return (replica) => (size ? [
    element("b", { style: `font-size:${size}px` }, `${named ? "replica " : ""}${replica}`),
    fits((ranks[replica] ?? "").length || Infinity, 10.5, wide - 8)
      ? element("span", {}, ranks[replica]) : null] : []);
}
