// Lines of many runs, written as pixels: a canvas takes its time over each line that it strokes.

import { pixelOf } from "./theme.js";

export class PixelLines {
  /** The lines of a plot; show() puts them on its canvas. */
  constructor(area) {
    this.area = area;
    this.ratio = window.devicePixelRatio || 1;
    this.width = Math.max(1, Math.round(area.w * this.ratio));
    this.height = Math.max(1, Math.round(area.h * this.ratio));
    this.image = new ImageData(this.width, this.height);
    this.pixels = new Uint32Array(this.image.data.buffer);
  }

  /** As PlotArea.trace; a line covers what was written before it. */
  trace(iterations, values, [bottom, top], color, dash, opacity = 1) {
    const { first, end } = this.area.scope;
    const pen = { pixel: pixelOf(color, opacity), on: (dash[0] ?? 0) * this.ratio,
      period: dash.length ? (dash[0] + dash[1]) * this.ratio : 0 };
    const across = this.width / this.area.steps;
    const scale = (this.height - 1) / (top - bottom || 1);
    let [open, lastX, lastY] = [false, 0, 0];
    for (let at = 0; at < values.length; at++) {
      const iteration = iterations[at];
      if (iteration < first) continue;
      if (iteration > end) break;
      const value = values[at];
      if (Number.isNaN(value)) {
        open = false;
        continue;
      }
      const x = (iteration + 0.5 - first) * across;
      const y = (top - Math.min(top, Math.max(bottom, value))) * scale;
      this.segment(open ? lastX : x, open ? lastY : y, x, y, pen);
      [open, lastX, lastY] = [true, x, y];
    }
  }

  /** Write every column of pixels from where a straight line enters it to where it leaves it. */
  segment(x0, y0, x1, y1, { pixel, on, period }) {
    const { pixels, width } = this;
    const slope = x1 > x0 ? (y1 - y0) / (x1 - x0) : 0;
    const lastColumn = Math.min(width - 1, Math.floor(x1));
    for (let column = Math.floor(x0); column <= lastColumn; column++) {
      if (period && column % period >= on) continue;
      const from = y0 + slope * (Math.max(x0, column) - x0);
      const to = column + 1 < x1 ? y0 + slope * (column + 1 - x0) : y1;
      const low = Math.round(Math.min(from, to));
      let at = low * width + column;
      for (let rows = Math.round(Math.max(from, to)) - low; rows >= 0; rows--) {
        pixels[at] = pixel;
        at += width;
      }
    }
  }

  show() {
    const canvas = document.createElement("canvas");
    canvas.width = this.width;
    canvas.height = this.height;
    canvas.getContext("2d").putImageData(this.image, 0, 0);
    const { context, x, y, w, h } = this.area;
    context.drawImage(canvas, x, y, w, h);
  }
}
