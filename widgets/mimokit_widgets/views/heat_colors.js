// Colours of numbers: blue below 0, red above, and their own for what is not finite.

import { mix, pixelOf } from "mimokit/theme.js";

const BELOW = "#0b5a8a";
const ABOVE = "#b8336a";
export const NOT_A_NUMBER = "#f0a500";
export const INFINITE = "#2e9e5b";

/** A function from a number to a pixel; most: the magnitude of the strongest colour. */
export function heatPixels(most, dark) {
  const middle = dark ? "#22272e" : "#f4f6f8";
  const shades = 64;
  const table = (end) => Array.from({ length: shades + 1 }, (_, at) =>
    pixelOf(mix(middle, end, Math.sqrt(at / shades))));
  const [below, above] = [table(BELOW), table(ABOVE)];
  const [nan, infinite] = [pixelOf(NOT_A_NUMBER), pixelOf(INFINITE)];
  return (value) => {
    if (Number.isNaN(value)) return nan;
    if (!Number.isFinite(value)) return infinite;
    const shade = most ? Math.min(shades, Math.round((Math.abs(value) / most) * shades)) : 0;
    return value < 0 ? below[shade] : above[shade];
  };
}

/** The numbers of a buffer that came from Python. */
export function floatsOf(view) {
  const bytes = view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength);
  return new Float32Array(bytes);
}

export function largest(values) {
  let most = 0;
  for (const value of values) {
    const size = Math.abs(value);
    if (size > most && Number.isFinite(size)) most = size;
  }
  return most;
}

/** Draw numbers as pixels, one each, on a canvas that is scaled by its style. */
export function drawCells(canvas, values, lines, places, colorOf) {
  canvas.width = Math.max(places, 1);
  canvas.height = Math.max(lines, 1);
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  const pixels = new Uint32Array(image.data.buffer);
  for (let at = 0; at < values.length; at++) pixels[at] = colorOf(values[at]);
  context.putImageData(image, 0, 0);
}

/** Canvases of images, grey or in colours, from their least to their largest number. */
export function thumbnails(images, draw) {
  const values = floatsOf(images.values);
  const size = images.height * images.width * images.colors;
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  const level = (value) => Math.round((255 * (value - low)) / (high - low || 1));
  return Array.from({ length: images.count }, (_, number) => {
    const canvas = draw(number);
    canvas.width = images.width;
    canvas.height = images.height;
    const context = canvas.getContext("2d");
    const image = context.createImageData(images.width, images.height);
    for (let at = 0; at < images.height * images.width; at++) {
      for (let part = 0; part < 3; part++) {
        const place = number * size + at * images.colors + (images.colors === 3 ? part : 0);
        image.data[4 * at + part] = level(values[place]);
      }
      image.data[4 * at + 3] = 255;
    }
    context.putImageData(image, 0, 0);
    return canvas;
  });
}
