// Everything a run has sent, in the browser: by iteration and by rank.

import { median } from "mimokit/series.js";

const STEP = 0;
const EVALUATION = 1;
const WAITING = "waiting_time";

export class RunStore {
  /**
   * `header` names the values of a row and says how ranks become one. Each of `phases` has a name
   * and a column; the last one is what remains of a step. Each of `modules` has a name and the
   * column of its rate.
   */
  constructor(header, phases, modules) {
    this.places = { step: placesOf(header.step), evaluation: placesOf(header.evaluation) };
    this.over = header.over;
    this.phases = phases;
    this.modules = modules;
    this.communication = phases.findIndex((phase) => phase.name === "communication");
    this.waiting = phases.findIndex((phase) => phase.column === WAITING);
    this.listeners = new Set();
    this.clear();
  }

  clear() {
    this.count = 0;
    this.every = 1; // of so many iterations one was taken of the past
    this.ordered = []; // what all ranks did in an iteration
    this.byIteration = new Map();
    this.ranks = new Map(); // rank -> Map of iteration -> {seconds, memory, phases}
    this.evaluations = [];
    this.firstTime = null;
    this.lastTime = null;
  }

  /** Take what is kept of the past of a run, unless all of it is here. */
  takeHistory({ count, every, rows }) {
    if (every > 1 && count > this.count) {
      this.clear();
      rows.forEach((row) => this.add(row));
      [this.count, this.every] = [count, every];
    }
    this.append(0, every > 1 ? [] : rows);
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
    if (row[0] === EVALUATION) this.addEvaluation(readerOf(this.places.evaluation, row));
    else if (row[0] === STEP) this.addStep(readerOf(this.places.step, row));
  }

  addEvaluation(at) {
    const rank = at("rank");
    this.evaluations.push({ iteration: at("iteration"), time: at("time"), task: at("task"), rank,
      exact: at("exact_match"), digit: at("digit_accuracy"), chance: at("chance") });
  }

  addStep(at) {
    const rank = at("rank");
    const iteration = at("iteration");
    const time = at("time");
    const seconds = at("total_time");
    const known = this.phases.slice(0, -1).map(({ column }) => at(column) ?? 0);
    // Its column has the waiting in it, which is a part of its own.
    known[this.communication] = Math.max(0, known[this.communication] - known[this.waiting]);
    const measured = seconds !== null; // else the performance monitor is off
    const spent = known.reduce((sum, part) => sum + part, 0);
    const phases = measured ? [...known, Math.max(0, seconds - spent)] : null;
    if (!this.ranks.has(rank)) this.ranks.set(rank, new Map());
    this.ranks.get(rank).set(iteration, { seconds, memory: at("memory_allocated"), phases });
    const all = this.iteration(iteration);
    const reduced = (before, column) => {
      const over = this.over[column];
      if (over !== "replicas") return combine(over, before, at(column));
      return ofReplicas((all.told[column] ??= new Set()), before, at(column), at("replica"));
    };
    all.time = reduced(all.time, "time");
    all.loss = reduced(all.loss, "loss");
    all.tokens = reduced(all.tokens, "tokens_per_sec");
    all.memory = reduced(all.memory, "memory_allocated");
    all.peak = reduced(all.peak, "memory_peak");
    all.validation = reduced(all.validation, "validation_loss");
    all.utilisation = reduced(all.utilisation, "model_flop_utilisation");
    all.waiting = added(all.waiting, at("waiting_time"));
    all.rates = this.modules.map(({ rate }, module) => reduced(all.rates[module], rate));
    if (measured) this.addTimes(all, reduced(all.seconds, "total_time"), phases);
    this.firstTime = Math.min(this.firstTime ?? Infinity, time - (seconds ?? 0));
    this.lastTime = Math.max(this.lastTime ?? time, time);
  }

  addTimes(all, seconds, phases) {
    all.seconds = seconds;
    all.ranks += 1;
    phases.forEach((part, at) => (all.phases[at] += part));
    all.waited = Math.max(all.waited, phases[this.communication] + phases[this.waiting]);
  }

  iteration(iteration) {
    const known = this.byIteration.get(iteration);
    if (known) return known;
    // told: column -> the replicas whose number is known
    const fresh = { iteration, told: {}, time: 0, seconds: 0, loss: null, validation: null, tokens: null,
      memory: 0, peak: null, utilisation: null, ranks: 0, waited: 0,
      waiting: null, rates: this.modules.map(() => null),
      phases: this.phases.map(() => 0) };
    this.byIteration.set(iteration, fresh);
    let place = this.ordered.length;
    while (place && this.ordered[place - 1].iteration > iteration) place -= 1;
    this.ordered.splice(place, 0, fresh);
    return fresh;
  }

  get last() {
    return this.ordered.length ? this.ordered[this.ordered.length - 1] : null;
  }

  /** Seconds between the end of the iteration before one and its own end, null if not known. */
  secondsBefore(iteration) {
    const [before, after] = [iteration - 1, iteration].map((one) => this.byIteration.get(one));
    return before && after ? after.time - before.time : null;
  }

  /** The iterations of a scope that are there. */
  within({ first, end }) {
    return this.ordered.slice(this.placeOf(first), this.placeOf(end + 1));
  }

  placeOf(iteration) {
    let [low, high] = [0, this.ordered.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.ordered[middle].iteration < iteration) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /**
   * What a run comes down to after its warm-up: medians of what a step has, shares of all time.
   * null if nothing was measured.
   */
  typical(warmup) {
    const steady = this.ordered.filter(({ iteration }) => iteration >= warmup);
    const counted = steady.length ? steady : this.ordered;
    if (!counted.length) return null;
    const known = (name) => counted.map((each) => each[name]).filter((value) => value !== null);
    const total = (value) => counted.reduce((sum, each) => sum + (value(each) ?? 0), 0);
    const whole = total((each) => each.phases.reduce((a, b) => a + b, 0));
    const share = (value) => (whole > 0 ? total(value) / whole : null);
    return { seconds: median(known("seconds")), tokens: median(known("tokens")),
      utilisation: median(known("utilisation")),
      communication: share((each) => each.phases[this.communication]),
      waiting: known("waiting").length ? share((each) => each.waiting) : null };
  }

  rankList() {
    return [...this.ranks.keys()].sort((a, b) => a - b);
  }

  /** Seconds until the last iteration at the pace of the recent ones, null if unknown. */
  secondsLeft(total) {
    const done = this.ordered.length;
    if (done < 3) return null;
    const [from, to] = [this.ordered[Math.max(1, done - 30)], this.ordered[done - 1]];
    const pace = (to.time - from.time) / Math.max(1, to.iteration - from.iteration);
    return pace * Math.max(0, total - 1 - to.iteration);
  }

  /** Mean seconds of every phase of a rank over some iterations. */
  phaseMeans(rank, iterations) {
    const sums = this.phases.map(() => 0);
    let count = 0;
    for (const { iteration } of iterations) {
      const phases = this.ranks.get(rank).get(iteration)?.phases;
      if (!phases) continue;
      phases.forEach((part, at) => (sums[at] += part));
      count += 1;
    }
    return sums.map((sum) => sum / Math.max(1, count));
  }
}

/** Where each column stands in a row, after its kind. */
function placesOf(columns) {
  return new Map(columns.map((name, place) => [name, place + 1]));
}

/** Read a row by the names of columns. */
function readerOf(places, row) {
  return (name) => {
    const place = places.get(name);
    if (place === undefined) throw new Error(`The rows of this run have no column ${name}.`);
    return row[place];
  };
}

/** The sum over ranks; null is unknown. */
function added(known, value) {
  return value === null || value === undefined ? known : (known ?? 0) + value;
}

/** The mean over replicas, of each of which the first number counts; null is unknown. */
function ofReplicas(told, known, value, replica) {
  if (value === null || value === undefined || told.has(replica)) return known;
  told.add(replica);
  return known === null ? value : known + (value - known) / told.size;
}

/** What ranks have together; null is unknown. */
function combine(over, known, value) {
  if (value === null || value === undefined) return known;
  if (known === null) return value;
  if (over === "first") return known;
  const chosen = { max: Math.max, min: Math.min }[over];
  if (!chosen) throw new Error(`Ranks do not become one by ${over} in a browser.`);
  return chosen(known, value);
}
