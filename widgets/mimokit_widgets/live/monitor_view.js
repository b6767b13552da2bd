// The whole monitor: a head, the charts below it, and what they have in common.

import { element } from "mimokit/dom.js";
import { KernelLink } from "../views/kernel_link.js";
import { Tip } from "mimokit/tip.js";
import { CURVES } from "./curves.js";
import { RunHead } from "./head.js";
import { stepHeat } from "./heat.js";
import { phasesByRank, phasesOverTheRun } from "./stacks.js";
import { IterationView } from "mimokit/iteration_view.js";
import { ChartPanel } from "mimokit/panel.js";

const HEAT_LIGHT = ["#edf4f9", "#a9cfe5", "#4a98c5", "#0b5a8a", "#052c49"];
const HEAT_DARK = ["#12303f", "#1d5573", "#3b8dbd", "#8cc7e6", "#e6f4fb"];
const FIRST_REACH = 25;
const FOLLOWED = ["status", "sentence", "health", "restarts", "marks"];

export class MonitorView extends IterationView {
  /** `live` is false on a page that only remembers a run. */
  constructor(model, store, host, live) {
    super(model);
    Object.assign(this, { store, live, frozen: null, smoothing: 0 });
    this.heardAt = Date.now();
    this.head = new RunHead(this, model);
    this.build(host);
    this.orphaned = false; // its kernel has ended
    this.kernel = new KernelLink(model, this.root, () => {
      this.orphaned = true;
      this.live = false;
      clearInterval(this.ticking);
      this.schedule();
    });
    this.hear = () => {
      this.heardAt = Date.now();
      this.schedule();
    };
    store.listeners.add(this.hear);
    this.ticking = live ? setInterval(() => this.head.ended() || this.schedule(), 1000) : null;
    for (const name of FOLLOWED) model.on(`change:${name}`, this.schedule);
    this.begin();
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
    this.root = element("div", { class: "mimokit mimokit-live", "data-lm-suppress-shortcuts": "true" },
      ...this.head.nodes, element("div", { class: "panels" }, ...figures),
      element("p", { class: "help muted" },
        "Drag across a chart to zoom in, double-click to zoom back, click to mark an iteration. " +
        "With the keyboard: + and −, ← and →, 0, and m for the mark."));
    this.tip = new Tip(this.root);
    host.append(this.root);
  }

  // What its charts ask of it.

  restarts() {
    return this.model.get("restarts").map(({ step }) => step);
  }

  warmup() {
    return this.model.get("warmup_iterations");
  }

  smooth(share) {
    this.smoothing = share;
    this.schedule();
  }

  toggleFreeze() {
    this.frozen = this.frozen === null ? this.store.last?.iteration ?? 0 : null;
    this.schedule();
  }

  /** The last iteration of the axes: a young run has room to double, not all that it is to be. */
  wholeRun() {
    const done = this.store.last?.iteration ?? 0;
    let reach = FIRST_REACH;
    while (reach < done) reach *= 2;
    return Math.max(1, done, Math.min(reach, this.model.get("total_iterations") - 1));
  }

  lastIteration() {
    const held = this.head.ended() ? null : this.frozen;
    return Math.min(held ?? Infinity, this.store.last?.iteration ?? -1);
  }

  // Drawing.

  paint(theme) {
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
    const version = [this.store.count, this.looks, this.smoothing, JSON.stringify(scope)].join();
    for (const panel of Object.values(this.panels)) {
      if (!panel.figure.hidden) panel.draw(this.store, scope, theme, version);
    }
    this.root.dataset.rows = this.store.count; // what is on the screen now
  }

  theme() {
    const theme = super.theme();
    return { ...theme, smoothing: this.smoothing, planned: this.model.get("_planned"), heat: theme.dark ? HEAT_DARK : HEAT_LIGHT };
  }

  remove() {
    super.remove();
    this.kernel.remove();
    this.store.listeners.delete(this.hear);
    clearInterval(this.ticking);
    for (const name of FOLLOWED) this.model.off(`change:${name}`, this.schedule);
  }
}
