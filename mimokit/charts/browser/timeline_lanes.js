// The lanes of a timeline as a canvas.

import { FONT, inkOn, luminance, prepared, themeOf } from "./theme.js";
import { ticks } from "./words.js";

const LANE = 20;
const [LANES_LEFT, LANES_RIGHT, LANES_TOP, TITLE_LINE] = [190, 10, 18, 18];
const [NARROWEST_WITH_NUMBER, AROUND_A_NUMBER] = [7, 2];
const NUMBER_SIZES = [11, 9];
const PALE = 0.25;
/** Spans below this luminance are outlined on a dark page, where they have less than 3 : 1. */
const DARK_ON_DARK = 0.13;

/** Where the time axis lies on a canvas. */
export function placesOf(canvas) {
  const width = canvas.clientWidth || 800;
  const left = Math.min(LANES_LEFT, width * 0.3);
  return { left, width: width - left - LANES_RIGHT };
}

/** Tops of lanes; a group that begins has a line for its title. */
function tops(lanes) {
  let y = LANES_TOP;
  return lanes.map(({ group }, at) => {
    if (group && group !== lanes[at - 1]?.group) y += TITLE_LINE;
    y += LANE;
    return y - LANE;
  });
}

export function laneAt(lanes, y) {
  return tops(lanes).findIndex((top) => y >= top && y < top + LANE);
}

/** Draw what is seen of a timeline: {data, from, to, chosen}. */
export function drawLanes(canvas, { data, from, to, chosen }) {
  const { left, width } = placesOf(canvas);
  const high = tops(data.lanes);
  const height = (high.at(-1) ?? LANES_TOP) + LANE + 4;
  const theme = themeOf(canvas);
  const context = prepared(canvas, left + width + LANES_RIGHT, height);
  const scale = width / (to - from);
  context.font = `11px ${FONT}`;
  context.textBaseline = "middle";
  axis(context, { left, width, height, from, to, theme, seconds: data.unit === "s" });
  names(context, data.lanes, high, left, left + width, theme);
  context.save();
  context.beginPath();
  context.rect(left, 0, width, height);
  context.clip();
  const ends = data.lanes.map(() => -1);
  const lit = data.lit && new Set(data.lit); // of spans that others are pale next to
  const outlined = data.keys.map(({ color }) => luminance(color) < DARK_ON_DARK);
  data.spans.forEach(([lane, key, start, stop, words], number) => {
    if (stop < from || start > to) return;
    const x = left + (start - from) * scale;
    const end = left + (stop - from) * scale;
    if (end < ends[lane] + 0.4 && number !== chosen) return; // hidden by the one before
    ends[lane] = end;
    context.fillStyle = data.keys[key].color;
    const pale = lit && !lit.has(number);
    context.globalAlpha = pale ? PALE : 1;
    const wide = Math.max(end - x - (end - x > 3 ? 0.7 : 0), 0.7);
    context.fillRect(x, high[lane] + 1, wide, LANE - 3);
    if (theme.dark && outlined[key] && wide > 3) {
      context.strokeStyle = theme.muted;
      context.lineWidth = 1;
      context.strokeRect(x + 0.5, high[lane] + 1.5, wide - 1, LANE - 4);
    }
    context.globalAlpha = 1;
    if (wide >= NARROWEST_WITH_NUMBER && !pale) microbatchNumber(context, data, key, words, x, wide, high[lane]);
    if (number === chosen) {
      context.strokeStyle = theme.ink;
      context.lineWidth = 2;
      context.strokeRect(x, high[lane] + 1, wide, LANE - 3);
    }
  });
  context.restore();
}

/** The number of a micro-batch, where there is room for it. */
function microbatchNumber(context, data, key, words, x, wide, y) {
  const [, text] = data.words[words].match(/micro-batch (\d+)/) ?? [];
  if (text === undefined) return;
  const font = NUMBER_SIZES.map((size) => `${size}px ${FONT}`).find((each) => {
    context.font = each;
    return context.measureText(text).width + AROUND_A_NUMBER <= wide;
  });
  if (!font) return;
  context.fillStyle = inkOn(data.keys[key].color);
  context.textAlign = "center";
  context.fillText(text, x + wide / 2, y + LANE / 2);
}

function names(context, lanes, high, left, width, theme) {
  context.textAlign = "right";
  lanes.forEach(({ name, group }, at) => {
    if (group && group !== lanes[at - 1]?.group) {
      context.fillStyle = theme.ink;
      context.textAlign = "left";
      context.fillText(group, 2, high[at] - TITLE_LINE / 2, width);
      context.textAlign = "right";
    }
    context.fillStyle = theme.muted;
    context.fillText(name, left - 7, high[at] + LANE / 2, left - 9);
  });
}

function axis(context, { left, width, height, from, to, theme, seconds }) {
  context.fillStyle = theme.muted;
  context.textAlign = "right";
  context.fillText(seconds ? "time in ms" : "time in units", left - 7, 7);
  context.textAlign = "center";
  context.lineWidth = 1;
  for (const tick of ticks(from, to, Math.max(2, width / 110))) {
    const x = Math.round(left + ((tick - from) / (to - from)) * width) + 0.5;
    context.strokeStyle = theme.line;
    context.beginPath();
    context.moveTo(x, LANES_TOP - 4);
    context.lineTo(x, height);
    context.stroke();
    context.fillStyle = theme.muted;
    const value = Number((seconds ? tick * 1000 : tick).toPrecision(6));
    if (x < left + width - 12) context.fillText(value, x, 7);
  }
}
