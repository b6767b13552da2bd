// Ranks, the tensors of a checkpoint and its files: a rank shows its slices, a tensor its ranks.

import { choices, element, setAttribute, setText } from "mimokit/dom.js";
import { FileStrips } from "./file_strips.js";
import { RovingFocus } from "./roving_focus.js";
import { themeOf, watchTheme } from "mimokit/theme.js";

const HINT = "Point at a rank or a tensor, or move to one with the arrow keys; a click selects a "
  + "rank.";
const MOST_ACROSS = 8;

export class WeightView {
  /** send(message) tells Python what the user did. */
  constructor(host, send) {
    this.send = send;
    this.selected = null;
    this.sizes = new Map();
    this.fields = element("div", { class: "sizes" });
    this.problem = element("p", { class: "problem", role: "alert" });
    this.sentence = element("p", { class: "sentence" });
    this.ranks = element("div", { class: "ranks", role: "group", "aria-label": "Ranks" });
    this.said = element("p", { class: "said", role: "status" });
    this.tensors = element("div", { class: "tensors", role: "group",
      "aria-label": "Tensors of the files" });
    const files = element("div", { class: "files" });
    this.root = element("div", { class: "weight-map" }, this.fields, this.problem, this.sentence,
      element("h4", {}, "Ranks"), this.ranks, this.said,
      element("h4", {}, "Slices of the files' tensors, layers of a kind together"), this.tensors,
      element("h4", {}, "Bytes of the files"), files);
    host.append(this.root);
    this.strips = new FileStrips(files);
    this.rankFocus = new RovingFocus(this.ranks);
    this.tensorFocus = new RovingFocus(this.tensors);
    for (const area of [this.ranks, this.tensors]) this.listen(area);
    this.stopWatching = watchTheme(() => {
      themeOf(this.root);
      this.strips.redraw.soon();
    });
  }

  listen(area) {
    const owner = (event) => event.target.closest?.("[data-owner]");
    area.addEventListener("pointerover", (event) => {
      this.hovered = owner(event);
      this.light();
    });
    area.addEventListener("pointerleave", () => {
      this.hovered = null;
      this.light();
    });
    area.addEventListener("focusin", (event) => {
      this.focused = owner(event);
      this.hovered = null; // the keyboard was used last
      this.light();
    });
    area.addEventListener("focusout", () => {
      this.focused = null;
      this.light();
    });
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.selected !== null) this.pick(null);
    });
  }

  update(picture, numbers) {
    this.picture = picture;
    themeOf(this.root);
    this.drawSizes(picture.fields);
    setText(this.problem, picture.problem);
    this.problem.hidden = !picture.problem;
    this.root.classList.toggle("stale", Boolean(picture.problem));
    const plan = JSON.stringify([picture.words, picture.ranks, picture.tensors]);
    if (plan !== this.drawn) {
      this.drawn = plan;
      this.hovered = this.focused = null;
      setText(this.sentence, picture.words);
      this.drawRanks(picture);
      this.drawTensors(picture);
      this.strips.update(picture.files, numbers);
    }
    this.select(this.selected);
  }

  drawSizes(fields) {
    this.asked = Object.fromEntries(fields.map(({ name, value }) => [name, value]));
    for (const { name, label, value, offered } of fields) {
      const key = offered.join();
      let field = this.sizes.get(name);
      if (field?.key !== key) {
        const chooser = choices(label, name, offered.map((size) => [size, String(size)]),
          (size) => this.ask(name, size));
        const node = element("div", { class: "size" }, element("span", {}, label), chooser.node);
        if (field) field.node.replaceWith(node);
        else this.fields.append(node);
        field = { key, node, chooser };
        this.sizes.set(name, field);
      }
      field.chooser.set(value);
    }
  }

  /** Ask for another layout; one that nobody draws leaves the sizes as they are. */
  ask(name, size) {
    this.asked[name] = size;
    if (!this.send({ type: "weights", sizes: this.asked })) this.drawSizes(this.picture.fields);
  }

  drawRanks({ stages, ranks }) {
    this.buttons = ranks.map((rank) => element("button", { type: "button", class: "rank",
      "data-owner": rank.rank, "aria-label": rank.words, "aria-pressed": "false",
      style: `--place: ${rank.color}`, click: () => this.pick(rank.rank) },
    element("b", {}, `rank ${rank.rank}`), ...rank.lines.map((line) => element("span", {}, line))));
    const grid = stages.map(({ stage }) => this.buttons.filter((_, at) =>
      ranks[at].stage === stage));
    this.ranks.replaceChildren(...stages.map(({ stage, layers }) =>
      element("div", { class: "stage" }, element("span", { class: "name muted" },
        stages.length > 1 ? `stage ${stage}` : "", element("br"), layers),
      element("div", { class: "row" }, ...grid[stage]))));
    this.ranks.style.setProperty("--across", Math.min(MOST_ACROSS, grid[0].length));
    this.rankFocus.arrange(grid);
  }

  drawTensors({ stages, tensors }) {
    this.cells = [];
    const head = stages.length > 1
      ? [element("span", {}), ...stages.map(({ stage, layers }) =>
        element("span", { class: "muted head" }, `stage ${stage}`, element("br"), layers))]
      : [];
    const lines = tensors.map(({ name, shape, cells }) => {
      const label = element("span", { class: "tensor" }, element("code", {}, name), " ",
        element("span", { class: "shape" }, shape));
      const made = stages.map(({ stage }) => {
        const cell = cells.find((each) => each.stage === stage);
        return cell ? this.cell(cell) : element("span", {});
      });
      return [label, ...made];
    });
    this.tensors.style.setProperty("--stages", stages.length);
    this.tensors.replaceChildren(...head, ...lines.flat());
    this.tensorFocus.arrange(lines.map((line) => line.slice(1).map((node) =>
      (node.dataset.owner === undefined ? null : node))));
  }

  cell(cell) {
    const bands = cell.bands.map(({ box, color }) => {
      const [left, top, width, height] = box.map((share) => `${(100 * share).toFixed(3)}%`);
      return element("i", { style:
        `left:${left};top:${top};width:${width};height:${height};--place:${color}` });
    });
    const node = element("button", { type: "button", "data-owner": cell.owner,
      class: cell.vector ? "cell vector" : "cell", "aria-label": cell.words },
    element("span", { class: "bands" }, ...bands));
    this.cells.push({ ...cell, node, bands: cell.bands.map((band, at) =>
      ({ ...band, node: bands[at] })) });
    return node;
  }

  /** Select a rank, or none; the one that is selected is left by the same click. */
  pick(rank) {
    const wanted = rank === this.selected ? null : rank;
    this.select(wanted);
    this.send({ type: "select", rank: wanted });
  }

  select(rank) {
    this.selected = rank ?? null;
    this.buttons?.forEach((button, at) =>
      setAttribute(button, "aria-pressed", at === this.selected ? "true" : "false"));
    if (this.buttons) this.light();
  }

  /** Show what belongs to what is pointed at, else to what has the focus, else to the selection. */
  light() {
    const shown = this.hovered ?? this.focused;
    const owner = shown ? Number(shown.dataset.owner) : this.selected;
    const ranks = this.picture.ranks;
    const rank = owner !== null && owner < ranks.length ? owner : null;
    const tensor = owner === null || rank !== null ? null
      : this.cells.find((cell) => cell.owner === owner);
    this.root.classList.toggle("lit", rank !== null || Boolean(tensor));
    const held = tensor ? tensor.ranks : [rank];
    this.buttons.forEach((button, at) => button.classList.toggle("on", held.includes(at)));
    for (const cell of this.cells) {
      cell.node.classList.toggle("on", cell === tensor);
      for (const band of cell.bands) {
        band.node.classList.toggle("on", cell === tensor || band.ranks.includes(rank));
      }
    }
    setText(this.said, tensor?.words ?? ranks[rank]?.words ?? HINT);
    this.strips.show(owner, rank === null ? null : ranks[rank].color);
  }

  remove() {
    this.stopWatching();
    this.strips.remove();
  }
}
