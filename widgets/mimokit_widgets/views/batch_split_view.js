// The batch split: samples in a row, below them who computes which.

import { button, choices, element, freshId, setAttribute, setText } from "mimokit/dom.js";
import { Redraw } from "mimokit/redraw.js";
import { FONT, inkOn, prepared, shades, themeOf } from "mimokit/theme.js";
import { Tip } from "mimokit/tip.js";

const WIDEST_LABEL = 170;
const SAMPLE_HEIGHT = 24;
const LANE_HEIGHT = 34;
const BETWEEN = 46;
const MOST_BOXES = 128;
const LABEL_FONT = `600 12px ${FONT}`;

export class BatchSplitView {
  /** follow(sample or null, backward) is called with the sample to follow. */
  constructor(host, follow) {
    this.follow = follow;
    this.walk = null;
    const live = freshId("walk");
    this.canvas = element("canvas", { role: "img", class: "batch", "aria-describedby": live,
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
    const area = element("div", { class: "area" }, this.canvas);
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
    const place = (event.offsetX - this.left) / this.pixels;
    return place < 0 || place >= this.batch.samples ? null : Math.floor(place);
  }

  hover(event) {
    const sample = this.sampleUnder(event);
    if (sample === null) return this.tip.hide();
    const lines = [`sample ${sample}`];
    const lane = this.lanes.find(({ top }) => event.offsetY >= top
      && event.offsetY < top + LANE_HEIGHT)?.lane;
    for (const each of lane ? [lane] : this.batch.lanes) {
      const replica = Math.floor(sample / each.each);
      lines.push(`${each.module}  replica ${replica}` +
        (each.ranks[replica] ? `, ${each.ranks[replica]}` : ""));
    }
    return this.tip.show(event, lines.join("\n"));
  }

  draw() {
    const width = this.canvas.parentElement.clientWidth;
    if (!this.batch || !width) return;
    const { batch } = this;
    this.theme = themeOf(this.root);
    const height = SAMPLE_HEIGHT + batch.lanes.length * (LANE_HEIGHT + BETWEEN) - 14;
    const context = prepared(this.canvas, width, height);
    this.left = this.labelWidth(context);
    this.pixels = (width - this.left - 2) / batch.samples;
    this.lanes = batch.lanes.map((lane, at) => ({ lane,
      top: SAMPLE_HEIGHT + (BETWEEN - 16) + at * (LANE_HEIGHT + BETWEEN) }));
    this.drawBridges(context);
    this.drawSamples(context);
    for (const { lane, top } of this.lanes) this.drawLane(context, lane, top);
    if (this.walk) this.drawWalk(context);
    setAttribute(this.canvas, "aria-label", batch.words);
  }

  labelWidth(context) {
    context.font = LABEL_FONT;
    const names = ["micro-batch", ...this.batch.lanes.map((lane) => lane.module)];
    const widest = Math.max(...names.map((name) => context.measureText(name).width));
    return Math.min(WIDEST_LABEL, Math.ceil(widest) + 18);
  }

  label(context, text, color, middle) {
    context.fillStyle = color;
    context.font = LABEL_FONT;
    context.textAlign = "left";
    context.textBaseline = "middle";
    let shown = text;
    while (shown.length > 3 && context.measureText(shown).width > this.left - 12) {
      shown = `${shown.slice(0, -2)}…`;
    }
    context.fillText(shown, 0, middle);
  }

  drawSamples(context) {
    const { samples } = this.batch;
    this.label(context, "micro-batch", this.theme.muted, SAMPLE_HEIGHT / 2);
    const boxes = Math.min(samples, MOST_BOXES);
    const wide = (samples * this.pixels) / boxes;
    for (let box = 0; box < boxes; box++) {
      context.fillStyle = this.theme.line;
      context.fillRect(this.left + box * wide, 0, Math.max(0.6, wide - 1.5), SAMPLE_HEIGHT);
      if (boxes === samples && wide > 17) {
        context.fillStyle = this.theme.ink;
        context.font = `11px ${FONT}`;
        context.textAlign = "center";
        context.textBaseline = "middle";
        context.fillText(box, this.left + (box + 0.5) * wide, SAMPLE_HEIGHT / 2);
      }
    }
  }

  drawLane(context, lane, top) {
    this.label(context, lane.module, this.theme.ink, top + LANE_HEIGHT / 2);
    const both = shades(lane.color, this.theme);
    const wide = lane.each * this.pixels;
    const space = wide > 6 ? 2 : wide > 2 ? 0.7 : 0;
    const size = this.numberSize(context, lane, wide);
    for (let replica = 0; replica < lane.replicas; replica++) {
      const left = this.left + replica * wide;
      context.fillStyle = both[replica % 2];
      context.fillRect(left, top, wide - space, LANE_HEIGHT);
      if (!size) continue;
      context.fillStyle = inkOn(both[replica % 2]);
      this.laneText(context, lane, replica, left + wide / 2, top, wide, size);
    }
  }

  /** The size at which the longest number of a replica fits, so that all are alike; or 0. */
  numberSize(context, lane, wide) {
    return [11, 10, 9].find((size) => {
      context.font = `600 ${size}px ${FONT}`;
      return context.measureText(String(lane.replicas - 1)).width <= wide - 4;
    }) ?? 0;
  }

  laneText(context, lane, replica, middle, top, wide, size) {
    const ranks = lane.ranks[replica] ?? "";
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.font = `600 11px ${FONT}`;
    const long = context.measureText(`replica ${lane.replicas - 1}`).width < wide - 8;
    const name = long ? `replica ${replica}` : String(replica);
    context.font = `10.5px ${FONT}`;
    const fits = ranks && context.measureText(ranks).width < wide - 8;
    context.font = `600 ${size}px ${FONT}`;
    context.fillText(name, middle, top + LANE_HEIGHT / 2 - (fits ? 7 : 0));
    context.font = `10.5px ${FONT}`;
    if (fits) context.fillText(ranks, middle, top + LANE_HEIGHT / 2 + 8);
  }

  /** Lines from the replicas of a source to those of its destination: they fan in or out. */
  drawBridges(context) {
    for (const bridge of this.batch.bridges) {
      const [from, to] = [bridge.source, bridge.destination].map((name) =>
        this.lanes.find(({ lane }) => lane.module === name));
      if (!from || !to) continue;
      const many = Math.max(from.lane.replicas, to.lane.replicas);
      const shown = Math.min(many, MOST_BOXES);
      context.strokeStyle = from.lane.color;
      context.lineWidth = Math.max(0.6, Math.min(1.6, 90 / shown));
      context.globalAlpha = 0.75;
      for (let piece = 0; piece < shown; piece++) {
        const sample = ((piece + 0.5) / shown) * this.batch.samples;
        this.connect(context, from, to, sample);
      }
      context.globalAlpha = 1;
    }
  }

  connect(context, from, to, sample) {
    const middle = ({ lane }) =>
      this.left + (Math.floor(sample / lane.each) + 0.5) * lane.each * this.pixels;
    const [x1, x2] = [middle(from), middle(to)];
    const [y1, y2] = [from.top + LANE_HEIGHT, to.top];
    context.beginPath();
    context.moveTo(x1, y1);
    context.bezierCurveTo(x1, y1 + (y2 - y1) * 0.5, x2, y2 - (y2 - y1) * 0.5, x2, y2);
    context.stroke();
  }

  drawWalk(context) {
    const x = this.left + (this.walk.sample + 0.5) * this.pixels;
    context.strokeStyle = this.theme.ink;
    let above = SAMPLE_HEIGHT;
    for (const { top } of this.lanes) { // between the lanes only: their text stays legible
      this.drawStep(context, x, above, top);
      above = top + LANE_HEIGHT;
    }
    const frame = (left, top, wide, high) => {
      context.lineWidth = 2.5;
      context.strokeRect(left, top, Math.max(3, wide), high);
    };
    frame(this.left + this.walk.sample * this.pixels, 1, this.pixels - 1.5, SAMPLE_HEIGHT - 2);
    for (const { lane, top } of this.lanes) {
      const wide = lane.each * this.pixels;
      frame(this.left + this.walk.replicas[lane.module] * wide, top, wide - 2, LANE_HEIGHT);
    }
  }

  /** An arrow down a gap, or up where the gradient is followed. */
  drawStep(context, x, top, bottom) {
    const [tip, back, start] = this.walk.backward
      ? [top + 2, top + 10, bottom - 2] : [bottom - 3, bottom - 11, top + 2];
    context.lineWidth = 2;
    context.beginPath();
    context.moveTo(x, start);
    context.lineTo(x, back);
    context.stroke();
    context.fillStyle = this.theme.ink;
    context.beginPath();
    context.moveTo(x, tip);
    context.lineTo(x - 5, back);
    context.lineTo(x + 5, back);
    context.fill();
  }

  remove() {
    this.redraw.end();
  }
}
