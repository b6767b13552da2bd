// Runs to explore: a table with eyes, and charts that follow it.

import { element, setText } from "mimokit/dom.js";
import { IterationView } from "mimokit/iteration_view.js";
import { ChartPanel } from "mimokit/panel.js";
import { mix } from "mimokit/theme.js";
import { Tip } from "mimokit/tip.js";
import { Stragglers, StepParts } from "./bars.js";
import { curvesOf } from "./curves.js";
import { Difference, RunLook } from "./look.js";
import { RunsStore } from "./store.js";
import { RunTable } from "./table.js";
import { RunTools, columnsOf } from "./tools.js";

const DASHES = [[], [7, 3], [2, 2]];
const LONGEST_NAME = 26;
const MOST_ASKED = 12; // runs whose files are read at once
const FOLLOWED = ["_figures", "_details", "_difference", "shown", "selected", "metric", "baseline"];

export class RunsView extends IterationView {
  /** `send` is null on a saved page, which has no kernel to send messages to. */
  constructor(model, host, send) {
    super(model);
    Object.assign(this, { send, lit: null, filtered: "", asked: new Set() });
    this.store = new RunsStore(model.get("_about"), model.get("_curves"));
    this.smoothing = 0;
    this.version = 0;
    this.build(host);
    this.changed = this.changed.bind(this);
    for (const name of FOLLOWED) model.on(`change:${name}`, this.changed);
    this.begin();
  }

  build(host) {
    const { store } = this;
    this.table = new RunTable(this, columnsOf(this));
    this.tools = new RunTools(this);
    this.panels = this.charts();
    this.parts = new StepParts(this);
    this.stragglers = new Stragglers(this);
    this.looked = new RunLook(() => this.look(""));
    this.slower = new Difference();
    this.problems = element("details", { class: "problems" },
      element("summary", {}, `Missing or broken (${store.about.problems.length})`),
      element("ul", {}, ...store.about.problems.map((text) => element("li", {}, text))));
    this.problems.hidden = !store.about.problems.length;
    this.root = element("div", { class: "mimokit mimokit-runs", "data-lm-suppress-shortcuts": "true" },
      element("header", {}, element("h3", {}, store.about.heading), this.tools.node),
      this.slower.node, this.table.node, this.problems, this.looked.node,
      element("div", { class: "panels" },
        ...this.panels.map(({ figure }) => figure), this.parts.figure, this.stragglers.figure),
      element("p", { class: "help muted" }, "Drag across a chart to zoom in, double-click to zoom " +
        "back, click to mark an iteration; while the pointer is over a chart, the table has the " +
        "values of its iteration. With the keyboard: + and −, ← and →, 0, and m for the mark."));
    this.tip = new Tip(this.root);
    host.append(this.root);
  }

  smooth(share) {
    this.smoothing = share;
    this.schedule();
  }

  charts() {
    const { store } = this;
    return store.metrics.flatMap((metric) => {
      const of = (run, smoothing) => store.curve(run, metric.name, smoothing);
      const panel = new ChartPanel(this, curvesOf(this, metric, of,
        { zero: metric.kind !== "number" }), { title: metric.title });
      return metric.name === "loss" ? [panel, this.differences(metric)] : [panel];
    });
  }

  differences(metric) {
    const of = (run, smoothing) => {
      const base = this.base();
      return base && run !== base ? this.store.difference(run, base, metric.name, smoothing)
        : new Float32Array(0);
    };
    this.difference = new ChartPanel(this, curvesOf(this, metric, of, { around: true }),
      { title: "Difference of the loss" });
    return this.difference;
  }

  // What its parts ask of it.

  warmup() {
    return Math.max(0, ...this.drawn().map((run) => run.first));
  }

  lastIteration() {
    return this.store.lastIteration;
  }

  wholeRun() {
    return Math.max(1, this.store.lastIteration);
  }

  metric() {
    return this.store.metric(this.model.get("metric"));
  }

  base() {
    return this.store.byName.get(this.model.get("baseline"));
  }

  medianOf(run) {
    const metric = this.metric();
    return metric ? this.store.median(run, metric.name)?.[0] ?? null : null;
  }

  against(run) {
    const metric = this.metric();
    return metric ? this.store.against(run, this.base(), metric.name, this.store.runs.length - 1) : null;
  }

  /** Seconds that were predicted for a run's step with the ends of their band, or null. */
  plannedOf(run) {
    return this.model.get("_figures")[run.name]?.planned ?? null;
  }

  strokeOf(run) {
    const { hues } = this.store.about;
    const hue = hues[run.place % hues.length];
    return [this.dark ? mix(hue, "#ffffff", 0.4) : hue,
      DASHES[Math.floor(run.place / hues.length) % DASHES.length]];
  }

  shortName({ name }) {
    if (name.length <= LONGEST_NAME) return name;
    return `${name.slice(0, 11)}…${name.slice(-14)}`; // names of a sweep differ at their ends
  }

  note() {
    const { every } = this.store.about;
    return every > 1 ? `each point is the mean of ${every} iterations` : "";
  }

  without(count) {
    return this.answering(count) ? "Reading the files of ranks …"
      : `of ${count} more the files of ranks are not in this page`;
  }

  /** Nobody answers any more. */
  leave() {
    this.send = null;
    this.changed();
  }

  answering() {
    return this.send !== null;
  }

  // What is shown.

  passing() {
    const words = this.filtered.toLowerCase().split(/\s+/).filter(Boolean);
    return this.store.runs.filter((run) => {
      const text = `${run.name} ${run.status} ${run.mode} ${run.layout} ${run.error}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
  }

  /** The runs that charts draw, in the order of the table. */
  drawn() {
    if (this.drawnAtVersion !== this.version) {
      this.drawnAtVersion = this.version;
      const eyes = new Set(this.model.get("shown"));
      this.ordered = this.table.ordered(this.passing());
      this.drawnRuns = this.ordered.filter((run) => eyes.has(run.name));
    }
    return this.drawnRuns;
  }

  /** Something else than the pointer has changed. */
  changed() {
    this.version += 1;
    this.schedule();
  }

  setEye(run, open) {
    const eyes = this.model.get("shown").filter((name) => name !== run.name);
    this.remember("shown", open ? [...eyes, run.name] : eyes);
  }

  setEyes(open) {
    const passing = new Set(this.passing().map(({ name }) => name));
    const others = this.model.get("shown").filter((name) => !passing.has(name));
    this.remember("shown", open ? [...others, ...passing] : others);
  }

  filterBy(text) {
    this.filtered = text;
    this.changed();
  }

  /** Let one run stand out. */
  light(name) {
    if (name === this.lit) return;
    this.lit = name;
    if (this.drawn().length > 1) this.schedule();
  }

  look(name) {
    this.remember("selected", name);
    this.ask({ type: "look", name });
  }

  ask(message) {
    if (this.send) this.send(message);
  }

  // Drawing.

  paint(theme) {
    this.dark = theme.dark;
    const drawn = this.drawn();
    const metric = this.metric();
    const chosen = [this.version, this.looks].join();
    if (chosen !== this.tabled) {
      this.tools.draw(metric, this.base());
      this.paintTable(metric, drawn);
    }
    this.tabled = chosen;
    const scope = this.scope();
    const version = [chosen, this.lit, this.smoothing, JSON.stringify(scope)].join();
    this.paintCurves(scope, theme, version);
    const rows = [chosen, this.lit, this.root.clientWidth].join();
    if (rows !== this.painted) this.paintRows(theme, chosen);
    this.painted = rows;
    this.table.follow();
    this.root.dataset.drawn = drawn.length;
    this.root.dataset.version = version;
  }

  follow() {
    super.follow();
    this.table.follow();
  }

  paintTable(metric, drawn) {
    const base = this.base();
    const medians = this.store.runs.map((run) => (metric && this.store.median(run, metric.name)) ?? [0]);
    const most = Math.max(1e-12, ...medians.map(([value, , high]) => Math.max(value, high ?? 0)));
    this.table.draw(this.ordered, { eyes: new Set(this.model.get("shown")), metric, base, most,
      shown: drawn.length, selected: this.model.get("selected") });
  }

  paintCurves(scope, theme, version) {
    const base = this.base();
    if (this.difference) {
      this.difference.figure.hidden = !base || this.drawn().every((run) => run === base);
      setText(this.difference.heading, `Loss minus that of ${base?.name ?? "the baseline"}`);
    }
    for (const panel of this.panels) {
      if (!panel.figure.hidden) panel.draw(this.store, scope, theme, version);
    }
  }

  paintRows(theme, version) {
    const figures = this.model.get("_figures");
    this.parts.draw(figures, theme);
    this.stragglers.draw(figures, theme);
    this.slower.draw(this.model.get("_difference"));
    const selected = this.model.get("selected");
    this.looked.draw(this.store.byName.get(selected), this.model.get("_details")[selected],
      this.answering());
    this.askForFigures(figures);
  }

  askForFigures(figures) {
    const names = this.drawn().map(({ name }) => name)
      .filter((name) => !(name in figures) && !this.asked.has(name)).slice(0, MOST_ASKED);
    if (!names.length || !this.send) return;
    names.forEach((name) => this.asked.add(name));
    this.ask({ type: "figures", names });
  }

  remove() {
    super.remove();
    this.looked.forget();
    this.slower.forget();
    for (const name of FOLLOWED) this.model.off(`change:${name}`, this.changed);
  }
}
