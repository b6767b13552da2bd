// One timeline: lanes of spans on a canvas, zoomed and panned by pointer and keys.

import { button, dotOf, element, setText } from "./dom.js";
import { openInPerfetto } from "./perfetto.js";
import { Redraw } from "./redraw.js";
import { drawLanes, laneAt, placesOf } from "./timeline_lanes.js";
import { Tip } from "./tip.js";
import { clockText } from "./words.js";

const ZOOM = 1.25;
const PAN = 0.12;
const TIMELINE_KEYS = { w: ["zoom", 1 / ZOOM], s: ["zoom", ZOOM], a: ["pan", -PAN], d: ["pan", PAN],
  "+": ["zoom", 1 / ZOOM], "-": ["zoom", ZOOM] };
const SPAN_MOVES = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };

export class TimelineView {
  constructor(host) {
    this.canvas = element("canvas", { class: "lanes", tabindex: "0", role: "application",
      wheel: (event) => this.wheel(event), pointerdown: (event) => this.grab(event),
      pointermove: (event) => this.move(event), pointerup: () => { this.grabbed = null; },
      pointerleave: () => this.tip.hide(), dblclick: () => this.show(0, this.until),
      keydown: (event) => this.key(event) });
    this.told = element("p", { class: "span-told", "aria-live": "polite" });
    this.sentence = element("p", { class: "muted" });
    this.legend = element("div", { class: "legend timeline-legend" });
    this.tools = element("div", { class: "tools" },
      button("+", () => this.zoom(1 / ZOOM), { "aria-label": "Zoom in (W)" }),
      button("−", () => this.zoom(ZOOM), { "aria-label": "Zoom out (S)" }),
      button("All", () => this.show(0, this.until), { title: "The whole time" }));
    this.perfetto = button("Open in Perfetto", () => openInPerfetto(this.data), { title:
      "Opens ui.perfetto.dev, which gets this timeline from your browser and from nowhere else" });
    this.tools.append(this.perfetto, this.legend);
    this.area = element("div", { class: "area" }, this.canvas);
    this.tip = new Tip(this.area);
    this.node = element("div", { class: "one-timeline" }, this.tools, this.area, this.told,
      this.sentence);
    host.append(this.node);
    this.chosen = -1;
    this.redraw = new Redraw(this.area, () => this.draw());
  }

  /** data: as `timeline_view` makes it; `until`: where the axis ends, if not with the last span. */
  update(data) {
    this.data = data;
    this.byLane = data.lanes.map(() => []);
    data.spans.forEach((span, number) => this.byLane[span[0]].push(number));
    this.until = data.until || Math.max(1e-9, ...data.spans.map((span) => span[3]));
    this.chosen = -1;
    this.perfetto.hidden = !data.perfetto;
    setText(this.sentence, data.sentence);
    this.sentence.hidden = !data.sentence;
    this.legend.replaceChildren(...data.keys.map(({ name, color }) =>
      element("span", {}, dotOf(color), name)));
    this.canvas.setAttribute("aria-label", `Timeline of ${data.lanes.length} lanes and `
      + `${data.spans.length} spans, in ${data.unit === "s" ? "seconds" : data.unit}. Arrow keys `
      + "go from span to span, W and S zoom, A and D pan.");
    this.show(0, this.until);
  }

  draw() {
    if (this.data) drawLanes(this.canvas, this);
  }

  show(from, to) {
    const width = Math.min(Math.max(to - from, this.until / 1e5), this.until);
    this.from = Math.min(Math.max(0, from), this.until - width);
    this.to = this.from + width;
    this.redraw.soon();
  }

  zoom(factor, at = (this.from + this.to) / 2) {
    this.show(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }

  pan(share) {
    const by = share * (this.to - this.from);
    this.show(this.from + by, this.to + by);
  }

  /** A wheel with Ctrl or sideways is for the timeline; the page keeps its own. */
  wheel(event) {
    if (event.ctrlKey) this.zoom(event.deltaY > 0 ? ZOOM : 1 / ZOOM, this.timeAt(event));
    else if (event.deltaX) this.pan(Math.sign(event.deltaX) * PAN / 2);
    else return;
    event.preventDefault();
  }

  timeAt(event) {
    const { left, width } = placesOf(this.canvas);
    const x = event.clientX - this.canvas.getBoundingClientRect().left;
    return this.from + ((x - left) / width) * (this.to - this.from);
  }

  grab(event) {
    this.grabbed = { at: this.timeAt(event), moved: false };
    this.canvas.setPointerCapture?.(event.pointerId);
    const number = this.under(event);
    if (number >= 0) this.choose(number);
  }

  move(event) {
    if (this.grabbed && event.buttons) {
      const by = this.grabbed.at - this.timeAt(event);
      this.show(this.from + by, this.to + by);
      return;
    }
    const number = this.under(event);
    this.tip.show(event, number < 0 ? "" : this.words(number, "\n"));
  }

  /** The span under the pointer, -1 for none; of one that is thin the next one. */
  under(event) {
    const { top } = this.canvas.getBoundingClientRect();
    const lane = laneAt(this.data.lanes, event.clientY - top);
    if (lane < 0) return -1;
    const at = this.timeAt(event);
    const slack = (this.to - this.from) / placesOf(this.canvas).width;
    return this.byLane[lane].find((number) => {
      const [, , start, stop] = this.data.spans[number];
      return start - slack <= at && at <= stop + slack;
    }) ?? -1;
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const [what, amount] = TIMELINE_KEYS[event.key.toLowerCase()] ?? [];
    if (what) this[what](amount);
    else if (event.key in SPAN_MOVES) this.step(...SPAN_MOVES[event.key]);
    else if (event.key === "Home" || event.key === "0") this.show(0, this.until);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  step(down, right) {
    const { spans } = this.data;
    if (this.chosen < 0) {
      if (spans.length) this.choose(0);
      return;
    }
    const [lane, , start] = spans[this.chosen];
    if (right) {
      const own = this.byLane[lane];
      const next = own[own.indexOf(this.chosen) + right];
      if (next !== undefined) this.choose(next);
      return;
    }
    const near = (numbers) => numbers.reduce((best, number) =>
      (Math.abs(spans[number][2] - start) < Math.abs(spans[best][2] - start) ? number : best));
    for (let at = lane + down; this.byLane[at]; at += down) {
      if (this.byLane[at].length) {
        this.choose(near(this.byLane[at]));
        return;
      }
    }
  }

  choose(number) {
    this.chosen = number;
    const [, , start, stop] = this.data.spans[number];
    setText(this.told, this.words(number, ", "));
    if (start < this.from || stop > this.to) {
      const width = Math.max(this.to - this.from, stop - start);
      this.show((start + stop - width) / 2, (start + stop + width) / 2);
    }
    this.redraw.soon();
  }

  words(number, between) {
    const [lane, , start, stop, words] = this.data.spans[number];
    const { group, name } = this.data.lanes[lane];
    const time = (value) => (this.data.unit === "s" ? clockText(value) : String(Number(value.toPrecision(4))));
    return [group ? `${name}, ${group.split(": ")[0]}` : name, this.data.words[words],
      `${time(stop - start)} from ${time(start)} to ${time(stop)}`].join(between);
  }

  remove() {
    this.redraw.end();
  }
}
