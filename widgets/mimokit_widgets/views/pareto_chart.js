// Layouts as points, step time against memory; larger with more GPUs, with a separate shape for each mode.

import { element, setAttribute, vector } from "mimokit/dom.js";
import { Tip } from "mimokit/tip.js";
import { clockText, ticks } from "mimokit/words.js";

const AIR = 1.06; // of an axis beyond what it has to reach
const SHAPES = { homogeneous: "M-5,0a5,5 0 1,0 10,0a5,5 0 1,0 -10,0z",
  colocated: "M-4.4,-4.4h8.8v8.8h-8.8z", heterogeneous: "M0,-6.2L6.2,0L0,6.2L-6.2,0z" };

/** The sign of a mode, for points, legends and tables. */
export function modeSign(name, color, fill = color) {
  const path = vector("path", { d: SHAPES[name], fill, stroke: color });
  return vector("svg", { class: "sign-of-mode", viewBox: "-7 -7 14 14", "aria-hidden": "true" }, path);
}

/** Round numbers on a logarithmic axis: 1, 2 and 5 of every power of ten, or finer ones. */
function ticksBetween(low, high) {
  for (const steps of [[1, 2, 5], [1, 1.5, 2, 3, 4, 5, 6, 8]]) {
    const found = [];
    for (let power = 10 ** Math.floor(Math.log10(low)); power <= high; power *= 10) {
      found.push(...steps.map((step) => step * power).filter((tick) => tick >= low && tick <= high));
    }
    if (found.length >= 4) return found;
  }
  const step = (high - low) / 3;
  return [0, 1, 2, 3].map((at) => Number((low + at * step).toPrecision(2)))
    .filter((tick, at, all) => tick >= low && tick <= high && all.indexOf(tick) === at);
}

export class ParetoChart {
  /** take(index) is called with the clicked layout, look(index or null) with the one under the pointer. */
  constructor(host, take, look) {
    Object.assign(this, { take, look, points: [] });
    this.node = element("div", { class: "pareto", role: "group" });
    host.append(this.node);
    this.tip = new Tip(host);
  }

  update({ layouts, modes, limit, limit_text: limitText, words }) {
    this.layouts = layouts;
    const seconds = layouts.map((each) => each.seconds);
    const [low, high] = [Math.min(...seconds) / AIR, Math.max(...seconds) * AIR];
    const top = AIR * Math.max(limit, ...layouts.map((each) => each.memory));
    const x = (value) => `left:${100 * (Math.log(value / low) / Math.log(high / low))}%`;
    const y = (value) => `top:${100 - 100 * (value / top)}%`;
    const line = (kind, style, text) =>
      element("i", { class: kind, style, "aria-hidden": "true" }, element("span", {}, text));
    this.order = layouts.map((_, at) => at).sort((a, b) => seconds[a] - seconds[b]);
    const colors = new Map(modes.map(({ name, color }) => [name, color]));
    const gpus = layouts.map((each) => each.gpus);
    const [fewest, most] = [Math.min(...gpus), Math.max(...gpus)];
    this.points = layouts.map((each, at) => {
      const share = most === fewest ? 0.4 : Math.log(each.gpus / fewest) / Math.log(most / fewest);
      const place = `${x(each.seconds)};${y(each.memory)};--size:${11.2 + 14 * share}px`;
      return this.point(each, at, place, colors.get(each.mode));
    });
    // Small ones above large ones, so that each can be clicked; the best above all.
    const stacked = [...this.points.keys()].sort((a, b) => (b !== 0) - (a !== 0) || gpus[b] - gpus[a]);
    this.node.replaceChildren(
      ...ticksBetween(low, high).map((tick) => line("tick x", x(tick), clockText(tick, 3))),
      ...ticks(0, top, 6).map((tick) => line("tick y", y(tick), tick)),
      line("limit", y(limit), limitText), line("axis x", "", "time per step"),
      line("axis y", "", "GiB on the fullest rank"), ...stacked.map((at) => this.points[at]));
    setAttribute(this.node, "aria-label", words);
    this.stop(0);
  }

  point({ mode, on_front: onFront, words }, at, style, color) {
    return element("button", { type: "button", class: at ? "point" : "point best", style,
      "data-index": at, "aria-label": `${at ? "" : "Best. "}${words}`, click: () => this.take(at),
      keydown: (event) => this.key(event, at), focus: () => { this.stop(at); this.look(at); },
      blur: () => this.look(null), pointerenter: () => this.look(at),
      pointerleave: () => this.look(null) }, modeSign(mode, color, onFront ? color : "var(--paper)"));
  }

  /** From point to point in the order of time. */
  key(event, at) {
    const by = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (!by) return;
    event.preventDefault();
    const next = Math.min(this.order.length - 1, Math.max(0, this.order.indexOf(at) + by));
    this.points[this.order[next]].focus();
  }

  /** The point at which the tabulator stops. */
  stop(at) {
    this.points.forEach((each, place) => { each.tabIndex = place === at ? 0 : -1; });
  }

  /** Mark the layout that is looked at here or in the table, and say what it is. */
  mark(index) {
    this.points.forEach((each, at) => each.classList.toggle("looked", at === index));
    if (index === null) return this.tip.hide();
    const box = this.points[index].getBoundingClientRect();
    const { words, modules } = this.layouts[index];
    return this.tip.show({ clientX: box.right, clientY: box.bottom },
      [words.slice(0, words.indexOf(": ")), ...modules].join("\n"));
  }

  /** Mark the layout that stands in the planner. */
  show(loaded) {
    this.points.forEach((each, at) =>
      setAttribute(each, "aria-pressed", at === loaded ? "true" : null));
  }
}
