// Where the time of a step goes: stacked over the run, and rank by rank.

import { BESIDE_ROWS } from "mimokit/area.js";
import { HEIGHT, NOTHING_YET } from "./curves.js";
import { milliseconds, reach, ticks } from "mimokit/words.js";

const MOST_RANKS = 64;
const RECENT_STEPS = 20;
const ROW = 20;

/** The mean rank's phases in every iteration, stacked. */
export const phasesOverTheRun = {
  height: () => HEIGHT,

  draw(area, store, theme) {
    const { planned } = theme;
    const shown = store.within(area.scope).filter((all) => all.ranks);
    const means = shown.map((all) => all.phases.map((sum) => sum / all.ranks));
    const longest = reach(means.map((parts) => parts.reduce((a, b) => a + b, 0)), 1e-3);
    const top = Math.max(longest, (planned?.high ?? 0) * 1.05);
    area.amountAxis(0, top, milliseconds);
    area.iterationAxis();
    if (!shown.length) area.say(NOTHING_YET);
    const floor = shown.map(() => 0);
    store.phases.forEach((phase, at) => drawLayer(area, shown, means, floor, at, phase.color, top));
    const keys = planned ? [drawPlanned(area, planned, top, theme)] : [];
    const say = (x) => sayStack(area.iterationAt(x), store, shown, means);
    return { say, text: "", keys, note: "colours as below" };
  },
};

/** The predicted step as a line, with its band; returns its key. */
function drawPlanned(area, { seconds, low, high, words }, top, theme) {
  const { context } = area;
  if (high > low) {
    context.globalAlpha = 0.18;
    context.fillStyle = theme.ink;
    const [upper, lower] = [area.height(high, 0, top), area.height(low, 0, top)];
    context.fillRect(area.x, upper, area.w, lower - upper);
    context.globalAlpha = 1;
  }
  const y = area.height(seconds, 0, top);
  area.line([[area.x, y], [area.x + area.w, y]], theme.ink, [5, 3]);
  return [`${words}: ${milliseconds(seconds)}`, theme.ink, [5, 3]];
}

/** Fill one phase above `floor`, and raise the floor by it. */
function drawLayer(area, shown, means, floor, at, color, top) {
  const { context } = area;
  context.fillStyle = color;
  shown.forEach((all, index) => {
    const from = area.height(floor[index], 0, top);
    floor[index] += means[index][at];
    const to = area.height(floor[index], 0, top);
    const x = Math.round(area.left(all.iteration)); // on whole pixels there are no seams
    const width = Math.max(1, Math.round(area.left(all.iteration + 1)) - x);
    context.fillRect(x, to, width, from - to);
  });
}

function sayStack(wanted, store, shown, means) {
  const at = shown.findIndex((all) => all.iteration === wanted);
  if (at < 0) return null;
  const parts = store.phases.map((phase, index) =>
    `${phase.name}  ${milliseconds(means[at][index])}`);
  return [`iteration ${wanted}, mean of all ranks`, ...parts.reverse()].join("\n");
}

/** A bar per rank: the mean of the steps that are shown, of the last ones while all are. */
export const phasesByRank = {
  height: (store) => Math.max(100, Math.min(MOST_RANKS, store.ranks.size) * ROW) + BESIDE_ROWS,

  draw(area, store, theme) {
    const shown = store.within(area.scope).filter((all) => all.ranks);
    if (!shown.length) {
      area.say(NOTHING_YET);
      return { say: () => null, text: "", keys: [] };
    }
    const used = area.scope.zoomed ? shown : shown.slice(-RECENT_STEPS);
    const bars = slowest(store, used);
    const longest = Math.max(...bars.map((bar) => bar.total));
    const height = area.h / bars.length;
    drawSecondsAxis(area, theme, longest);
    bars.forEach((bar, row) => drawBar(area, store, bar, row, height, longest));
    area.rankLabels(bars.map((bar) => bar.rank), height);
    const slow = bars.reduce((worst, bar) => (bar.total > worst.total ? bar : worst));
    const text = `rank ${slow.rank} is the slowest with ${milliseconds(slow.total)}`;
    return { say: (x, y) => sayBar(area, store, bars, height, longest, x, y), text,
      keys: store.phases.filter((_, at) => bars.some(({ parts }) => parts[at] > 0))
        .map((phase) => [phase.name, phase.color]),
      note: `mean of ${used.length} steps` };
  },
};

function slowest(store, used) {
  const bars = store.rankList().map((rank) => {
    const parts = store.phaseMeans(rank, used);
    return { rank, parts, total: parts.reduce((a, b) => a + b, 0) };
  });
  if (bars.length <= MOST_RANKS) return bars;
  return bars.sort((a, b) => b.total - a.total).slice(0, MOST_RANKS)
    .sort((a, b) => a.rank - b.rank);
}

function drawSecondsAxis(area, theme, longest) {
  const { context } = area;
  context.textBaseline = "top";
  for (const tick of ticks(0, longest, 8)) {
    const x = Math.round(area.x + (tick / longest) * area.w) + 0.5;
    context.fillStyle = theme.grid;
    context.fillRect(x, area.y, 1, area.h);
    context.fillStyle = theme.muted;
    context.textAlign = tick === 0 ? "left" : x > area.x + area.w - 20 ? "right" : "center";
    context.fillText(milliseconds(tick), x, area.y + area.h + 6);
  }
}

function drawBar(area, store, bar, row, height, longest) {
  let x = area.x;
  bar.parts.forEach((seconds, at) => {
    const width = (seconds / longest) * area.w;
    area.context.fillStyle = store.phases[at].color;
    area.context.fillRect(x, area.y + row * height + 1.5, width, height - 3);
    x += width;
  });
}

function sayBar(area, store, bars, height, longest, x, y) {
  const bar = bars[Math.floor((y - area.y) / height)];
  if (!bar || x < area.x) return null;
  let left = ((x - area.x) / area.w) * longest;
  const at = bar.parts.findIndex((seconds) => (left -= seconds) < 0);
  if (at < 0) return null;
  return `rank ${bar.rank}\n${store.phases[at].name}  ${milliseconds(bar.parts[at])}`;
}
