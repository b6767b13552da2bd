// The whole monitor: a head, the charts below it, and what they have in common.

import { element } from "../views/dom.js";
import { KernelLink } from "../views/kernel_link.js";
import { mix, themeOf, watchTheme } from "../views/theme.js";
import { Tip } from "../views/tip.js";
import { CURVES } from "./curves.js";
import { RunHead } from "./head.js";
import { stepHeat } from "./heat.js";
import { ChartPanel } from "./panel.js";
import { phasesByRank, phasesOverTheRun } from "./stacks.js";

const MILLISECONDS_BETWEEN_PICTURES = 60;
const HEAT_LIGHT = ["#edf4f9", "#a9cfe5", "#4a98c5", "#0b5a8a", "#052c49"];
const HEAT_DARK = ["#12303f", "#1d5573", "#3b8dbd", "#8cc7e6", "#e6f4fb"];
const FIRST_REACH = 25;
const FOLLOWED = ["status", "sentence", "health", "marks"];

export class MonitorView {
  /** `live` is false on a page that only remembers a run. */
  constructor(model, store, host, live) {
    Object.assign(this, { model, store, live, paused: null, pointed: null });
    const [first, last] = model.get("_zoomed"); // of the view that was here before
    this.zoomed = last === undefined ? null : { first, last };
    this.heardAt = Date.now();
    this.drawnAt = 0;
    this.head = new RunHead(this, model);
    this.build(host);
    this.orphaned = false; // its kernel has ended
    this.kernel = new KernelLink(model, this.root, () => {
      this.orphaned = true;
      this.live = false;
      clearInterval(this.ticking);
      this.schedule();
    });
    this.schedule = this.schedule.bind(this);
    this.draw = this.draw.bind(this);
    this.hear = () => {
      this.heardAt = Date.now();
      this.schedule();
    };
    store.listeners.add(this.hear);
    this.resizing = new ResizeObserver(this.schedule);
    this.resizing.observe(this.root);
    this.endWatching = watchTheme(this.schedule);
    this.ticking = live ? setInterval(this.schedule, 1000) : null;
    for (const name of FOLLOWED) model.on(`change:${name}`, this.schedule);
    this.schedule();
  }

  build(host) {
    const panel = (chart, options) => new ChartPanel(this, chart, options);
    this.panels = {
      loss: panel(CURVES.loss, { title: "Loss" }),
      accuracy: panel(CURVES.accuracy, { title: "Accuracy" }),
      heat: panel(stepHeat, { title: "Step time" }),
      speed: panel(CURVES.speed, { title: "Tokens per second" }),
      phases: panel(phasesOverTheRun, { title: "Time per phase, mean rank" }),
      communication: panel(CURVES.communication, { title: "Communication" }),
      memory: panel(CURVES.memory, { title: "Memory, largest rank" }),
      utilisation: panel(CURVES.utilisation, { title: "Model FLOP utilisation", wide: true }),
      ranks: panel(phasesByRank, { title: "Time per phase, rank by rank", wide: true,
        overIterations: false }),
    };
    const figures = Object.values(this.panels).map((one) => one.figure);
    this.root = element("div", { class: `mimokit mimokit-live${this.live ? " mimokit-live-now" : ""}`,
      "data-lm-suppress-shortcuts": "true" }, ...this.head.nodes,
    element("div", { class: "panels" }, ...figures),
    element("p", { class: "help muted" },
      "Drag across a chart to zoom in, double-click to zoom back, click to mark an iteration. " +
      "With the keyboard: + and −, ← and →, 0, and m for the mark."));
    this.tip = new Tip(this.root);
    host.append(this.root);
  }

  // What its charts ask of it.

  marks() {
    return this.model.get("marks");
  }

  warmup() {
    return this.model.get("warmup_iterations");
  }

  point(iteration) {
    if (iteration === this.pointed) return;
    this.pointed = iteration;
    this.schedule();
  }

  toggleMark(iteration) {
    const marks = this.marks();
    const changed = marks.includes(iteration) ? marks.filter((mark) => mark !== iteration)
      : [...marks, iteration].sort((a, b) => a - b);
    this.model.set("marks", changed);
    this.model.save_changes();
    this.schedule();
  }

  zoom(first, last) {
    const whole = this.wholeRun();
    const width = Math.max(4, last - first + 1);
    const from = Math.max(0, Math.min(first, whole + 1 - width));
    this.show(width > whole ? null : { first: from, last: from + width - 1 });
  }

  zoomBack() {
    this.show(null);
  }

  /** Show some iterations, or all; what takes this view's place when the run ends shows them too. */
  show(zoomed) {
    this.zoomed = zoomed;
    this.model.set("_zoomed", zoomed ? [zoomed.first, zoomed.last] : []);
    this.model.save_changes();
    this.schedule();
  }

  togglePause() {
    this.paused = this.paused === null ? this.store.last?.iteration ?? 0 : null;
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
      m: () => this.toggleMark(this.pointed ?? this.store.last?.iteration ?? 0),
    }[event.key];
    if (!does) return;
    event.preventDefault();
    event.stopPropagation();
    does();
  }

  /** The last iteration of the axes: a young run has room to double, not all that it is to be. */
  wholeRun() {
    const done = this.store.last?.iteration ?? 0;
    let reach = FIRST_REACH;
    while (reach < done) reach *= 2;
    return Math.max(1, done, Math.min(reach, this.model.get("total_iterations") - 1));
  }

  /** First and last iteration of the axes, and the last of which data is shown. */
  scope() {
    const { first, last } = this.zoomed ?? { first: 0, last: this.wholeRun() };
    const end = Math.min(last, this.paused ?? Infinity, this.store.last?.iteration ?? -1);
    return { first, last, end, zoomed: this.zoomed !== null };
  }

  // Drawing.

  schedule() {
    if (this.waiting) return;
    const wait = Math.max(0, this.drawnAt + MILLISECONDS_BETWEEN_PICTURES - performance.now());
    this.waiting = setTimeout(() => requestAnimationFrame(this.draw), wait);
  }

  draw() {
    this.waiting = null;
    this.drawnAt = performance.now();
    if (!this.root.isConnected || !this.root.clientWidth) return;
    const theme = this.theme();
    this.root.classList.toggle("failed", this.model.get("status") === "failed");
    this.root.classList.toggle("tested", this.store.evaluations.length > 0);
    this.head.draw(this.store);
    const { accuracy, heat, memory, speed, utilisation } = this.panels;
    const { last } = this.store;
    accuracy.figure.hidden = !this.store.evaluations.length;
    utilisation.figure.hidden = (last?.utilisation ?? null) === null;
    speed.figure.hidden = last !== null && last.tokens === null; // a fit has no tokens
    memory.figure.hidden = last !== null && !last.memory;
    heat.figure.classList.toggle("wide", !accuracy.figure.hidden);
    const scope = this.scope();
    for (const panel of Object.values(this.panels)) {
      if (!panel.figure.hidden) panel.draw(this.store, scope, theme);
    }
    this.root.dataset.rows = this.store.count; // what is on the screen now
  }

  theme() {
    const theme = themeOf(this.root);
    const given = this.model.get("_colors");
    return { ...theme, heat: theme.dark ? HEAT_DARK : HEAT_LIGHT,
      grid: mix(theme.paper, theme.dark ? "#ffffff" : "#000000", 0.1),
      ground: mix(theme.paper, theme.dark ? "#ffffff" : "#000000", 0.05),
      collectives: theme.dark ? "#79a8ff" : "#3b6fd4",
      messages: theme.dark ? "#c09bff" : "#8a5cd1",
      line: theme.dark ? "#3fb68b" : given.line,
      accent: theme.dark ? "#f07da8" : given.accent,
      mark: theme.dark ? "#e3b341" : "#9a6700" };
  }

  remove() {
    this.kernel.remove();
    this.store.listeners.delete(this.hear);
    this.resizing.disconnect();
    this.endWatching();
    clearInterval(this.ticking);
    clearTimeout(this.waiting);
    for (const name of FOLLOWED) this.model.off(`change:${name}`, this.schedule);
  }
}
