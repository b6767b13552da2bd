// Who feeds whom, as a small picture.

import { setAttribute, setChildren, vector } from "mimokit/dom.js";

const HIGH = 24;
const GAP = { x: 46, y: 8 };

const wide = (name) => 18 + 7 * Math.min(name.length, 22);

/** Fill an SVG element with the modules in their layers; layers come from Python. */
export function drawGraph(host, layers, modules) {
  const known = new Map(modules.map((module) => [module.name, module]));
  const places = new Map();
  let x = 1;
  for (const layer of layers) {
    const width = Math.max(...layer.map(wide));
    layer.forEach((name, at) => {
      places.set(name, { x, y: 1 + at * (HIGH + GAP.y), width });
    });
    x += width + GAP.x;
  }
  const height = Math.max(1, ...layers.map((layer) => layer.length)) * (HIGH + GAP.y) - GAP.y + 2;
  setAttribute(host, "viewBox", `0 0 ${Math.max(1, x - GAP.x + 1)} ${height}`);
  setAttribute(host, "width", Math.max(1, x - GAP.x + 1));
  setAttribute(host, "height", height);
  const arrows = [...places].flatMap(([name, from]) => (known.get(name)?.feeds ?? [])
    .filter((target) => places.has(target))
    .map((target) => arrow(from, places.get(target))));
  const boxes = [...places].flatMap(([name, place]) => box(name, place, known.get(name)?.color));
  setChildren(host, ...arrows, ...boxes);
  const words = modules.filter(({ feeds }) => feeds.length)
    .map(({ name, feeds }) => `${name} feeds ${feeds.join(" and ")}`);
  setAttribute(host, "aria-label", `Graph of modules: ${words.join("; ") || "one module"}.`);
}

function box(name, { x, y, width }, color) {
  const shown = name.length > 22 ? `${name.slice(0, 21)}…` : name;
  return [
    vector("rect", { x, y, width, height: HIGH, rx: 5, class: "box", stroke: color ?? "#888" }),
    vector("text", { x: x + width / 2, y: y + HIGH / 2, class: "boxed" }, shown),
  ];
}

function arrow(from, to) {
  const [x1, y1] = [from.x + from.width, from.y + HIGH / 2];
  const [x2, y2] = [to.x - 2, to.y + HIGH / 2];
  const path = `M${x1},${y1} C${x1 + GAP.x / 2},${y1} ${x2 - GAP.x / 2},${y2} ${x2 - 4},${y2} ` +
    `m-4,-4 l7,4 l-7,4`;
  return vector("path", { d: path, class: "arrow" });
}
