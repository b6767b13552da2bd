// A canvas with a plot in it: axes, marks and what is below the pointer.

import { FONT, prepared } from "./theme.js";
import { ticks } from "./words.js";

const LEFT = 54;
const RIGHT = 8;
const TOP = 14;
const BOTTOM = 20;
export const BESIDE_ROWS = TOP + BOTTOM; // height of a canvas without its rows of ranks

/** Where iterations lie on a canvas. `scope` has first and last of the axis, end of the data. */
export class PlotArea {
  constructor(canvas, height, scope, theme) {
    const width = canvas.clientWidth || 400;
    this.context = prepared(canvas, width, height);
    this.context.font = `11px ${FONT}`;
    this.scope = scope;
    this.theme = theme;
    this.width = width;
    this.x = LEFT;
    this.y = TOP;
    this.w = width - LEFT - RIGHT;
    this.h = height - TOP - BOTTOM;
  }

  /** Pixels from the left where an iteration begins; its middle is half a step further. */
  left(iteration) {
    return this.x + ((iteration - this.scope.first) / this.steps) * this.w;
  }

  middle(iteration) {
    return this.left(iteration + 0.5);
  }

  get steps() {
    return this.scope.last - this.scope.first + 1;
  }

  /** The iteration at a position, null outside the plot. */
  iterationAt(x) {
    if (x < this.x || x > this.x + this.w) return null;
    const found = this.scope.first + Math.floor(((x - this.x) / this.w) * this.steps);
    return Math.min(this.scope.last, found);
  }

  height(value, bottom, top) {
    const share = (Math.min(top, Math.max(bottom, value)) - bottom) / (top - bottom || 1);
    return this.y + this.h - share * this.h;
  }

  /** A ground under the first iterations, which averages leave out. */
  warmup(count) {
    const from = Math.max(0, this.scope.first);
    const to = Math.min(count - 1, this.scope.last);
    if (from > to) return;
    const { context, theme } = this;
    const [x, width] = [this.left(from), this.left(to + 1) - this.left(from)];
    context.fillStyle = theme.ground;
    context.fillRect(x, this.y, width, this.h);
    if (width < context.measureText("warm-up").width) return;
    context.fillStyle = theme.muted;
    context.textAlign = "left";
    context.textBaseline = "alphabetic";
    context.fillText("warm-up", x, this.y - 3);
  }

  iterationAxis() {
    const { context } = this;
    context.fillStyle = this.theme.muted;
    context.textBaseline = "top";
    for (const tick of ticks(this.scope.first, this.scope.last, 6)) {
      if (tick % 1) continue;
      const x = this.middle(tick);
      const atEnd = x > this.x + this.w - 12;
      context.textAlign = x < this.x + 8 ? "left" : atEnd ? "right" : "center";
      const place = x < this.x + 8 ? this.x : atEnd ? this.x + this.w : x;
      context.fillText(tick, place, this.y + this.h + 6);
    }
    context.textAlign = "right";
    context.fillText("iteration", this.x - 7, this.y + this.h + 6);
  }

  amountAxis(bottom, top, format) {
    const { context, theme } = this;
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.lineWidth = 1;
    for (const tick of ticks(bottom, top, 4)) {
      const y = Math.round(this.height(tick, bottom, top)) + 0.5;
      context.strokeStyle = theme.grid;
      context.beginPath();
      context.moveTo(this.x, y);
      context.lineTo(this.x + this.w, y);
      context.stroke();
      context.fillStyle = theme.muted;
      context.fillText(format(tick), this.x - 7, y);
    }
  }

  rankLabels(ranks, height) {
    const { context } = this;
    context.fillStyle = this.theme.muted;
    context.textAlign = "right";
    context.textBaseline = "middle";
    const every = Math.ceil(12 / height);
    ranks.forEach((rank, index) => {
      if (index % every) return;
      context.fillText(`rank ${rank}`, this.x - 7, this.y + (index + 0.5) * height);
    });
  }

  say(text) {
    const { context } = this;
    context.fillStyle = this.theme.muted;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillText(text, this.x + this.w / 2, this.y + this.h / 2);
  }

  line(points, color, dash, width = 1.7) {
    const { context } = this;
    context.strokeStyle = color;
    context.lineWidth = width;
    context.lineJoin = "round";
    context.setLineDash(dash ?? []);
    context.beginPath();
    points.forEach(([x, y], at) => (at ? context.lineTo(x, y) : context.moveTo(x, y)));
    context.stroke();
    context.setLineDash([]);
  }

  /**
   * The line of values over ascending iterations: of each column of pixels its first, lowest,
   * highest and last value, which is all that a screen can show. Missing values leave a gap.
   */
  trace(iterations, values, [bottom, top], color, dash, opacity = 1) {
    const { context } = this;
    const { first, end } = this.scope;
    context.globalAlpha = opacity;
    context.strokeStyle = color;
    context.lineWidth = 1.6;
    context.lineJoin = "round";
    context.setLineDash(dash);
    context.beginPath();
    let [column, low, high, open, last] = [-1, 0, 0, true, null];
    const close = () => {
      if (last === null) return;
      context.lineTo(column + 0.5, low);
      context.lineTo(column + 0.5, high);
      context.lineTo(...last);
    };
    for (let at = 0; at < values.length; at++) {
      if (iterations[at] < first) continue;
      if (iterations[at] > end) break;
      if (Number.isNaN(values[at])) {
        close();
        [open, last, column] = [true, null, -1];
        continue;
      }
      const [x, y] = [this.middle(iterations[at]), this.height(values[at], bottom, top)];
      if (Math.floor(x) !== column) {
        if (high !== low) close();
        if (open) context.moveTo(x, y);
        else context.lineTo(x, y);
        [column, low, high, open, last] = [Math.floor(x), y, y, false, [x, y]];
      } else {
        [low, high, last] = [Math.min(low, y), Math.max(high, y), [x, y]];
      }
    }
    if (high !== low) close();
    context.stroke();
    context.setLineDash([]);
    context.globalAlpha = 1;
  }

  dots(iterations, values, [bottom, top], color, radius) {
    this.context.fillStyle = color;
    iterations.forEach((iteration, at) => {
      this.context.beginPath();
      this.context.arc(this.middle(iteration), this.height(values[at], bottom, top), radius, 0, 7);
      this.context.fill();
    });
  }

  /** A line before each step in which the run began again. */
  restarts(steps) {
    for (const step of steps) {
      if (step < this.scope.first || step > this.scope.last) continue;
      const x = Math.round(this.left(step)) + 0.5;
      this.line([[x, this.y], [x, this.y + this.h]], this.theme.ink, [1, 3]);
    }
  }

  /** Lines that all charts of a view have in common: the marked iterations. */
  marks(marks) {
    const { context, theme } = this;
    context.textBaseline = "alphabetic";
    context.textAlign = "center";
    for (const mark of marks) {
      if (mark < this.scope.first || mark > this.scope.last) continue;
      const x = Math.round(this.middle(mark)) + 0.5;
      this.line([[x, this.y], [x, this.y + this.h]], theme.mark, [3, 3]);
      context.fillStyle = theme.mark;
      context.fillText(mark, Math.min(x, this.x + this.w - 10), this.y - 3);
    }
  }
}
