// Step time as a heat map: a row per rank, columns of one or more iterations.

import { ramp } from "mimokit/theme.js";
import { BESIDE_ROWS } from "mimokit/area.js";
import { HEIGHT, NOTHING_YET } from "./curves.js";
import { milliseconds, quantile } from "mimokit/words.js";

function rowHeight(ranks) {
  return ranks > 16 ? Math.max(1, Math.floor(256 / ranks)) : 16;
}

export const stepHeat = {
  height: (store) => {
    const ranks = store.ranks.size;
    return Math.max(HEIGHT, ranks * rowHeight(ranks) + BESIDE_ROWS);
  },

  draw(area, store, theme) {
    const ranks = store.rankList();
    const shown = store.within(area.scope).filter((all) => all.ranks);
    area.iterationAxis();
    if (!shown.length) {
      area.say(NOTHING_YET);
      return { say: () => null, text: "", keys: [] };
    }
    const middle = quantile(shown.map((all) => all.seconds), 0.5) || 1;
    const height = area.h / ranks.length;
    const width = Math.max(1, Math.ceil(area.steps / Math.max(1, area.w / 3)));
    ranks.forEach((rank, index) => {
      const row = { y: area.y + index * height, height: height - (height > 6 ? 1 : 0) };
      drawRow(area, store.ranks.get(rank), width, row, middle, theme.heat);
    });
    area.rankLabels(ranks, height);
    const text = `median of the slowest rank ${milliseconds(middle)}`;
    const keys = [0.5, 1, 1.5].map((share, at) =>
      [`${["≤ ", "", "≥ "][at]}${milliseconds(middle * share)}`, theme.heat[2 * at]]);
    return { say: (x, y) => sayCell(area, store, ranks, height, width, x, y), text, keys };
  },
};

function drawRow(area, steps, width, row, middle, colors) {
  const { first, end } = area.scope;
  for (let column = first; column <= end; column += width) {
    const mean = meanOf(steps, column, Math.min(end, column + width - 1));
    if (mean === null) continue;
    const x = Math.round(area.left(column)); // on whole pixels there are no seams
    const right = Math.round(area.left(Math.min(column + width, area.scope.last + 1)));
    area.context.fillStyle = ramp(colors, mean / middle - 0.5);
    area.context.fillRect(x, row.y, Math.max(1, right - x), row.height);
  }
}

function sayCell(area, store, ranks, height, width, x, y) {
  const at = area.iterationAt(x);
  const rank = ranks[Math.floor((y - area.y) / height)];
  if (at === null || rank === undefined) return null;
  const first = area.scope.first + Math.floor((at - area.scope.first) / width) * width;
  const mean = meanOf(store.ranks.get(rank), first, first + width - 1);
  const where = width > 1 ? `iterations ${first} to ${first + width - 1}` : `iteration ${first}`;
  return mean === null ? null : `rank ${rank}, ${where}\n${milliseconds(mean)}`;
}

function meanOf(steps, first, last) {
  let [sum, found] = [0, 0];
  for (let iteration = first; iteration <= last; iteration++) {
    const seconds = steps.get(iteration)?.seconds ?? null;
    if (seconds === null) continue;
    sum += seconds;
    found += 1;
  }
  return found ? sum / found : null;
}
