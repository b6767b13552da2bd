// Lines over iterations: loss, accuracy, speed, communication, memory.

import { smooth } from "mimokit/series.js";
import { memory, milliseconds, percent, reach, short } from "mimokit/words.js";

export const HEIGHT = 164;
const DASHES = [[], [7, 3], [2, 2], [7, 2, 2, 2]];
export const NOTHING_YET = "waiting for the first step";

/** Draw series of [iteration, value] and return what to say about a place. */
function drawCurves(area, series, { bottom = 0, top, format, waiting = NOTHING_YET, smoothing = 0 }) {
  area.amountAxis(bottom, top, format);
  area.iterationAxis();
  const known = series.map((one) => ({ ...one,
    points: one.points.filter(([, value]) => value !== null && value !== undefined) }))
    .filter((one) => one.points.length);
  if (!known.length) area.say(waiting);
  for (const { points, color, dash = [], dots } of known) {
    const [iterations, values] = [0, 1].map((part) => points.map((point) => point[part]));
    area.trace(iterations, values, [bottom, top], color, dash, smoothing ? 0.3 : 1);
    if (smoothing) area.trace(iterations, smooth(values, smoothing), [bottom, top], color, dash);
    if (dots || points.length === 1) area.dots(iterations, values, [bottom, top], color, dots ?? 2.2);
  }
  return { known, say: (x) => sayCurves(area.iterationAt(x), known, format),
    at: (iteration) => rowsAt(iteration, known, format) };
}

/** What each line has at an iteration; a line with a value here and there has its last one. */
function rowsAt(iteration, known, format) {
  return known.flatMap(({ points, color, name }) => {
    const before = points.findLast(([at]) => at <= iteration);
    return before ? [{ color, text: `${format(before[1])}  ${name}` }] : [];
  });
}

function sayCurves(wanted, known, format) {
  if (wanted === null || !known.length) return null;
  const nearest = (points) => points.reduce((best, point) =>
    Math.abs(point[0] - wanted) < Math.abs(best[0] - wanted) ? point : best);
  const at = nearest(known[0].points)[0];
  const values = known.map((one) => `${one.name}  ${format(nearest(one.points)[1])}`);
  return [`iteration ${at}`, ...values].join("\n");
}

/**
 * A chart of lines: of(area, store, theme) returns the options of drawCurves with `series`; `keys`
 * where not all lines that are known have one, and `told`, how values are said.
 */
function curves(of) {
  return { height: () => HEIGHT, draw(area, store, theme) {
    const { series, keys, told, ...how } = of(area, store, theme);
    const drawn = drawCurves(area, series, how);
    const text = drawn.known.map(({ name, points }) =>
      `${name} ${(told ?? how.format)(points.at(-1)[1])}`).join(", ");
    return { ...drawn, text,
      keys: keys ?? drawn.known.map(({ name, color, dash = [] }) => [name, color, dash]) };
  } };
}

const lossCurve = curves((area, store, theme) => {
  const shown = store.within(area.scope);
  const points = shown.map((all) => [all.iteration, all.loss]);
  const validated = shown.filter((all) => all.validation !== null)
    .map((all) => [all.iteration, all.validation]);
  const values = [...points, ...validated].map((point) => point[1])
    .filter((value) => value !== null);
  let [bottom, top] = [0, Math.max(0.1, ...values) * 1.05];
  if (area.scope.zoomed && values.length > 1) {
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const air = (high - low || high || 1) * 0.08;
    [bottom, top] = [low - air, high + air];
  }
  const series = [{ name: "loss", color: theme.line, points },
    { name: "validation loss", color: theme.accent, points: validated, dots: 2.8 }];
  return { series, bottom, top, format: short, smoothing: theme.smoothing,
    told: (value) => value.toFixed(3), ...(validated.length ? {} : { keys: [] }) };
});

const accuracyCurve = curves((area, store, theme) => {
  const { first, end } = area.scope;
  const tested = store.evaluations.filter(({ iteration }) =>
    iteration >= first && iteration <= end);
  const several = new Set(tested.map((one) => one.rank)).size > 1; // replicas test alike
  const nameOf = ({ task, rank }) => (several ? `${task}, rank ${rank}` : task);
  const tasks = [...new Set(tested.map(nameOf))];
  const series = tasks.flatMap((task, index) => {
    const mine = tested.filter((one) => nameOf(one) === task);
    const suffix = tasks.length > 1 ? `, ${task}` : "";
    const of = (name, key, color) => ({ name: `${name}${suffix}`, color, dots: 2.8,
      dash: DASHES[index % DASHES.length], points: mine.map((one) => [one.iteration, one[key]]) });
    const guess = mine[0].chance === null ? [] : [[first, mine[0].chance], [end, mine[0].chance]];
    return [of("whole answer", "exact", theme.accent), of("single digit", "digit", theme.line),
      { name: `chance${suffix}`, color: theme.muted, points: guess, dash: [4, 4] }];
  });
  return { series, top: 1.001, format: percent, waiting: "not tested yet",
    keys: [["whole answer", theme.accent, []], ["single digit", theme.line, []],
      ["chance", theme.muted, [4, 4]]] };
});

const speedCurve = curves((area, store, theme) => {
  const shown = store.within(area.scope);
  const series = store.modules.map(({ name, color }, index) => ({ name, color,
    dash: DASHES[index % DASHES.length],
    points: shown.map((all) => [all.iteration, all.rates[index]]) }));
  const top = reach(series.flatMap((one) => one.points.map((point) => point[1])), 1);
  return { series, top, format: short, smoothing: theme.smoothing };
});

const communicationCurve = curves((area, store, theme) => {
  const shown = store.within(area.scope).filter((all) => all.ranks);
  const mean = (name, sum, color, dash) => ({ name, color, dash, points: shown.map((all) =>
    [all.iteration, sum(all) === null ? null : sum(all) / all.ranks]) });
  const series = [{ name: "longest rank, waiting included", color: theme.accent,
    points: shown.map((all) => [all.iteration, all.waited]) },
  mean("mean without waiting", (all) => all.phases[store.communication], theme.line, DASHES[1]),
  mean("waiting", (all) => all.waiting, theme.mark, DASHES[2])];
  return { series, top: reach(shown.map((all) => all.waited), 1e-3), format: milliseconds };
});

const memoryCurve = curves((area, store, theme) => {
  const shown = store.within(area.scope).filter((all) => all.memory);
  const of = (key) => shown.map((all) => [all.iteration, all[key]]);
  const series = [{ name: "end of the step", color: theme.line, points: of("memory") },
    { name: "peak within it", color: theme.accent, dash: DASHES[1], points: of("peak") }];
  const top = Math.max(1e6, ...shown.map((all) => Math.max(all.memory, all.peak ?? 0))) * 1.1;
  return { series, top, format: memory };
});

const utilisationCurve = curves((area, store, theme) => {
  const points = store.within(area.scope).map((all) => [all.iteration, all.utilisation]);
  const top = reach(points.map((point) => point[1]), 1e-3);
  return { series: [{ name: "of the peak FLOP/s", color: theme.line, points }], top,
    format: percent, keys: [] };
});

export const CURVES = { loss: lossCurve, accuracy: accuracyCurve, speed: speedCurve,
  communication: communicationCurve, memory: memoryCurve, utilisation: utilisationCurve };
