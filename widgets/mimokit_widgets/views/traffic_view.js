// Who talks to whom: a matrix, senders down, receivers across.

import { choices, element, freshId, setAttribute, setChildren, setText } from "mimokit/dom.js";
import { Redraw } from "mimokit/redraw.js";
import { FONT, inkOn, prepared, ramp, themeOf } from "mimokit/theme.js";
import { Tip } from "mimokit/tip.js";

const HEAT_ON_LIGHT = ["#C5DEEE", "#A9CFE5", "#4A98C5", "#0B5A8A", "#052C49"];
const HEAT_ON_DARK = ["#17435A", "#1D5573", "#3B8DBD", "#8CC7E6", "#E6F4FB"];
const MARGIN = 44;
const MOST_DECADES = 5;
const LARGEST_CELL = 60;
const LEAST_WITH_VALUE = 46; // pixels of a cell in which its bytes can be read
const WAYS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

function bytesText(bytes) {
  let [value, unit] = [bytes, 0];
  while (value >= 1000 && unit < UNITS.length - 1) [value, unit] = [value / 1000, unit + 1];
  return `${Number(value.toPrecision(3))} ${UNITS[unit]}`;
}

export class TrafficView {
  /** ask(kind, byNode) is called with what to show. */
  constructor(host, ask) {
    this.ask = ask;
    const said = freshId("cell");
    this.canvas = element("canvas", { role: "img", class: "traffic", tabindex: 0,
      "aria-describedby": said, pointermove: (event) => this.hover(event),
      pointerleave: () => this.tip.hide(), keydown: (event) => this.key(event) });
    this.said = element("p", { class: "muted", id: said, "aria-live": "polite" });
    this.kinds = element("div", { class: "kinds", role: "radiogroup",
      "aria-label": "Kind of traffic" });
    this.level = choices("Sum over", "level", [["rank", "ranks"], ["node", "nodes"]],
      (value) => this.ask(this.traffic.kind, value === "node"));
    this.note = element("p", { class: "muted" });
    this.scale = element("div", { class: "scale" });
    const area = element("div", { class: "area" }, this.canvas, this.said);
    const side = element("div", { class: "side" }, this.kinds, this.level.node, this.scale,
      this.note);
    this.area = area;
    this.root = element("div", { class: "traffic-map" }, area, side);
    host.append(this.root);
    this.tip = new Tip(area);
    this.redraw = new Redraw(area, () => this.draw());
  }

  /** The matrix is a DataView of 32-bit floats, row by row. */
  update(traffic, matrix) {
    this.traffic = traffic;
    this.matrix = new Float32Array(traffic.blocks ** 2);
    for (let at = 0; at < this.matrix.length; at++) {
      this.matrix[at] = matrix.getFloat32(4 * at, true);
    }
    const sent = this.matrix.filter((bytes) => bytes > 0);
    this.least = Math.max(traffic.largest / 10 ** MOST_DECADES,
      sent.reduce((least, bytes) => Math.min(least, bytes), traffic.largest));
    this.at = null;
    setText(this.said, "");
    this.area.hidden = !traffic.largest;
    this.drawKinds();
    this.level.set(traffic.by_node ? "node" : "rank");
    this.level.node.hidden = !traffic.can_choose;
    this.redraw.soon();
  }

  drawKinds() {
    const { kinds, kind } = this.traffic;
    const names = ["all", ...kinds.map((each) => each.name)];
    if (this.names?.join() !== names.join()) {
      this.names = names;
      this.chooser = choices("Kind of traffic", "kind", names.map((name) => [name, ""]),
        (value) => this.ask(value, this.traffic.by_node));
      this.kinds.replaceChildren(...this.chooser.node.children);
    }
    this.chooser.set(kind);
    [...this.kinds.children].forEach((label, at) => {
      const known = kinds[at - 1];
      setChildren(label.querySelector("span"), element("b", {}, known?.name ?? "all kinds"),
        new Text(known ? ` ${known.total}` : ""));
      label.title = known?.explained ?? "everything together";
    });
    this.kinds.hidden = !kinds.length;
    const explained = kinds.find((each) => each.name === kind)?.explained;
    setText(this.note, this.traffic.note ?? `${explained ? `${explained}. ` : ""}Bytes per step; collectives are counted as ` +
      `rings. A row sends, a column receives.`);
  }

  color(bytes) {
    const heat = this.theme.dark ? HEAT_ON_DARK : HEAT_ON_LIGHT;
    const decades = Math.log10(this.traffic.largest / this.least);
    const below = Math.log10(this.traffic.largest / bytes);
    return ramp(heat, decades ? 1 - below / decades : 1);
  }

  draw() {
    const room = this.canvas.parentElement.clientWidth;
    if (!this.traffic) return;
    this.theme = themeOf(this.root);
    this.drawScale();
    if (!room) return;
    const { blocks, noun } = this.traffic;
    this.cell = Math.max(1.5, Math.min(LARGEST_CELL, (Math.min(room, 620) - MARGIN) / blocks));
    const size = Math.ceil(MARGIN + blocks * this.cell);
    const context = prepared(this.canvas, room, size);
    context.fillStyle = this.theme.empty;
    context.fillRect(MARGIN, MARGIN, blocks * this.cell, blocks * this.cell);
    const space = this.cell > 6 ? 1 : 0;
    for (let at = 0; at < this.matrix.length; at++) {
      if (!this.matrix[at]) continue;
      context.fillStyle = this.color(this.matrix[at]);
      const [row, column] = [Math.floor(at / blocks), at % blocks];
      context.fillRect(MARGIN + column * this.cell, MARGIN + row * this.cell,
        this.cell - space, this.cell - space);
    }
    if (this.cell >= LEAST_WITH_VALUE) this.drawValues(context);
    this.drawAxes(context, blocks, noun);
    this.drawChosen(context);
    setAttribute(this.canvas, "aria-label", this.traffic.words);
  }

  drawValues(context) {
    context.font = `10.5px ${FONT}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    const { blocks } = this.traffic;
    this.matrix.forEach((bytes, at) => {
      if (!bytes) return;
      context.fillStyle = inkOn(this.color(bytes));
      context.fillText(bytesText(bytes), MARGIN + (at % blocks + 0.5) * this.cell,
        MARGIN + (Math.floor(at / blocks) + 0.5) * this.cell);
    });
  }

  drawChosen(context) {
    if (!this.at) return;
    context.strokeStyle = this.theme.ink;
    context.lineWidth = 2;
    const [row, column] = this.at;
    context.strokeRect(MARGIN + column * this.cell, MARGIN + row * this.cell, this.cell, this.cell);
  }

  name(at) {
    return this.traffic.labels?.[at] ?? String(at);
  }

  drawAxes(context, blocks, noun) {
    context.fillStyle = this.theme.muted;
    context.font = `11px ${FONT}`;
    const wide = Math.max(18, context.measureText(this.name(blocks - 1)).width + 6);
    const every = [1, 2, 4, 8, 16, 32, 64].find((step) => step * this.cell >= wide) ?? 128;
    for (let at = 0; at < blocks; at += every) {
      context.textAlign = "center";
      context.textBaseline = "bottom";
      context.fillText(this.name(at), MARGIN + (at + 0.5) * this.cell, MARGIN - 4);
      context.textAlign = "right";
      context.textBaseline = "middle";
      context.fillText(this.name(at), MARGIN - 6, MARGIN + (at + 0.5) * this.cell);
    }
    context.textAlign = "left";
    context.textBaseline = "top";
    context.font = `600 11px ${FONT}`;
    context.fillText(`to ${noun}`, MARGIN, 6);
    context.save();
    context.translate(4, MARGIN + blocks * this.cell);
    context.rotate(-Math.PI / 2);
    context.fillText(`from ${noun}`, Math.max(0, blocks * this.cell - 70), 0);
    context.restore();
  }

  drawScale() {
    const { largest } = this.traffic;
    if (!largest) return this.scale.replaceChildren(element("span", {}, "no rank sends anything"));
    const heat = this.theme.dark ? HEAT_ON_DARK : HEAT_ON_LIGHT;
    const bar = element("i", {});
    bar.style.background = `linear-gradient(90deg, ${heat.join(",")})`;
    const cut = this.matrix.some((bytes) => bytes && bytes < this.least);
    return this.scale.replaceChildren(...(this.least < largest
      ? [`${cut ? "≤ " : ""}${bytesText(this.least)}`, bar, `${bytesText(largest)}, logarithmic`]
      : [`all ${bytesText(largest)}`]));
  }

  hover(event) {
    const { blocks } = this.traffic;
    const [column, row] = [event.offsetX, event.offsetY].map((at) =>
      Math.floor((at - MARGIN) / this.cell));
    if (column < 0 || row < 0 || column >= blocks || row >= blocks) return this.tip.hide();
    return this.tip.show(event, this.say(row, column).replace(": ", "\n"));
  }

  say(row, column) {
    const { blocks, noun, per } = this.traffic;
    const bytes = this.matrix[row * blocks + column];
    return `${noun} ${this.name(row)} → ${noun} ${this.name(column)}: `
      + (bytes ? `${bytesText(bytes)} ${per ?? "a step"}` : "nothing");
  }

  key(event) {
    const by = WAYS[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    const most = this.traffic.blocks - 1;
    this.at = (this.at ?? [0, 0]).map((at, way) =>
      Math.min(most, Math.max(0, this.at ? at + by[way] : 0)));
    setText(this.said, this.say(...this.at));
    this.redraw.soon();
  }

  remove() {
    this.redraw.end();
  }
}
