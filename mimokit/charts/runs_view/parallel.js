// Parallel coordinates: a line per run through its layout to its times; a drag on an axis chooses.

import { button, element, setAttribute, vector } from "mimokit/dom.js";
import { written } from "mimokit/words.js";

const PARALLEL_HEIGHT = 210;
const [ABOVE, BELOW, BESIDE] = [34, 14, 62];
const SHORTEST_DRAG = 5;

/** An axis of few values, evenly spaced in their order. */
function stepped(name, title, of, runs, words = String) {
  const values = [...new Set(runs.map(of))].filter((value) => value !== null && value !== "");
  if (values.length < 2) return null;
  values.sort((a, b) => (typeof a === "string" ? a.localeCompare(b) : a - b));
  const share = (run) => {
    const at = values.indexOf(of(run));
    return at < 0 ? null : at / (values.length - 1);
  };
  return { name, title, share, ticks: values.map((value, at) => [at / (values.length - 1), words(value)]) };
}

/** An axis of a median, from the smallest to the largest. */
function scaled(store, metric, runs) {
  const of = (run) => store.median(run, metric.name)?.[0] ?? null;
  const known = runs.map(of).filter((value) => value !== null);
  const [low, high] = [Math.min(...known), Math.max(...known)];
  if (high === low) return null;
  const share = (run) => (of(run) === null ? null : (of(run) - low) / (high - low));
  const ends = [[0, low], [0.5, (low + high) / 2], [1, high]];
  return { name: metric.name, title: `median ${metric.title.toLowerCase()}`, share,
    ticks: ends.map(([at, value]) => [at, written(value, metric.kind)]) };
}

/** The axes on which runs differ, layout first. */
export function axesOf(store, runs, metric) {
  const sizes = store.about.sizes.map((column, at) =>
    stepped(column, store.about.size_titles[at], (run) => run.sizes[at], runs));
  const compared = store.metrics.filter(({ compared: has, name }) =>
    has && (name === metric?.name || name === "total_time" || name.startsWith("memory")));
  return [stepped("mode", "mode", (run) => run.mode, runs),
    stepped("ranks", "ranks", (run) => run.ranks, runs), ...sizes,
    ...compared.map((each) => scaled(store, each, runs))].filter(Boolean);
}

export class ParallelCoordinates {
  constructor(view) {
    this.view = view;
    this.picture = vector("svg", { role: "img", class: "parallel" });
    this.clear = button("Show all again", () => view.brush(null), { class: "plain" });
    this.figure = element("figure", { class: "wide" }, element("figcaption", {},
      element("b", {}, "Layout against time"),
      element("span", {}, "drag along an axis to keep the runs that cross it there"), this.clear),
    this.picture);
    this.dragged = null;
  }

  /** `version` changes with runs, axes and brushes. */
  draw(runs, axes, brushes, width, version) {
    const drawn = `${version} ${width}`;
    if (drawn !== this.drawn) this.build(runs, axes, brushes, width);
    this.drawn = drawn;
    for (const [name, line] of this.lines) {
      setAttribute(line, "stroke-width", this.view.lit === name ? 3 : 1.6);
    }
  }

  build(runs, axes, brushes, width) {
    this.clear.hidden = !brushes.size;
    this.picture.setAttribute("viewBox", `0 0 ${width} ${PARALLEL_HEIGHT}`);
    this.picture.setAttribute("height", PARALLEL_HEIGHT);
    this.picture.setAttribute("aria-label", `${runs.length} runs over ${axes.map(({ title }) => title).join(", ")}`);
    const across = axes.length > 1 ? (width - 2 * BESIDE) / (axes.length - 1) : 0;
    const places = axes.map((axis, at) => (axes.length > 1 ? BESIDE + at * across : width / 2));
    this.lines = new Map(runs.map((run) => [run.name, this.line(run, axes, places)])
      .filter(([, line]) => line));
    this.picture.replaceChildren(...this.lines.values(),
      ...axes.map((axis, at) => this.axis(axis, places[at], across, brushes.get(axis.name))));
  }

  line(run, axes, places) {
    const points = axes.map((axis, at) => [places[at], axis.share(run)])
      .filter(([, share]) => share !== null).map(([x, share]) => `${x.toFixed(1)},${down(share)}`);
    if (points.length < 2) return null;
    const [color, dash] = this.view.strokeOf(run);
    const shown = this.view.isDrawn(run);
    return vector("polyline", { points: points.join(" "), fill: "none", stroke: color,
      "stroke-dasharray": dash.join(" ") || null,
      opacity: shown ? 0.9 : 0.12, click: () => this.view.look(run.name),
      pointerenter: () => this.view.light(run.name), pointerleave: () => this.view.light(null) },
    vector("title", {}, run.name));
  }

  axis(axis, x, across, brush) {
    const made = vector("g", {},
      vector("line", { x1: x, x2: x, y1: ABOVE, y2: PARALLEL_HEIGHT - BELOW, class: "axis-line" }),
      ...this.title(axis.title, x, across));
    for (const [share, text] of spread(axis.ticks)) {
      made.append(vector("text", { x: x + 6, y: Number(down(share)) + 4, class: "tick" }, text));
    }
    if (brush) {
      made.append(vector("rect", { x: x - 7, width: 14, y: down(brush[1]),
        height: Math.max(2, down(brush[0]) - down(brush[1])), class: "brush" }));
    }
    made.append(vector("rect", { x: x - 12, width: 24, y: ABOVE, height: PARALLEL_HEIGHT - ABOVE - BELOW,
      class: "handle", pointerdown: (event) => this.press(event, axis),
      pointermove: (event) => this.move(event), pointerup: (event) => this.release(event, axis) }));
    return made;
  }

  /** A title in at most two lines. */
  title(text, x, across) {
    const words = text.split(" ");
    const fits = text.length * 6.2 < across - 8 || words.length === 1;
    const half = Math.ceil(words.length / 2);
    const lines = fits ? [text] : [words.slice(0, half).join(" "), words.slice(half).join(" ")];
    return lines.map((line, at) => vector("text", { x, y: 12 + 13 * at, class: "axis-title" }, line));
  }

  press(event, axis) {
    event.target.setPointerCapture(event.pointerId);
    this.dragged = { axis, from: this.shareAt(event), y: event.clientY };
  }

  move(event) {
    if (!this.dragged || Math.abs(event.clientY - this.dragged.y) < SHORTEST_DRAG) return;
    this.dragged.to = this.shareAt(event);
  }

  release(event, axis) {
    const { from, to } = this.dragged ?? {};
    this.dragged = null;
    this.view.brush(axis.name, to === undefined ? null : [Math.min(from, to), Math.max(from, to)]);
  }

  shareAt(event) {
    const box = this.picture.getBoundingClientRect();
    const y = ((event.clientY - box.top) / box.height) * PARALLEL_HEIGHT;
    return Math.min(1, Math.max(0, 1 - (y - ABOVE) / (PARALLEL_HEIGHT - ABOVE - BELOW)));
  }
}

function down(share) {
  return (PARALLEL_HEIGHT - BELOW - share * (PARALLEL_HEIGHT - ABOVE - BELOW)).toFixed(1);
}

/** Of many values those that have room. */
function spread(values) {
  const every = Math.ceil(values.length / 12);
  return values.filter((_, at) => at % every === 0);
}
