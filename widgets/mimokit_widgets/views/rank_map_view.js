// The rank map: every rank a cell in its node, coloured by module.

import { button, dotOf, element, freshId, setAttribute, setChildren, setText } from "mimokit/dom.js";
import { arrange, rankAt } from "./rank_layout.js";
import { rasterFor } from "./raster.js";
import { Redraw } from "mimokit/redraw.js";
import { FONT, inkOn, mix, pixelOf, prepared, shades, themeOf } from "mimokit/theme.js";
import { Tip } from "mimokit/tip.js";

const MOST_ZOOM = 40;
const FADED = 0.22;
const NUMBER_SIZE = 12;
const LEAST_NUMBER_SIZE = 8;
const WORD_SIZES = [10.5, 9.5, 9];
const LEAST_LABEL = 10; // pixels above a node that its name needs
const BESIDE_NUMBER = 11; // pixels of a cell that its number leaves free: frames are drawn there

export class RankMapView {
  /** select(rank or null) is called with the clicked rank; without it the map is read-only. */
  constructor(host, select) {
    this.select = select;
    this.zoom = { scale: 1, x: 0, y: 0 };
    this.only = null; // of the selected rank's groups the one that is lit, null for all
    this.sought = null; // Uint8Array: ranks that a search has found
    this.awaited = null; // the rank that was typed before the map had it
    this.build(host);
    this.redraw = new Redraw(this.canvas.parentElement, () => this.draw());
  }

  build(host) {
    const live = freshId("rank");
    this.canvas = element("canvas", { role: "img", tabindex: this.select ? 0 : null,
      "aria-describedby": live, class: "ranks" });
    this.legend = element("div", { class: "legend" });
    this.found = element("span", { class: "muted", role: "status" });
    this.search = element("input", { type: "search", placeholder: "rank 5, tp1 dp0",
      "aria-label": "Find ranks", input: () => this.find() });
    const tools = element("div", { class: "tools" }, this.search, this.found,
      button("−", () => this.zoomBy(1 / 1.6), { "aria-label": "Zoom out" }),
      button("+", () => this.zoomBy(1.6), { "aria-label": "Zoom in" }),
      button("⤢", () => this.zoomTo(1, 0, 0), { "aria-label": "Show all ranks" }));
    this.details = element("div", { class: "details", id: live, "aria-live": "polite" });
    const area = element("div", { class: "area" }, this.canvas);
    this.root = element("div", { class: "rank-map" },
      element("div", { class: "bar" }, this.legend, this.select ? tools : null), area,
      this.select ? this.details : null);
    host.append(this.root);
    this.tip = new Tip(area);
    this.listen();
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("pointermove", (event) => this.hover(event));
    canvas.addEventListener("pointerleave", () => this.tip.hide());
    if (!this.select) return;
    canvas.addEventListener("pointerdown", (event) => {
      this.drag = { x: event.clientX, y: event.clientY, from: { ...this.zoom }, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointerup", (event) => {
      const moved = this.drag?.moved;
      this.drag = null;
      if (moved) return;
      const rank = this.rankUnder(event);
      this.select(rank < 0 ? null : rank);
    });
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
      event.preventDefault();
      this.zoomBy(event.deltaY < 0 ? 1.25 : 0.8, event.offsetX, event.offsetY);
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  /** Take a new map; the cells are a DataView of 16-bit numbers. */
  update(ranks, cells) {
    this.ranks = ranks;
    let at = 0;
    this.coordinates = ranks.modules.map((module) =>
      ranks.dimensions.map(() => {
        const numbers = new Uint16Array(module.count);
        for (let index = 0; index < module.count; index++, at += 2) {
          numbers[index] = cells.getUint16(at, true);
        }
        return numbers;
      }));
    this.arranged = null;
    if (this.awaited !== null && this.awaited < ranks.shown) this.find();
    else this.seek();
    this.drawLegend(); // with all else that is laid out, before the frame
    this.redraw.soon();
  }

  /** Where the cells are; null while there is no map, or no width to draw it in. */
  get layout() {
    // A map may be typed into and zoomed between its update and the frame that draws it.
    if (!this.arranged) this.arrange();
    return this.arranged;
  }

  arrange() {
    const width = this.canvas.parentElement.clientWidth;
    if (!this.ranks || !width || this.arranged?.given === width) return;
    this.arranged = arrange(this.ranks.shown, this.ranks.per_node, width);
    this.arranged.given = width;
  }

  showDetails(details) {
    const rank = details?.rank ?? null;
    if (rank !== this.selected) this.only = this.awaited = null;
    this.selected = rank;
    this.groups = (details?.modules ?? []).flatMap((module) =>
      module.groups.map((group) => ({ ...group, module: module.name })));
    setChildren(this.details, ...(rank === null ? [this.hint()] : this.describe(details)));
    this.redraw.soon();
  }

  hint() {
    return element("p", { class: "muted" },
      "Click a rank, or walk there with the arrow keys, to see what it holds and whom it talks to.");
  }

  describe(details) {
    const title = element("h4", {}, `Rank ${details.rank}`,
      element("span", { class: "muted" }, ` on node ${details.node}`),
      button("×", () => this.select(null), { "aria-label": "Look at no rank", class: "plain" }));
    const blocks = details.modules.map((module) => {
      const groups = module.groups.map((group) => this.groupButton(module, group));
      return element("div", { class: "held" }, dotOf(module.color),
        element("b", {}, module.name), element("code", {}, module.place),
        element("span", {}, [module.work, module.shard && `${module.shard}.`].filter(Boolean)
          .join(" ")),
        element("div", { class: "groups" }, ...groups));
    });
    if (!blocks.length) blocks.push(element("p", {}, "No module is on this rank: it idles."));
    const peers = details.peers.map((peer) => element("li", {}, peer));
    return [title, ...blocks, peers.length ? element("ul", {}, ...peers) : null].filter(Boolean);
  }

  groupButton(module, group) {
    const key = `${module.name} ${group.dimension}`;
    const made = button("", () => {
      this.only = this.only === key ? null : key;
      for (const each of this.details.querySelectorAll("[data-group]")) {
        setAttribute(each, "aria-pressed", String(each.dataset.group === this.only));
      }
      this.redraw.soon();
    }, { class: "chip", "data-group": key, "aria-pressed": "false",
      title: "Light up this group only" });
    made.append(element("b", {}, group.label), ` ${group.text}`);
    return made;
  }

  // ------------------------------------------------------------ drawing

  draw() {
    const width = this.canvas.parentElement.clientWidth;
    this.arrange();
    if (!this.ranks || !width) return;
    this.theme = themeOf(this.root);
    const context = prepared(this.canvas, width, this.layout.height);
    const lit = this.litRanks();
    this.drawCells(context, lit);
    this.drawNodeNames(context);
    this.drawText(context, lit);
    this.drawSelected(context);
    this.drawLegend();
    setAttribute(this.canvas, "aria-label", this.ranks.words);
    this.canvas.dataset.drawn = Number(this.canvas.dataset.drawn ?? 0) + 1;
  }

  /** What share of its cell a module has, and from where: [from, share]. */
  stripe(rank, index) {
    const { modules } = this.ranks;
    const here = modules.filter(({ start, count }) => rank >= start && rank < start + count);
    return [here.indexOf(modules[index]) / here.length, 1 / here.length];
  }

  /** What is left free between cells, in units of the layout: as wide however large the zoom. */
  get gap() {
    const wide = this.layout.cellWidth * this.zoom.scale;
    return (wide > 14 ? 2 : wide > 8 ? 1 : 0) / this.zoom.scale;
  }

  drawCells(context, lit) {
    this.raster = rasterFor(context, this.zoom, this.raster);
    const { raster, layout, theme } = this;
    const inset = layout.gap > 6 ? 2 : 0;
    const paper = pixelOf(theme.empty);
    for (let node = 0; node < layout.nodes; node++) {
      const rank = node * layout.perNode;
      raster.fill(layout.xs[rank] - inset, layout.ys[rank] - inset, layout.box.width + 2 * inset,
        layout.box.height + 2 * inset, paper);
    }
    this.ranks.modules.forEach((_, index) => this.drawModule(raster, index, lit));
    raster.show();
  }

  drawModule(raster, index, lit) {
    const module = this.ranks.modules[index];
    const { xs, ys, cellWidth, cellHeight } = this.layout;
    const replicas = this.coordinates[index][this.ranks.dimensions.indexOf("dp")];
    const space = this.gap;
    const full = shades(module.color, this.theme);
    const [bright, faded] = [full, full.map((color) => mix(this.theme.empty, color, FADED))]
      .map((colors) => colors.map((color) => pixelOf(color)));
    for (const [first, last] of this.edges(module)) {
      const [from, share] = this.stripe(first, index);
      const top = from * cellHeight;
      const height = share * cellHeight - (from + share > 0.999 ? space : space / 4);
      for (let rank = first; rank < last; rank++) {
        const colors = lit && !lit[rank] ? faded : bright;
        raster.fill(xs[rank], ys[rank] + top, cellWidth - space, height,
          colors[replicas[rank - module.start] % 2]);
      }
    }
  }

  /** Above each node its name and its ranks, as much of them as has room above all nodes. */
  drawNodeNames(context) {
    const { layout, theme, zoom } = this;
    const room = Math.max(layout.label, layout.gap) * zoom.scale;
    if (room < LEAST_LABEL) return;
    context.fillStyle = theme.muted;
    context.font = `${room < 16 ? 9.5 : 11}px ${FONT}`;
    context.textBaseline = "bottom";
    context.textAlign = "left";
    const forms = [(node, span) => `node ${node} · ${span}`, (node) => `node ${node}`,
      (_, span) => span, (_, span) => span.split("–")[0]];
    const wide = (layout.box.width + layout.gap) * zoom.scale - 4;
    const text = forms.find((form) =>
      context.measureText(form(layout.nodes - 1, this.spanOf(layout.nodes - 1))).width <= wide);
    if (!text) return;
    for (let node = 0; node < layout.nodes; node++) {
      const rank = node * layout.perNode;
      context.fillText(text(node, this.spanOf(node)), layout.xs[rank] * zoom.scale + zoom.x,
        layout.ys[rank] * zoom.scale + zoom.y - (room < 16 ? 2 : 4));
    }
  }

  spanOf(node) {
    const first = node * this.layout.perNode;
    const last = Math.min(this.ranks.shown, first + this.layout.perNode) - 1;
    return last > first ? `${first}–${last}` : String(first);
  }

  /** The spans of a module's ranks over which the same modules share a cell. */
  edges(module) {
    const stop = module.start + module.count;
    const cuts = this.ranks.modules.flatMap(({ start, count }) => [start, start + count])
      .filter((cut) => cut >= module.start && cut <= stop);
    const sorted = [...new Set(cuts)].sort((a, b) => a - b);
    return sorted.slice(1).map((cut, at) => [sorted[at], cut]);
  }

  drawText(context, lit) {
    const { scale, x, y } = this.zoom;
    const { xs, ys, cellWidth, cellHeight } = this.layout;
    const [wide, high] = [(cellWidth - this.gap) * scale, (cellHeight - this.gap) * scale];
    if (wide < 26 || high < 13) return;
    this.numberSize = this.sizeOfNumbers(context, wide - BESIDE_NUMBER);
    if (this.numberSize < LEAST_NUMBER_SIZE) return;
    const [right, bottom] = [this.layout.given, this.layout.height];
    for (let rank = 0; rank < this.ranks.shown; rank++) {
      const [left, top] = [xs[rank] * scale + x, ys[rank] * scale + y];
      if (left > right || top > bottom || left + wide < 0 || top + high < 0) continue;
      this.drawCellText(context, rank, left, top, wide, high, Boolean(lit && !lit[rank]));
    }
  }

  /** The size at which the longest number fits, so that all are alike. */
  sizeOfNumbers(context, room) {
    context.font = `600 ${NUMBER_SIZE}px ${FONT}`;
    this.numberWidth = context.measureText("0".repeat(String(this.ranks.shown - 1).length)).width;
    return Math.min(NUMBER_SIZE, (NUMBER_SIZE * room) / this.numberWidth);
  }

  drawCellText(context, rank, left, top, wide, high, faded) {
    let numbered = false;
    this.ranks.modules.forEach((module, index) => {
      if (rank < module.start || rank >= module.start + module.count) return;
      const [from, share] = this.stripe(rank, index);
      const place = this.coordinates[index];
      const replica = place[this.ranks.dimensions.indexOf("dp")][rank - module.start];
      context.fillStyle = faded ? this.theme.muted
        : inkOn(shades(module.color, this.theme)[replica % 2]);
      context.textBaseline = "middle";
      const height = high * share;
      const middle = top + high * from + height / 2 - (share === 1 ? 1 : 0);
      const two = height >= 34 && share === 1;
      const beside = !two;
      const room = wide - 12 - (beside && !numbered ? 10 + this.numberWidth : 0);
      const words = this.wordSize(context, index, room) && this.place(index, rank);
      context.textAlign = "left";
      if (!numbered) {
        context.font = `600 ${this.numberSize}px ${FONT}`;
        context.fillText(rank, left + 6, two && words ? middle - 8 : middle);
        numbered = true;
      }
      if (!words || height < 12) return;
      context.font = `${this.wordSize(context, index, room)}px ${FONT}`;
      context.textAlign = beside ? "right" : "left";
      context.fillText(words, beside ? left + wide - 8 : left + 6, two ? middle + 8 : middle);
    });
    if (!numbered && wide > 26) {
      context.fillStyle = this.theme.muted;
      context.font = `${this.numberSize}px ${FONT}`;
      context.textAlign = "left";
      context.fillText(rank, left + 6, top + high / 2);
    }
  }

  /** The size at which the longest coordinates of a module fit, so that all ranks are alike; or 0. */
  wordSize(context, index, room) {
    const module = this.ranks.modules[index];
    const longest = this.ranks.dimensions.map((name, at) =>
      (module.sizes[at] > 1 ? `${name}${module.sizes[at] - 1}` : "")).filter(Boolean).join(" ");
    return WORD_SIZES.find((size) => {
      context.font = `${size}px ${FONT}`;
      return context.measureText(longest).width <= room;
    }) ?? 0;
  }

  /** The coordinates of a rank in the dimensions that the module is cut in. */
  place(index, rank) {
    const module = this.ranks.modules[index];
    return this.ranks.dimensions
      .map((name, dimension) => module.sizes[dimension] > 1
        ? `${name}${this.coordinates[index][dimension][rank - module.start]}` : "")
      .filter(Boolean).join(" ");
  }

  drawSelected(context) {
    if (this.selected === null || this.selected === undefined) return;
    if (this.selected >= this.ranks.shown) return;
    const { xs, ys, cellWidth, cellHeight } = this.layout;
    const { scale, x, y } = this.zoom;
    const box = [xs[this.selected] * scale + x, ys[this.selected] * scale + y,
      (cellWidth - this.gap) * scale, (cellHeight - this.gap) * scale];
    for (const [color, width] of [[this.theme.paper, 5], [this.theme.ink, 2.5]]) {
      context.strokeStyle = color;
      context.lineWidth = width;
      context.strokeRect(...box);
    }
  }

  drawLegend() {
    const theme = themeOf(this.root);
    const keys = this.ranks.modules.map((module) => {
      const dots = shades(module.color, theme).map(dotOf);
      const sizes = this.ranks.dimensions.map((name, at) => [name.toUpperCase(), module.sizes[at]])
        .filter(([name, size]) => size > 1 || name === "TP" || name === "DP");
      return element("span", { class: "key" }, ...dots, element("b", {}, module.name),
        ` ${sizes.map(([name, size]) => `${name} ${size}`).join(" · ")}`);
    });
    const rest = this.ranks.world - this.ranks.shown;
    if (rest > 0) {
      keys.push(element("span", { class: "muted" },
        `the first ${this.ranks.shown.toLocaleString("en")} of ` +
        `${this.ranks.world.toLocaleString("en")} ranks`));
    }
    setChildren(this.legend, ...keys);
  }

  /** Which ranks are lit, or null where all are. */
  litRanks() {
    if (this.sought) return this.sought;
    if (this.selected === null || this.selected === undefined || !this.groups?.length) return null;
    const lit = new Uint8Array(this.ranks.shown);
    for (const group of this.groups) {
      if (this.only !== null && this.only !== `${group.module} ${group.dimension}`) continue;
      for (const [first, step, count] of group.members) {
        for (let at = 0; at < count; at++) if (first + at * step < lit.length) lit[first + at * step] = 1;
      }
    }
    return lit;
  }

  // ------------------------------------------------------------ moving about

  toLayout(event) {
    return [(event.offsetX - this.zoom.x) / this.zoom.scale,
      (event.offsetY - this.zoom.y) / this.zoom.scale];
  }

  rankUnder(event) {
    return this.layout ? rankAt(this.layout, ...this.toLayout(event)) : -1;
  }

  hover(event) {
    if (this.drag && this.zoom.scale > 1) {
      const [dx, dy] = [event.clientX - this.drag.x, event.clientY - this.drag.y];
      if (Math.abs(dx) + Math.abs(dy) > 4) this.drag.moved = true;
      if (this.drag.moved) {
        this.zoomTo(this.zoom.scale, this.drag.from.x + dx, this.drag.from.y + dy);
        return;
      }
    }
    const rank = this.rankUnder(event);
    if (rank < 0) {
      this.tip.hide();
      return;
    }
    const lines = [`rank ${rank}, node ${Math.floor(rank / this.ranks.per_node)}`];
    this.ranks.modules.forEach((module, index) => {
      if (rank < module.start || rank >= module.start + module.count) return;
      lines.push(`${module.name}  ${this.place(index, rank) || "whole"}`);
    });
    this.tip.show(event, lines.join("\n"));
  }

  zoomBy(factor, x = this.layout.given / 2, y = this.layout.height / 2) {
    const scale = Math.min(MOST_ZOOM, Math.max(1, this.zoom.scale * factor));
    const grown = scale / this.zoom.scale;
    this.zoomTo(scale, x - (x - this.zoom.x) * grown, y - (y - this.zoom.y) * grown);
  }

  zoomTo(scale, x, y) {
    const clamp = (value, size) => Math.min(0, Math.max(size - size * scale, value));
    this.zoom = { scale, x: clamp(x, this.layout.given), y: clamp(y, this.layout.height) };
    this.redraw.soon();
  }

  /** Bring a rank into view, large enough to be read. */
  reveal(rank) {
    const { xs, ys, cellWidth, cellHeight, given, height } = this.layout;
    if (cellWidth >= 26 && this.zoom.scale === 1) return;
    const scale = Math.max(this.zoom.scale, Math.min(MOST_ZOOM, 48 / cellWidth));
    this.zoomTo(scale, given / 2 - (xs[rank] + cellWidth / 2) * scale,
      height / 2 - (ys[rank] + cellHeight / 2) * scale);
  }

  /** Go to the rank that is typed, or light up all that match. */
  find() {
    const rank = this.typedRank();
    this.seek();
    this.awaited = rank !== null && rank >= this.ranks.shown ? rank : null;
    if (rank !== null && this.awaited === null) {
      this.select(rank);
      this.reveal(rank);
    }
    this.redraw.soon();
  }

  typedRank() {
    const words = this.search.value.trim().toLowerCase().replace(/^rank\s+(?=\d)/, "");
    return /^\d+$/.test(words) ? Number(words) : null;
  }

  /** Bring what a search lights up, and the count of it, up to the plan. */
  seek() {
    const { shown, per_node: perNode } = this.ranks;
    const words = this.search.value.trim().toLowerCase();
    const rank = this.typedRank();
    this.sought = null;
    let found = rank !== null && rank >= shown ? "no such rank" : "";
    if (words && rank === null) {
      this.sought = this.matching(words.split(/[\s,]+/), shown, perNode);
      const count = this.sought.reduce((sum, one) => sum + one, 0);
      found = `${count.toLocaleString("en")} rank${count === 1 ? "" : "s"}`;
    }
    setText(this.found, found);
  }

  /** Ranks of which one module matches every word: "tp1", "node 2", part of a name. */
  matching(words, shown, perNode) {
    const found = new Uint8Array(shown);
    const node = words.indexOf("node") >= 0 ? Number(words[words.indexOf("node") + 1]) : null;
    const asked = words.filter((word, at) => word !== "node" && words[at - 1] !== "node");
    this.ranks.modules.forEach((module, index) => {
      const tests = asked.map((word) => {
        const [, name, value] = /^([a-z]+)=?(\d+)$/.exec(word) ?? [];
        const dimension = this.ranks.dimensions.indexOf(name);
        if (dimension < 0) return () => module.name.toLowerCase().includes(word);
        const numbers = this.coordinates[index][dimension];
        return (place) => numbers[place] === Number(value);
      });
      for (let place = 0; place < module.count; place++) {
        const rank = module.start + place;
        if (node !== null && Math.floor(rank / perNode) !== node) continue;
        if (tests.every((test) => test(place))) found[rank] = 1;
      }
    });
    return found;
  }

  key(event) {
    const row = this.layout?.columns ?? 1;
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -row, ArrowDown: row };
    const last = this.ranks.shown - 1;
    let rank = this.selected ?? null;
    if (event.key in steps) rank = rank === null ? 0 : rank + steps[event.key];
    else if (event.key === "Home") rank = 0;
    else if (event.key === "End") rank = last;
    else if (event.key === "Escape") rank = null;
    else if (event.key === "+") return this.zoomBy(1.6);
    else if (event.key === "-") return this.zoomBy(1 / 1.6);
    else return undefined;
    event.preventDefault();
    event.stopPropagation();
    if (rank !== null) rank = Math.min(last, Math.max(0, rank));
    if (rank !== null && this.zoom.scale > 1) this.reveal(rank);
    return this.select(rank);
  }

  remove() {
    this.redraw.end();
  }
}
