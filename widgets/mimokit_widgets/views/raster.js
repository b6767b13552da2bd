// Many rectangles at once: written as pixels, since a canvas takes its time over each.

/** An empty raster as large as a canvas; the one before is used again where it fits. */
export function rasterFor(context, zoom, before) {
  const { width, height } = context.canvas;
  const fits = before?.image.width === width && before.image.height === height;
  return new Raster(context, zoom, fits ? before.image : context.createImageData(width, height));
}

class Raster {
  /** zoom: {scale, x, y} from the coordinates of rectangles to those of the canvas. */
  constructor(context, zoom, image) {
    this.context = context;
    this.image = image;
    this.pixels = new Uint32Array(image.data.buffer).fill(0);
    const ratio = window.devicePixelRatio || 1;
    this.scale = zoom.scale * ratio;
    this.x = zoom.x * ratio;
    this.y = zoom.y * ratio;
  }

  fill(left, top, width, height, pixel) {
    const { pixels, scale } = this;
    const across = this.image.width;
    const x0 = Math.max(0, Math.round(left * scale + this.x));
    const x1 = Math.min(across, Math.max(x0 + 1, Math.round((left + width) * scale + this.x)));
    const y0 = Math.max(0, Math.round(top * scale + this.y));
    const y1 = Math.min(this.image.height, Math.max(y0 + 1,
      Math.round((top + height) * scale + this.y)));
    for (let y = y0; y < y1; y++) {
      for (let at = y * across + x0, end = y * across + x1; at < end; at++) pixels[at] = pixel;
    }
  }

  /** Put everything on the canvas; what was there is gone. */
  show() {
    this.context.putImageData(this.image, 0, 0);
  }
}
