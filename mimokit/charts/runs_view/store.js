// The curves of many runs in the browser, and what is computed from them.

import { smooth } from "mimokit/series.js";

const NOTHING = new Float32Array(0);
const MOST_OF_A_RUN = 500; // values that an axis is fitted to
const MOST_RANGED = 5_000; // the same of all runs

/** The normal value that a share above a half lies below, after Abramowitz and Stegun 26.2.23. */
function normalQuantile(share) {
  const t = Math.sqrt(-2 * Math.log(1 - share));
  return t - (2.515517 + 0.802853 * t + 0.010328 * t * t)
    / (1 + 1.432788 * t + 0.189269 * t * t + 0.001308 * t ** 3);
}

/**
 * Student's t that a share of all values lies below, after Cornish and Fisher: within 1 % of it from
 * 3 degrees of freedom on.
 */
export function studentQuantile(share, freedom) {
  const z = normalQuantile(share);
  const terms = [z, (z ** 3 + z) / 4, (5 * z ** 5 + 16 * z ** 3 + 3 * z) / 96,
    (3 * z ** 7 + 19 * z ** 5 + 17 * z ** 3 - 15 * z) / 384];
  return terms.reduce((sum, term, order) => sum + term / freedom ** order, 0);
}

export class RunsStore {
  /** `about` is the JSON of `RunsContent`, `curves` its float32 values in a DataView. */
  constructor(about, curves) {
    Object.assign(this, { about, metrics: about.metrics, smoothed: new Map() });
    const bytes = curves.buffer.slice(curves.byteOffset, curves.byteOffset + curves.byteLength);
    const numbers = new Float32Array(bytes);
    let start = 0;
    this.runs = about.runs.map((run, place) => {
      const next = () => {
        start += run.count;
        return numbers.subarray(start - run.count, start);
      };
      const iterations = next();
      const values = Object.fromEntries(this.metrics.map(({ name }) => [name, next()]));
      return { ...run, place, iterations, values };
    });
    this.byName = new Map(this.runs.map((run) => [run.name, run]));
  }

  get lastIteration() {
    return Math.max(0, ...this.runs.map((run) => run.iterations[run.count - 1] ?? 0));
  }

  metric(name) {
    return this.metrics.find((metric) => metric.name === name);
  }

  /** The values of a run, smoothed by an exponential mean whose beginning is not pulled to 0. */
  curve(run, name, smoothing) {
    const raw = run.values[name] ?? NOTHING;
    if (!smoothing) return raw;
    const key = `${run.place} ${name} ${smoothing}`;
    if (!this.smoothed.has(key)) {
      if (this.smoothed.size > 4 * this.runs.length * this.metrics.length) this.smoothed.clear();
      this.smoothed.set(key, smooth(raw, smoothing));
    }
    return this.smoothed.get(key);
  }

  /** A run's values minus another one's at the same iterations. */
  difference(run, base, name, smoothing) {
    const [values, others] = [this.curve(run, name, smoothing), this.curve(base, name, smoothing)];
    const result = new Float32Array(run.count).fill(NaN);
    for (let at = 0, other = 0; at < run.count; at++) {
      while (other < base.count && base.iterations[other] < run.iterations[at]) other += 1;
      if (base.iterations[other] === run.iterations[at]) result[at] = values[at] - others[other];
    }
    return result;
  }

  /** The place of the last value at or before an iteration, -1 if there is none. */
  placeOf(run, iteration) {
    let [low, high] = [0, run.count];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (run.iterations[middle] <= iteration) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  /** What a run has of a metric at an iteration, null if it did not reach it. */
  valueAt(run, name, iteration, smoothing) {
    const at = this.placeOf(run, iteration);
    if (at < 0 || iteration - run.iterations[at] >= this.about.every) return null;
    const value = this.curve(run, name, smoothing)[at];
    return Number.isNaN(value) ? null : value;
  }

  lastOf(run, name) {
    const values = run.values[name] ?? NOTHING;
    for (let at = values.length - 1; at >= 0; at--) if (!Number.isNaN(values[at])) return values[at];
    return null;
  }

  /** Median, ends of its interval, error and degrees of freedom; null if there is none. */
  median(run, name) {
    return run.medians[name] ?? null;
  }

  /**
   * A median against that of another run: the relative change, and whether its interval, which
   * holds for `count` differences at once, leaves out 0. null if one of them has no median.
   */
  against(run, base, name, count) {
    const [mine, other] = [this.median(run, name), base && this.median(base, name)];
    if (!mine || !other || run === base || !other[0]) return null;
    const change = (mine[0] - other[0]) / Math.abs(other[0]);
    const error = Math.hypot(mine[3] ?? NaN, other[3] ?? NaN);
    if (!(error > 0)) return { change, significant: false, known: false };
    const spread = mine[3] ** 4 / mine[4] + other[3] ** 4 / other[4];
    const freedom = error ** 4 / spread;
    const half = studentQuantile(1 - 0.025 / Math.max(1, count), freedom) * error;
    return { change, significant: Math.abs(mine[0] - other[0]) > half, known: true };
  }

  /** The smallest and largest value of curves in a scope; below a share of 1 without single peaks. */
  range(curves, { first, end }, share = 1) {
    const most = Math.max(MOST_OF_A_RUN / 20, Math.min(MOST_OF_A_RUN, MOST_RANGED / curves.length));
    const values = [];
    let [low, high] = [Infinity, -Infinity];
    for (const { run, values: all } of curves) {
      const [from, to] = [Math.max(0, this.placeOf(run, first)), this.placeOf(run, end)];
      const every = share === 1 ? 1 : Math.max(1, Math.floor((to - from) / most));
      for (let at = from; at <= to; at += every) {
        if (Number.isNaN(all[at])) continue;
        low = Math.min(low, all[at]);
        high = Math.max(high, all[at]);
        if (share < 1) values.push(all[at]);
      }
    }
    if (low > high) return null;
    if (share === 1) return [low, high];
    const sorted = Float64Array.from(values).sort(); // its own order is that of numbers
    const at = (part) => sorted[Math.floor((sorted.length - 1) * part)];
    return [at(1 - share), at(share)];
  }
}
