// Who talks to whom: a matrix, senders down, receivers across.

import { choices, element, setAttribute, setText } from "./dom.js";
import { Redraw } from "./redraw.js";
import { FONT, mix, prepared, themeOf } from "./theme.js";
import { Tip } from "./tip.js";

const HEAT_ON_LIGHT = ["#EDF4F9", "#A9CFE5", "#4A98C5", "#0B5A8A", "#052C49"];
const HEAT_ON_DARK = ["#12303F", "#1D5573", "#3B8DBD", "#8CC7E6", "#E6F4FB"];
const MARGIN = 44;
const MOST_DECADES = 5;
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
    this.canvas = element("canvas", { role: "img", class: "traffic",
      pointermove: (event) => this.hover(event), pointerleave: () => this.tip.hide() });
    this.kinds = element("div", { class: "kinds", role: "radiogroup",
      "aria-label": "Kind of traffic" });
    this.level = choices("Sum over", "level", [["rank", "ranks"], ["node", "nodes"]],
      (value) => this.ask(this.traffic.kind, value === "node"));
    this.note = element("p", { class: "muted" });
    this.scale = element("div", { class: "scale" });
    const area = element("div", { class: "area" }, this.canvas);
    const side = element("div", { class: "side" }, this.kinds, this.level.node, this.scale,
      this.note);
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
      const text = label.querySelector("span");
      const wanted = known ? `${known.name} ${known.total}` : "all kinds";
      if (text.textContent === wanted) return;
      text.replaceChildren(element("b", {}, known?.name ?? "all kinds"),
        known ? ` ${known.total}` : "");
      label.title = known?.explained ?? "everything together";
    });
    for (const input of this.kinds.querySelectorAll("input")) {
      input.checked = input.value === kind;
    }
    this.kinds.hidden = !kinds.length;
    const explained = kinds.find((each) => each.name === kind)?.explained;
    setText(this.note, this.traffic.note ?? `${explained ? `${explained}. ` : ""}Bytes per step; collectives are counted as ` +
      `rings. A row sends, a column receives.`);
  }

  color(bytes) {
    const heat = this.theme.dark ? HEAT_ON_DARK : HEAT_ON_LIGHT;
    const decades = Math.log10(this.traffic.largest / bytes);
    const share = Math.max(0, 1 - decades / MOST_DECADES);
    const place = Math.min(0.9999, share) * (heat.length - 1);
    return mix(heat[Math.floor(place)], heat[Math.floor(place) + 1], place % 1);
  }

  draw() {
    const room = this.canvas.parentElement.clientWidth;
    if (!this.traffic || !room) return;
    this.theme = themeOf(this.root);
    const { blocks, noun } = this.traffic;
    this.cell = Math.max(1.5, Math.min(34, (Math.min(room, 520) - MARGIN) / blocks));
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
    this.drawAxes(context, blocks, noun);
    this.drawScale();
    setAttribute(this.canvas, "aria-label", this.traffic.words);
  }

  drawAxes(context, blocks, noun) {
    context.fillStyle = this.theme.muted;
    context.font = `11px ${FONT}`;
    const every = [1, 2, 4, 8, 16, 32, 64].find((step) => step * this.cell >= 24) ?? 128;
    for (let at = 0; at < blocks; at += every) {
      context.textAlign = "center";
      context.textBaseline = "bottom";
      context.fillText(at, MARGIN + (at + 0.5) * this.cell, MARGIN - 4);
      context.textAlign = "right";
      context.textBaseline = "middle";
      context.fillText(at, MARGIN - 6, MARGIN + (at + 0.5) * this.cell);
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
    return this.scale.replaceChildren(bytesText(largest / 10 ** MOST_DECADES), bar,
      bytesText(largest));
  }

  hover(event) {
    const { blocks, noun } = this.traffic;
    const [column, row] = [event.offsetX, event.offsetY].map((at) =>
      Math.floor((at - MARGIN) / this.cell));
    if (column < 0 || row < 0 || column >= blocks || row >= blocks) return this.tip.hide();
    const bytes = this.matrix[row * blocks + column];
    return this.tip.show(event, `${noun} ${row} → ${noun} ${column}\n` +
      (bytes ? `${bytesText(bytes)} ${this.traffic.per ?? "a step"}` : "nothing"));
  }

  remove() {
    this.redraw.end();
  }
}
