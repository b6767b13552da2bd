// What charts over the iterations of runs have in common: zoom, marks, one place of the pointer.

import { mix, themeOf, watchTheme } from "./theme.js";

const MILLISECONDS_BETWEEN_PICTURES = 60;
const NARROWEST = 4; // iterations

/**
 * Draws when asked, and remembers in its model the iterations that are shown and marked.
 *
 * A class that derives from it has `root`, `panels`, lastIteration(), wholeRun() and paint(), and
 * calls begin() once it is built.
 */
export class IterationView {
  constructor(model) {
    Object.assign(this, { model, pointed: null, drawnAt: 0, looks: 0 });
    const [first, last] = model.get("_zoomed"); // of the view that was here before
    this.zoomed = last === undefined ? null : { first, last };
    this.schedule = this.schedule.bind(this);
    this.draw = this.draw.bind(this);
    this.follow = this.follow.bind(this);
  }

  begin() {
    this.resizing = new ResizeObserver(this.schedule);
    this.resizing.observe(this.root);
    this.endWatching = watchTheme(() => {
      this.looks += 1;
      this.schedule();
    });
    this.schedule();
  }

  marks() {
    return this.model.get("marks");
  }

  /** The steps in which a run began again. */
  restarts() {
    return [];
  }

  warmup() {
    return 0;
  }

  point(iteration) {
    if (iteration === this.pointed) return;
    this.pointed = iteration;
    this.following ||= requestAnimationFrame(this.follow);
  }

  /** Show where the pointer is, in all charts. */
  follow() {
    this.following = null;
    for (const panel of Object.values(this.panels)) panel.cross();
  }

  toggleMark(iteration) {
    const marks = this.marks();
    const changed = marks.includes(iteration) ? marks.filter((mark) => mark !== iteration)
      : [...marks, iteration].sort((a, b) => a - b);
    this.remember("marks", changed);
  }

  zoom(first, last) {
    const whole = this.wholeRun();
    const width = Math.max(NARROWEST, last - first + 1);
    const from = Math.max(0, Math.min(first, whole + 1 - width));
    this.show(width > whole ? null : { first: from, last: from + width - 1 });
  }

  zoomBack() {
    this.show(null);
  }

  /** Show some iterations, or all; what takes this view's place when the run ends shows them too. */
  show(zoomed) {
    this.zoomed = zoomed;
    this.remember("_zoomed", zoomed ? [zoomed.first, zoomed.last] : []);
  }

  remember(name, value) {
    this.model.set(name, value);
    this.model.save_changes();
    this.schedule();
  }

  key(event) {
    const { first, last } = this.scope();
    const width = last - first + 1;
    const step = Math.max(1, Math.round(width / 5));
    const middle = this.pointed ?? first + Math.floor(width / 2);
    const does = {
      "+": () => this.zoom(middle - Math.floor(width / 4), middle + Math.ceil(width / 4) - 1),
      "-": () => this.zoom(middle - width, middle + width - 1),
      "0": () => this.zoomBack(),
      Escape: () => this.zoomBack(),
      ArrowLeft: () => this.zoomed && this.zoom(first - step, last - step),
      ArrowRight: () => this.zoomed && this.zoom(first + step, last + step),
      m: () => this.toggleMark(this.pointed ?? Math.max(0, this.lastIteration())),
    }[event.key];
    if (!does) return;
    event.preventDefault();
    event.stopPropagation();
    does();
  }

  /** First and last iteration of the axes, and the last of which data is shown. */
  scope() {
    const { first, last } = this.zoomed ?? { first: 0, last: this.wholeRun() };
    return { first, last, end: Math.min(last, this.lastIteration()), zoomed: this.zoomed !== null };
  }

  schedule() {
    if (this.waiting) return;
    const wait = Math.max(0, this.drawnAt + MILLISECONDS_BETWEEN_PICTURES - performance.now());
    this.waiting = setTimeout(() => requestAnimationFrame(this.draw), wait);
  }

  draw() {
    this.waiting = null;
    this.drawnAt = performance.now();
    if (this.root.isConnected && this.root.clientWidth) this.paint(this.theme());
  }

  theme() {
    const theme = themeOf(this.root);
    const given = this.model.get("_colors");
    return { ...theme,
      grid: mix(theme.paper, theme.dark ? "#ffffff" : "#000000", 0.1),
      ground: mix(theme.paper, theme.dark ? "#ffffff" : "#000000", 0.05),
      line: theme.dark ? "#3fb68b" : given.line,
      accent: theme.dark ? "#f07da8" : given.accent,
      mark: theme.dark ? "#e3b341" : "#9a6700" };
  }

  remove() {
    this.resizing.disconnect();
    this.endWatching();
    clearTimeout(this.waiting);
  }
}
