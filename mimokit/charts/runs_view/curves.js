// Curves of many runs over their iterations: a metric, or its difference from another run's.

import { PixelLines } from "mimokit/pixel_lines.js";
import { written } from "mimokit/words.js";

const HEIGHT = 190;
const MOST_RAW = 8; // runs behind whose smooth line the values themselves are drawn
const MOST_STROKED = 24; // more lines than these are written as pixels
const FAINT = 0.25;

/** A chart of one metric; `of(run, smoothing)` gives its values, one per iteration of the run. */
export function curvesOf(view, metric, of, { around = false, zero = false } = {}) {
  return {
    height: () => HEIGHT,

    draw(area, store, theme) {
      const curves = view.drawn().map((run) => ({ run, values: of(run, view.smoothing) }))
        .filter(({ values }) => values.length);
      const whole = around || metric.name === "loss";
      const known = store.range(curves, area.scope, whole ? 1 : 0.98);
      const alike = around && known?.every((end) => end === 0);
      if (!known || alike) {
        area.iterationAxis();
        area.say(alike ? "no difference in any bit" : view.drawn().length ? "nothing was measured"
          : "no run is shown: open an eye");
        return { say: () => null, at: () => [], text: "", keys: [] };
      }
      const planned = predictions(view, curves, metric);
      const range = limits([known[0], Math.max(known[1], ...planned.map(({ high }) => high))], zero,
        around);
      const format = (value) => written(value, metric.kind);
      area.amountAxis(...range, format);
      area.iterationAxis();
      if (around) area.line([area.x, area.x + area.w].map((x) => [x, area.height(0, ...range)]),
        theme.muted, [2, 3]);
      if (view.smoothing && curves.length <= MOST_RAW) {
        const raw = curves.map(({ run }) => ({ run, values: of(run, 0) }));
        drawAll(area, view, raw, range, FAINT);
      }
      drawAll(area, view, curves, range, 1);
      for (const { run, seconds } of planned) drawPredicted(area, view, run, seconds, range);
      const rows = (iteration) => rowsAt(store, view, curves, iteration, format);
      return { say: (x, y) => sayAt(area, rows, range, x, y), at: rows,
        text: spoken(curves, format), keys: [], note: [planned.length ? "thin dashed lines are predicted" : "",
          view.note()].filter(Boolean).join("; ") };
    },
  };
}

/** What was predicted for the steps of few runs. */
function predictions(view, curves, metric) {
  if (metric.name !== "total_time" || curves.length > MOST_RAW) return [];
  return curves.flatMap(({ run }) => {
    const [seconds, , high] = view.plannedOf(run) ?? [];
    return seconds === undefined ? [] : [{ run, seconds, high }];
  });
}

function drawPredicted(area, view, run, seconds, range) {
  const y = area.height(seconds, ...range);
  const [color] = view.strokeOf(run);
  area.line([[area.x, y], [area.x + area.w, y]], color, [5, 3], 1);
}

function limits([low, high], zero, around) {
  if (around) {
    const most = Math.max(-low, high, 1e-9) * 1.08;
    return [-most, most];
  }
  const air = (high - low || Math.abs(high) || 1) * 0.06;
  return [zero || low - air < 0 && low >= 0 ? 0 : low - air, high + air];
}

function drawAll(area, view, curves, range, opacity) {
  const pen = curves.length > MOST_STROKED ? new PixelLines(area) : area;
  const dimmed = ({ run }) => view.lit !== null && view.lit !== run.name;
  const onTop = curves.filter((curve) => !dimmed(curve));
  for (const curve of [...curves.filter(dimmed), ...onTop]) {
    const { run, values } = curve;
    const [color, dash] = view.strokeOf(run);
    const dim = dimmed(curve);
    pen.trace(run.iterations, values, range, color, dash, dim ? FAINT * opacity : opacity);
  }
  pen.show?.();
}

/** What each run has at an iteration; its words are made when they are read. */
function rowsAt(store, view, curves, iteration, format) {
  return curves.flatMap(({ run, values }) => {
    const at = store.placeOf(run, iteration);
    if (at < 0 || iteration - run.iterations[at] >= store.about.every) return [];
    if (Number.isNaN(values[at])) return [];
    const [color] = view.strokeOf(run);
    const value = values[at];
    return [{ color, value, get text() { return `${format(value)}  ${view.shortName(run)}`; } }];
  });
}

/** The runs nearest to the pointer first. */
function sayAt(area, rows, [bottom, top], x, y) {
  const iteration = area.iterationAt(x);
  if (iteration === null) return null;
  const near = rows(iteration).sort((a, b) => Math.abs(area.height(a.value, bottom, top) - y)
    - Math.abs(area.height(b.value, bottom, top) - y));
  const more = near.length > 8 ? [`and ${near.length - 8} more, in the table`] : [];
  return [`iteration ${iteration}`, ...near.slice(0, 8).map(({ text }) => text), ...more].join("\n");
}

function spoken(curves, format) {
  return curves.slice(0, 8).map(({ run, values }) => {
    const last = values.findLast((value) => !Number.isNaN(value));
    return `${run.name} ${format(last)}`;
  }).join(", ");
}
