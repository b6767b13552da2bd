// Layouts as points, step time against memory; larger with more GPUs, with a separate shape for each mode.

import { setAttribute, vector } from "mimokit/dom.js";
import { Tip } from "mimokit/tip.js";
import { clockText, ticks } from "mimokit/words.js";

const HEIGHT = 300;
const AROUND = { left: 46, right: 18, top: 16, bottom: 40 };
const SHAPES = {
  homogeneous: (r) => `M${-r},0a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0z`,
  colocated: (r) => `M${-0.88 * r},${-0.88 * r}h${1.76 * r}v${1.76 * r}h${-1.76 * r}z`,
  heterogeneous: (r) => `M0,${-1.25 * r}L${1.25 * r},0L0,${1.25 * r}L${-1.25 * r},0z`,
};

/** The sign of a mode, for legends and tables. */
export function modeSign(name, color) {
  const path = vector("path", { d: SHAPES[name](5), fill: color });
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
    this.take = take;
    this.look = look;
    this.svg = vector("svg", { class: "pareto", role: "group", height: HEIGHT });
    host.append(this.svg);
    this.tip = new Tip(host);
    this.host = host;
    this.points = new Map();
    this.sized = new ResizeObserver(() => this.layOut());
    this.sized.observe(host);
  }

  update(found) {
    this.found = found;
    this.svg.setAttribute("aria-label", found.words);
    this.current = 0;
    this.layOut(true);
  }

  layOut(anew = false) {
    const width = this.host.clientWidth;
    if (!this.found || !width || (width === this.width && !anew)) return;
    this.width = width;
    this.svg.setAttribute("width", width);
    const { layouts, limit } = this.found;
    const seconds = layouts.map((each) => each.seconds);
    const [low, high] = [Math.min(...seconds) / 1.06, Math.max(...seconds) * 1.06];
    const top = 1.06 * Math.max(limit, ...layouts.map((each) => each.memory));
    const right = width - AROUND.right;
    const bottom = HEIGHT - AROUND.bottom;
    const x = (value) => AROUND.left
      + (right - AROUND.left) * (Math.log(value / low) / Math.log(high / low));
    const y = (value) => bottom - (bottom - AROUND.top) * (value / top);
    const focused = this.svg.contains(document.activeElement);
    this.over = Object.fromEntries(["loaded", "looked"].map((what) =>
      [what, vector("g", { class: `over ${what}`, "aria-hidden": "true" })]));
    this.svg.replaceChildren(...this.axes(x, y, [low, high], top, right, bottom),
      ...this.limit(y(limit), right), ...this.marks(x, y), ...Object.values(this.over));
    this.show(this.loaded ?? -1);
    if (focused) this.points.get(this.current)?.focus();
  }

  axes(x, y, [low, high], top, right, bottom) {
    const made = [];
    const text = (at, words, attributes) => vector("text", { ...at, ...attributes }, words);
    for (const tick of ticksBetween(low, high)) {
      made.push(vector("line", { class: "grid", x1: x(tick), x2: x(tick), y1: AROUND.top, y2: bottom }),
        text({ x: x(tick), y: bottom + 15 }, clockText(tick, 3), { "text-anchor": "middle" }));
    }
    for (const tick of ticks(0, top, 6)) {
      made.push(vector("line", { class: "grid", x1: AROUND.left, x2: right, y1: y(tick), y2: y(tick) }),
        text({ x: AROUND.left - 7, y: y(tick) }, String(tick),
          { "text-anchor": "end", "dominant-baseline": "central" }));
    }
    made.push(text({ x: (AROUND.left + right) / 2, y: HEIGHT - 6 }, "time per step",
      { class: "axis", "text-anchor": "middle" }));
    const middle = (AROUND.top + bottom) / 2;
    made.push(text({ x: 12, y: middle }, "GiB on the fullest rank", { class: "axis",
      "text-anchor": "middle", transform: `rotate(-90 12 ${middle})` }));
    return made.map((each) => {
      each.setAttribute("aria-hidden", "true");
      return each;
    });
  }

  limit(y, right) {
    return [
      vector("line", { class: "limit", "aria-hidden": "true", x1: AROUND.left, x2: right, y1: y, y2: y }),
      vector("text", { "aria-hidden": "true", x: right, y: y - 5, "text-anchor": "end" },
        this.found.limit_text),
    ];
  }

  marks(x, y) {
    const { layouts, modes } = this.found;
    const colors = new Map(modes.map(({ name, color }) => [name, color]));
    const most = Math.max(...layouts.map((each) => each.gpus));
    const fewest = Math.min(...layouts.map((each) => each.gpus));
    const radius = (gpus) => (most === fewest ? 6
      : 4 + 5 * (Math.log(gpus / fewest) / Math.log(most / fewest)));
    this.order = layouts.map((_, at) => at).sort((a, b) => layouts[a].seconds - layouts[b].seconds);
    this.points = new Map(layouts.map((each, at) => {
      const r = radius(each.gpus);
      const color = colors.get(each.mode);
      const mark = vector("path", { class: "mark", d: SHAPES[each.mode](r), stroke: color,
        fill: each.on_front ? color : "var(--paper)" });
      const ring = vector("circle", { class: "ring", r: r + 4.5 });
      const words = `${at === 0 ? "Best. " : ""}${each.words}`;
      const point = vector("g", { class: at === 0 ? "point best" : "point", role: "button",
        tabindex: at === this.current ? 0 : -1, "data-index": at, "aria-label": words,
        transform: `translate(${x(each.seconds)} ${y(each.memory)})`,
        click: () => this.take(at), keydown: (event) => this.key(event, at),
        focus: () => this.focus(at), blur: () => this.look(null),
        pointerenter: () => this.look(at), pointerleave: () => this.look(null),
      }, vector("circle", { class: "reach", r: Math.max(r + 3, 9) }), ring, mark);
      return [at, point];
    }));
    // Small ones above large ones, so that each can be clicked; the best above all.
    return [...this.points].sort(([a], [b]) => (b !== 0) - (a !== 0) || layouts[b].gpus - layouts[a].gpus)
      .map(([, point]) => point);
  }

  key(event, at) {
    if (event.key === "Enter" || event.key === " ") this.take(at);
    else {
      const by = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
      if (!by) return;
      const last = this.order.length - 1;
      const next = Math.min(last, Math.max(0, this.order.indexOf(at) + by));
      this.points.get(this.order[next]).focus();
    }
    event.preventDefault();
  }

  focus(at) {
    setAttribute(this.points.get(this.current), "tabindex", -1);
    this.current = at;
    setAttribute(this.points.get(at), "tabindex", 0);
    this.look(at);
  }

  /** Mark the layout that is looked at here or in the table, and say what it is. */
  point(index) {
    const point = this.points.get(index);
    this.raise("looked", point);
    if (!point) {
      this.tip.hide();
      return;
    }
    const box = point.querySelector(".mark").getBoundingClientRect();
    const { words } = this.found.layouts[index];
    const [head, modules] = [words.slice(0, words.indexOf(": ")), this.found.layouts[index].modules];
    this.tip.show({ clientX: box.right, clientY: box.bottom }, [head, ...modules].join("\n"));
  }

  /** Mark the layout that stands in the planner. */
  show(loaded) {
    this.loaded = loaded;
    for (const [at, point] of this.points) {
      setAttribute(point, "aria-pressed", at === loaded ? "true" : null);
    }
    this.raise("loaded", this.points.get(loaded));
  }

  /** Draw a point once more above all others, under which it may lie. */
  raise(what, point) {
    const over = this.over?.[what];
    over?.replaceChildren(...(point ? point.cloneNode(true).children : []));
    if (over && point) over.setAttribute("transform", point.getAttribute("transform"));
  }

  remove() {
    this.sized.disconnect();
  }
}
