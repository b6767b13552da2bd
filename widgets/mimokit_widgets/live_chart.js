// The browser's half of LiveChart: keeps what arrives, draws it on canvases.
// Hand-written for the browser as it is; there is no build step.

const STEP = 0;
const EVALUATION = 1;
const RECENT_STEPS = 20;
const HEAT_LIGHT = ["#EDF4F9", "#A9CFE5", "#4A98C5", "#0B5A8A", "#052C49"];
const HEAT_DARK = ["#12303F", "#1D5573", "#3B8DBD", "#8CC7E6", "#E6F4FB"];
const ENDED = ["finished", "stopped", "failed"];

// ---------------------------------------------------------------- what arrived

/** Everything a run has sent, in order, and the numbers that are drawn. */
class Store {
  constructor(phases) {
    this.phases = phases;
    this.listeners = new Set();
    this.clear();
  }

  clear() {
    this.count = 0;
    this.iterations = new Map(); // iteration -> {loss, tokens, seconds, time}
    this.ordered = [];
    this.evaluations = [];
    this.ranks = new Map(); // rank -> {seconds: Map, recent: [], memory}
    this.firstTime = null;
    this.lastTime = null;
  }

  /** Take rows whose first is number `start` of all; false if rows before it are missing. */
  append(start, rows) {
    if (start > this.count) return false;
    for (const row of rows.slice(this.count - start)) this.add(row);
    this.count = Math.max(this.count, start + rows.length);
    this.listeners.forEach((listener) => listener());
    return true;
  }

  add(row) {
    if (row[0] === EVALUATION) {
      const [, iteration, time, task, exact, digit, chance] = row;
      this.evaluations.push({ iteration, time, task, exact, digit, chance });
    } else if (row[0] === STEP) {
      this.addStep(row);
    }
  }

  addStep(row) {
    const [, rank, iteration, time, seconds, tokens, loss, memory, ...phases] = row;
    let all = this.iterations.get(iteration);
    if (!all) {
      all = { iteration, time, seconds: 0, tokens, loss };
      this.iterations.set(iteration, all);
      this.ordered.push(all);
    }
    all.time = Math.max(all.time, time);
    all.seconds = Math.max(all.seconds, seconds ?? 0);
    if (tokens !== null) all.tokens = Math.min(all.tokens, tokens); // the slowest rank's
    let mine = this.ranks.get(rank);
    if (!mine) this.ranks.set(rank, (mine = { seconds: new Map(), recent: [], memory: 0 }));
    mine.memory = memory ?? 0;
    if (seconds !== null) {
      mine.seconds.set(iteration, seconds); // null where the performance monitor is off
      mine.recent.push([seconds, ...phases]);
      if (mine.recent.length > RECENT_STEPS) mine.recent.shift();
    }
    if (this.firstTime === null) this.firstTime = time - (seconds ?? 0);
    this.lastTime = Math.max(this.lastTime ?? time, time);
  }

  get lastIteration() {
    return this.ordered.length ? this.ordered[this.ordered.length - 1] : null;
  }

  /** Seconds until the last iteration at the pace of the recent ones, null if unknown. */
  secondsLeft(total) {
    const done = this.ordered.length;
    if (done < 3) return null;
    const from = this.ordered[Math.max(1, done - 30)];
    const to = this.ordered[done - 1];
    const pace = (to.time - from.time) / Math.max(1, to.iteration - from.iteration);
    return pace * Math.max(0, total - 1 - to.iteration);
  }

  rankList() {
    return [...this.ranks.keys()].sort((a, b) => a - b);
  }

  /** Mean seconds of every phase over the recent steps of a rank; the last is what remains. */
  phaseMeans(rank) {
    const recent = this.ranks.get(rank).recent;
    const sums = new Array(this.phases.length).fill(0);
    for (const [total, ...parts] of recent) {
      let rest = total;
      parts.forEach((part, index) => {
        sums[index] += part ?? 0;
        rest -= part ?? 0;
      });
      sums[sums.length - 1] += Math.max(0, rest);
    }
    return sums.map((sum) => sum / Math.max(1, recent.length));
  }
}

// ---------------------------------------------------------------- looks

const STYLE = `
.mimokit-live { --paper: #ffffff; --ink: #1f2933; --muted: #5f6b7a; --grid: #e4e7eb;
  --fill: #f4f6f8; --bar: #0b6e4f; --bad: #b42318;
  background: var(--paper); color: var(--ink); border: 1px solid var(--grid); border-radius: 8px;
  padding: 16px 18px 14px; font: 13px/1.4 system-ui, "Helvetica Neue", Arial, sans-serif;
  position: relative; box-sizing: border-box; max-width: 1100px; }
.mimokit-live.dark { --paper: #16191d; --ink: #e6e9ed; --muted: #9aa5b1; --grid: #2c333b;
  --fill: #20252b; --bar: #3fb68b; --bad: #ff8a7a; }
.mimokit-live * { box-sizing: border-box; }
.mimokit-live header { display: flex; align-items: baseline; gap: 12px; flex-wrap: wrap; }
.mimokit-live h3 { margin: 0; font-size: 16px; font-weight: 600; color: var(--ink); }
.mimokit-live .layout { color: var(--muted); flex: 1 1 auto; }
.mimokit-live button { font: inherit; font-weight: 600; color: var(--ink); cursor: pointer;
  background: var(--fill); border: 1px solid var(--grid); border-radius: 6px; padding: 4px 16px; }
.mimokit-live button:hover:enabled { border-color: var(--muted); }
.mimokit-live button:focus-visible { outline: 2px solid #3b82c4; outline-offset: 1px; }
.mimokit-live button:disabled { color: var(--muted); cursor: default; }
.mimokit-live .progress { height: 6px; border-radius: 3px; background: var(--grid);
  overflow: hidden; margin: 10px 0 5px; }
.mimokit-live .progress div { height: 100%; width: 0; background: var(--bar); }
.mimokit-live.failed .progress div { background: var(--bad); }
.mimokit-live .where { display: flex; justify-content: space-between; color: var(--muted); }
.mimokit-live .sentence { font-weight: 600; margin-top: 6px; }
.mimokit-live.failed .sentence { color: var(--bad); }
.mimokit-live .sentence:empty { display: none; }
.mimokit-live .numbers { display: grid; gap: 8px; margin: 12px 0 6px;
  grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); }
.mimokit-live .number { background: var(--fill); border-radius: 6px; padding: 7px 12px; }
.mimokit-live .number b { display: block; font-size: 19px; font-weight: 600; line-height: 1.25;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
.mimokit-live .number span { color: var(--muted); font-size: 12px; }
.mimokit-live .panels { display: grid; gap: 16px 28px; grid-template-columns: 1fr 1fr;
  margin-top: 12px; }
.mimokit-live.narrow .panels { grid-template-columns: 1fr; }
.mimokit-live figure { margin: 0; min-width: 0; }
.mimokit-live figure.wide { grid-column: 1 / -1; }
.mimokit-live figcaption { display: flex; gap: 4px 14px; flex-wrap: wrap; align-items: baseline;
  color: var(--muted); font-size: 12px; margin-bottom: 4px; min-height: 18px; }
.mimokit-live figcaption b { color: var(--ink); font-size: 13px; }
.mimokit-live .key { white-space: nowrap; }
.mimokit-live .key i { display: inline-block; width: 10px; height: 10px; border-radius: 2px;
  margin-right: 5px; }
.mimokit-live canvas { display: block; width: 100%; }
.mimokit-live .tip { position: absolute; pointer-events: none; background: var(--ink);
  color: var(--paper); border-radius: 5px; padding: 4px 8px; font-size: 12px; white-space: pre;
  z-index: 2; opacity: 0.95; font-variant-numeric: tabular-nums; }
.mimokit-live .tip[hidden] { display: none; }
`;

/** Is the page around an element dark? */
function isDark(element) {
  for (let node = element; node; node = node.parentElement) {
    const color = getComputedStyle(node).backgroundColor.match(/[\d.]+/g)?.map(Number);
    if (color && (color.length < 4 || color[3] > 0.5)) {
      return 0.299 * color[0] + 0.587 * color[1] + 0.114 * color[2] < 128;
    }
  }
  return false;
}

function themeOf(root, given) {
  const read = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const dark = root.classList.contains("dark");
  return {
    dark,
    ink: read("--ink"),
    muted: read("--muted"),
    grid: read("--grid"),
    paper: read("--paper"),
    heat: dark ? HEAT_DARK : HEAT_LIGHT,
    line: dark ? "#3FB68B" : given.line,
    accent: dark ? "#F07DA8" : given.accent,
  };
}

function mix(low, high, share) {
  const parts = (color) => [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
  const [a, b] = [parts(low), parts(high)];
  return `rgb(${a.map((value, at) => Math.round(value + (b[at] - value) * share)).join(",")})`;
}

function ramp(colors, share) {
  const place = Math.min(0.9999, Math.max(0, share)) * (colors.length - 1);
  return mix(colors[Math.floor(place)], colors[Math.floor(place) + 1], place % 1);
}

// ---------------------------------------------------------------- words and numbers

function short(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return `${(value / 1e6).toFixed(1)}M`;
  if (size >= 1e4) return `${(value / 1e3).toFixed(1)}k`;
  if (size >= 100) return value.toFixed(0);
  if (size >= 10) return value.toFixed(1);
  return String(Number(value.toPrecision(3)));
}

function percent(share) {
  if (share === null || share === undefined) return "–";
  return `${(share * 100).toFixed(share > 0 && share < 0.0995 ? 1 : 0)} %`;
}

function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
}

function megabytes(bytes) {
  return bytes >= 1e9 ? `${(bytes / 1e9).toFixed(2)} GB` : `${(bytes / 1e6).toFixed(0)} MB`;
}

/** Round numbers from 0 to at least `top`. */
function ticks(top, most = 5) {
  const raw = (top || 1) / most;
  const magnitude = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * magnitude).find((s) => s >= raw);
  const found = [];
  for (let index = 0; index * step <= top * 1.0001 + 1e-12; index++) found.push(index * step);
  return found;
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted.length ? sorted[Math.floor(sorted.length / 2)] : 0;
}

// ---------------------------------------------------------------- drawing

const LEFT = 52;
const BOTTOM = 20;
const TOP = 6;
const RIGHT = 8;
const FONT = '11px system-ui, "Helvetica Neue", Arial, sans-serif';

function prepare(canvas, height) {
  const width = canvas.clientWidth || 400;
  const ratio = window.devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = FONT;
  return { context, width, height, plot: { x: LEFT, y: TOP, w: width - LEFT - RIGHT,
    h: height - TOP - BOTTOM } };
}

function iterationAxis({ context, plot }, theme, last) {
  context.fillStyle = theme.muted;
  context.textBaseline = "top";
  for (const tick of ticks(last, 6)) {
    if (tick % 1) continue;
    const x = plot.x + (tick / Math.max(1, last)) * plot.w;
    context.textAlign = tick === 0 ? "left" : x > plot.x + plot.w - 12 ? "right" : "center";
    context.fillText(tick, x, plot.y + plot.h + 6);
  }
}

function amountAxis({ context, plot }, theme, top, format) {
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const tick of ticks(top, 4)) {
    const y = Math.round(plot.y + plot.h - (tick / top) * plot.h) + 0.5;
    context.strokeStyle = theme.grid;
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(plot.x, y);
    context.lineTo(plot.x + plot.w, y);
    context.stroke();
    context.fillStyle = theme.muted;
    context.fillText(format(tick), plot.x - 7, y);
  }
}

function line(context, points, color, dash = []) {
  context.strokeStyle = color;
  context.lineWidth = 1.8;
  context.lineJoin = "round";
  context.setLineDash(dash);
  context.beginPath();
  points.forEach(([x, y], index) => (index ? context.lineTo(x, y) : context.moveTo(x, y)));
  context.stroke();
  context.setLineDash([]);
}

function dots(context, points, color, radius) {
  context.fillStyle = color;
  for (const [x, y] of points) {
    context.beginPath();
    context.arc(x, y, radius, 0, 7);
    context.fill();
  }
}

function empty({ context, plot }, theme, text) {
  context.fillStyle = theme.muted;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(text, plot.x + plot.w / 2, plot.y + plot.h / 2);
}

/** Draw curves over iterations; returns what to say about a place. */
function drawCurves(canvas, theme, last, top, format, series, waiting) {
  const area = prepare(canvas, 150);
  const { context, plot } = area;
  const known = series.filter((one) => one.points.length);
  amountAxis(area, theme, top, format);
  iterationAxis(area, theme, last);
  if (!known.length) empty(area, theme, waiting);
  const place = ([iteration, value]) => [
    plot.x + (iteration / Math.max(1, last)) * plot.w,
    plot.y + plot.h - (Math.min(value, top) / top) * plot.h,
  ];
  for (const one of known) {
    const points = one.points.filter(([, value]) => value !== null).map(place);
    if (one.stroke !== false) line(context, points, one.color, one.dash);
    if (one.dots || points.length === 1) dots(context, points, one.color, one.dots || 2);
  }
  return (x) => {
    if (!known.length) return null;
    const wanted = ((x - plot.x) / plot.w) * Math.max(1, last);
    const nearest = (points) =>
      points.reduce((best, point) =>
        Math.abs(point[0] - wanted) < Math.abs(best[0] - wanted) ? point : best);
    const at = nearest(known[0].points)[0];
    const values = known.map((one) => `${one.name}  ${format(nearest(one.points)[1])}`);
    return [`iteration ${at}`, ...values].join("\n");
  };
}

function drawLoss(canvas, theme, store, last) {
  const points = store.ordered.map((all) => [all.iteration, all.loss]);
  const top = Math.max(0.1, ...points.map((point) => point[1] ?? 0)) * 1.05;
  const series = [{ name: "loss", color: theme.line, points }];
  return drawCurves(canvas, theme, last, top, short, series, "waiting for the first step");
}

function drawAccuracy(canvas, theme, store, last) {
  const tasks = [...new Set(store.evaluations.map((one) => one.task))];
  const series = [];
  tasks.forEach((task, index) => {
    const mine = store.evaluations.filter((one) => one.task === task);
    const dash = [[], [6, 3]][index] ?? [2, 2];
    const of = (key) => mine.map((one) => [one.iteration, one[key]]).filter((p) => p[1] !== null);
    const suffix = tasks.length > 1 ? `, ${task}` : "";
    series.push({ name: `whole answer${suffix}`, color: theme.accent, points: of("exact"), dash,
      dots: 3 });
    series.push({ name: `single digit${suffix}`, color: theme.line, points: of("digit"), dash,
      dots: 3 });
    const chance = mine[0].chance;
    const points = chance === null ? [] : [[0, chance], [last, chance]];
    series.push({ name: `chance${suffix}`, color: theme.muted, points, dash: [4, 4] });
  });
  return drawCurves(canvas, theme, last, 1, percent, series, "not tested yet");
}

function drawSpeed(canvas, theme, store, last, warmup) {
  const points = store.ordered.filter((all) => all.tokens !== null)
    .map((all) => [all.iteration, all.tokens]);
  const top = Math.max(1, ...points.map((point) => point[1] ?? 0)) * 1.05;
  const middle = median(points.slice(points.length > warmup ? warmup : 0).map((p) => p[1]));
  const series = [{ name: "tokens/s", color: theme.line, points }];
  if (points.length > 1) {
    series.push({ name: "median", color: theme.accent, points: [[0, middle], [last, middle]],
      dash: [4, 4] });
  }
  return drawCurves(canvas, theme, last, top, short, series, "waiting for the first step");
}

/** Heat map of the step time: a row per rank, columns of one or more iterations. */
function drawHeat(canvas, theme, store, last) {
  const ranks = store.rankList();
  const row = ranks.length > 16 ? Math.max(1, Math.floor(256 / ranks.length)) : 15.5;
  const area = prepare(canvas, Math.max(150, Math.round(ranks.length * row) + TOP + BOTTOM));
  const { context, plot } = area;
  iterationAxis(area, theme, last);
  if (!ranks.length) {
    empty(area, theme, "waiting for the first step");
    return () => null;
  }
  const height = plot.h / ranks.length;
  const width = Math.max(1, Math.ceil((last + 1) / Math.max(1, plot.w / 3)));
  const middle = median(store.ordered.map((all) => all.seconds)) || 1;
  const columns = Math.ceil((store.lastIteration.iteration + 1) / width);
  const scale = plot.w / ((last + 1) / width);
  ranks.forEach((rank, index) => {
    const seconds = store.ranks.get(rank).seconds;
    for (let column = 0; column < columns; column++) {
      const mean = meanOf(seconds, column * width, width);
      if (mean === null) continue;
      context.fillStyle = ramp(theme.heat, mean / middle - 0.5);
      context.fillRect(plot.x + column * scale, plot.y + index * height, scale + 0.4,
        height - (height > 6 ? 1 : 0));
    }
  });
  rankLabels(area, theme, ranks, height);
  return (x, y) => {
    const rank = ranks[Math.floor((y - plot.y) / height)];
    const first = Math.floor((x - plot.x) / scale) * width;
    const mean = rank === undefined ? null : meanOf(store.ranks.get(rank).seconds, first, width);
    return mean === null ? null
      : `rank ${rank}, iteration ${first}\n${short(mean * 1000)} ms`;
  };
}

function meanOf(seconds, first, width) {
  let sum = 0;
  let found = 0;
  for (let iteration = first; iteration < first + width; iteration++) {
    const value = seconds.get(iteration);
    if (value === undefined) continue;
    sum += value;
    found += 1;
  }
  return found ? sum / found : null;
}

function rankLabels({ context, plot }, theme, ranks, height) {
  context.fillStyle = theme.muted;
  context.textAlign = "right";
  context.textBaseline = "middle";
  const every = Math.ceil(12 / height);
  ranks.forEach((rank, index) => {
    if (index % every === 0) {
      context.fillText(`rank ${rank}`, plot.x - 7, plot.y + (index + 0.5) * height);
    }
  });
}

/** Stacked bars: where the time of a step goes on every rank, at most 64 of them. */
function drawPhases(canvas, theme, store) {
  const ranks = store.rankList().slice(0, 64);
  const area = prepare(canvas, Math.max(120, ranks.length * 20) + TOP + BOTTOM);
  const { context, plot } = area;
  if (!ranks.length) {
    empty(area, theme, "waiting for the first step");
    return () => null;
  }
  const means = ranks.map((rank) => store.phaseMeans(rank));
  const longest = Math.max(...means.map((parts) => parts.reduce((a, b) => a + b, 0))) * 1000;
  const top = longest * 1.02 || 1;
  const height = plot.h / ranks.length;
  context.textBaseline = "top";
  for (const tick of ticks(top, 8)) {
    const x = Math.round(plot.x + (tick / top) * plot.w) + 0.5;
    context.strokeStyle = theme.grid;
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(x, plot.y);
    context.lineTo(x, plot.y + plot.h);
    context.stroke();
    context.fillStyle = theme.muted;
    context.textAlign = tick === 0 ? "left" : "center";
    context.fillText(tick === 0 ? "0 ms" : short(tick), x, plot.y + plot.h + 6);
  }
  means.forEach((parts, index) => {
    let x = plot.x;
    parts.forEach((seconds, phase) => {
      const width = ((seconds * 1000) / top) * plot.w;
      context.fillStyle = store.phases[phase].color;
      context.fillRect(x, plot.y + index * height + 1.5, width, height - 3);
      x += width;
    });
  });
  rankLabels(area, theme, ranks, height);
  return (x, y) => {
    const index = Math.floor((y - plot.y) / height);
    if (!means[index]) return null;
    let left = ((x - plot.x) / plot.w) * top;
    const phase = means[index].findIndex((seconds) => (left -= seconds * 1000) < 0);
    if (phase < 0 || x < plot.x) return null;
    const ms = short(means[index][phase] * 1000);
    return `rank ${ranks[index]}\n${store.phases[phase].name}  ${ms} ms`;
  };
}

// ---------------------------------------------------------------- the view

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function key(color, text) {
  const swatch = element("i");
  swatch.style.background = color;
  return element("span", { class: "key" }, swatch, text);
}

/** One chart with its caption; knows what to say when the pointer is over it. */
class Panel {
  constructor(view, title, wide, describe) {
    this.caption = element("figcaption", {}, element("b", {}, title));
    this.keys = element("span", { style: "display: contents" });
    this.caption.append(this.keys);
    this.canvas = element("canvas", { role: "img", "aria-label": describe });
    this.figure = element("figure", wide ? { class: "wide" } : {}, this.caption, this.canvas);
    this.say = () => null;
    this.canvas.addEventListener("pointermove", (event) => view.showTip(event, this));
    this.canvas.addEventListener("pointerleave", () => view.hideTip());
  }

  note(...nodes) {
    this.keys.replaceChildren(...nodes);
  }
}

class View {
  constructor(model, store, host) {
    this.model = model;
    this.store = store;
    this.build(host);
    this.draw = this.draw.bind(this);
    this.schedule = () => {
      if (!this.frame) this.frame = requestAnimationFrame(this.draw);
    };
    store.listeners.add(this.schedule);
    this.resizing = new ResizeObserver(this.schedule);
    this.resizing.observe(this.root);
    this.theming = new MutationObserver(this.schedule);
    for (const node of [document.documentElement, document.body]) {
      this.theming.observe(node, { attributes: true });
    }
    for (const name of ["status", "sentence"]) model.on(`change:${name}`, this.schedule);
    this.schedule();
  }

  build(host) {
    this.title = element("h3");
    this.stop = element("button", { type: "button", title: "End after this iteration" }, "Stop");
    this.stop.addEventListener("click", () => {
      this.stop.disabled = true;
      this.stop.textContent = "Stopping …";
      this.model.send({ type: "stop" });
    });
    this.fill = element("div");
    this.progress = element("div", { class: "progress", role: "progressbar",
      "aria-label": "training", "aria-valuemin": 0 }, this.fill);
    this.done = element("span");
    this.left = element("span");
    this.sentence = element("div", { class: "sentence", "aria-live": "polite" });
    this.numbers = element("div", { class: "numbers" });
    this.values = {};
    for (const [name, text] of [["loss", "loss"], ["accuracy", "whole answers right"],
      ["tokens", "tokens/s, all ranks"], ["step", "step time"], ["memory", "memory, largest rank"],
    ]) {
      this.values[name] = { value: element("b", {}, "–"), label: element("span", {}, text) };
      this.numbers.append(element("div", { class: "number" }, this.values[name].value,
        this.values[name].label));
    }
    this.panels = {
      loss: new Panel(this, "Loss", false, "training loss per iteration"),
      accuracy: new Panel(this, "Accuracy", false, "share of right answers on held-out samples"),
      speed: new Panel(this, "Tokens per second", false, "tokens per second of all ranks"),
      heat: new Panel(this, "Step time", false, "step time of every rank over the run"),
      phases: new Panel(this, "Time per phase and module", true,
        "mean time of every phase and module, rank by rank"),
    };
    this.tip = element("div", { class: "tip" });
    this.tip.hidden = true;
    const layout = element("span", { class: "layout" }, this.model.get("_layout_in_words"));
    this.root = element("div", { class: "mimokit-live" }, element("style", {}, STYLE),
      element("header", {}, this.title, layout, this.stop), this.progress,
      element("div", { class: "where" }, this.done, this.left), this.sentence, this.numbers,
      element("div", { class: "panels" },
        ...Object.values(this.panels).map((panel) => panel.figure)), this.tip);
    host.append(this.root);
    this.host = host;
  }

  draw() {
    this.frame = 0;
    if (!this.root.isConnected || !this.root.clientWidth) return;
    const total = this.model.get("total_iterations");
    const status = this.model.get("status");
    this.root.classList.toggle("dark", isDark(this.host));
    this.root.classList.toggle("narrow", this.root.clientWidth < 620);
    this.root.classList.toggle("failed", status === "failed");
    this.drawHead(status, total);
    this.drawNumbers();
    this.drawPanels(Math.max(1, total - 1));
  }

  drawHead(status, total) {
    const done = (this.store.lastIteration?.iteration ?? -1) + 1;
    const words = { training: done ? "Training" : "Starting", stopping: "Stopping",
      finished: "Training finished", stopped: "Training stopped", failed: "Training failed" };
    this.title.textContent = words[status];
    this.sentence.textContent = this.model.get("sentence");
    this.stop.hidden = ENDED.includes(status);
    this.fill.style.width = `${(100 * done) / Math.max(1, total)}%`;
    this.progress.setAttribute("aria-valuemax", total);
    this.progress.setAttribute("aria-valuenow", done);
    this.done.textContent = `iteration ${done} of ${total}`;
    const left = this.store.secondsLeft(total);
    const spent = this.store.lastTime === null ? 0 : this.store.lastTime - this.store.firstTime;
    this.left.textContent = ENDED.includes(status) ? duration(spent)
      : left === null ? "" : `about ${duration(left)} left`;
  }

  drawNumbers() {
    const { store, values } = this;
    const latest = store.lastIteration;
    if (latest) {
      values.loss.value.textContent = latest.loss === null ? "–" : latest.loss.toFixed(3);
      values.tokens.value.textContent = short(latest.tokens);
      const seconds = latest.seconds;
      values.step.value.textContent = seconds ? `${short(seconds * 1000)} ms` : "–";
      const memory = Math.max(...[...store.ranks.values()].map((rank) => rank.memory));
      values.memory.value.textContent = memory ? megabytes(memory) : "–";
    }
    const tested = store.evaluations[store.evaluations.length - 1];
    if (tested) {
      values.accuracy.value.textContent = percent(tested.exact);
      const chance = tested.chance === null ? "" : `, chance ${percent(tested.chance)}`;
      values.accuracy.label.textContent = `whole answers right${chance}`;
    }
  }

  drawPanels(last) {
    const { panels, store } = this;
    const theme = themeOf(this.root, this.model.get("_colors"));
    const warmup = this.model.get("warmup_iterations");
    panels.loss.say = drawLoss(panels.loss.canvas, theme, store, last);
    panels.accuracy.note(key(theme.accent, "whole answer"), key(theme.line, "single digit"),
      key(theme.muted, "chance"));
    panels.accuracy.say = drawAccuracy(panels.accuracy.canvas, theme, store, last);
    panels.speed.note(key(theme.line, "all ranks together"), key(theme.accent, "median"));
    panels.speed.say = drawSpeed(panels.speed.canvas, theme, store, last, warmup);
    const middle = median(store.ordered.map((all) => all.seconds)) * 1000;
    panels.heat.note(...(middle ? [key(theme.heat[0], `${short(middle / 2)} ms`),
      key(theme.heat[2], `${short(middle)} ms`), key(theme.heat[4], `${short(middle * 1.5)} ms`)]
      : []));
    panels.heat.say = drawHeat(panels.heat.canvas, theme, store, last);
    panels.phases.note(...store.phases.map((phase) => key(phase.color, phase.name)));
    panels.phases.say = drawPhases(panels.phases.canvas, theme, store);
  }

  showTip(event, panel) {
    const text = panel.say(event.offsetX, event.offsetY);
    this.tip.hidden = !text;
    if (!text) return;
    this.tip.textContent = text;
    const box = this.root.getBoundingClientRect();
    const x = event.clientX - box.left;
    this.tip.style.top = `${event.clientY - box.top + 14}px`;
    this.tip.style.left = x > box.width * 0.7 ? "" : `${x + 12}px`;
    this.tip.style.right = x > box.width * 0.7 ? `${box.width - x + 12}px` : "";
  }

  hideTip() {
    this.tip.hidden = true;
  }

  remove() {
    this.store.listeners.delete(this.schedule);
    this.resizing.disconnect();
    this.theming.disconnect();
    if (this.frame) cancelAnimationFrame(this.frame);
    for (const name of ["status", "sentence"]) this.model.off(`change:${name}`, this.schedule);
  }
}

// ---------------------------------------------------------------- the widget

/** One store for a model, however many views show it and whenever they are opened. */
export default () => {
  let store = null;

  function initialize({ model }) {
    store = new Store(model.get("_phases"));
    const takeHistory = () => store.append(0, model.get("_history") ?? []);
    takeHistory();
    model.on("change:_history", takeHistory);
    model.on("msg:custom", (message) => {
      if (message.type !== "append") return;
      if (!store.append(message.start, message.rows)) model.send({ type: "resync" });
    });
  }

  function render({ model, el }) {
    const view = new View(model, store, el);
    return () => view.remove();
  }

  return { initialize, render };
};
