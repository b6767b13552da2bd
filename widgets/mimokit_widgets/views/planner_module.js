// One module of the planner: its sizes in a row, its network and its links below.

import { button, chooser, element, offer, setAttribute, setText, tickBox } from "mimokit/dom.js";
import { FieldErrors } from "./planner_field_errors.js";
import { Field } from "./planner_field.js";

export class ModuleRow {
  constructor(planner, module) {
    this.planner = planner;
    this.name = module.name;
    this.all = [];
    const { name } = module;
    const field = (options) => {
      const made = new Field(planner, options);
      this.all.push(made);
      return made;
    };
    this.dot = element("i", { class: "dot" });
    this.title = element("input", { class: "name", type: "text", "aria-label": `Name of ${name}`,
      spellcheck: "false", change: () => this.rename() });
    this.title.value = name;
    this.inputs = planner.inputs;
    this.sizes = this.inputs.sizes.map(({ key, label, hint, empty }) => field({ hint,
      name: `${label} of ${name}`, path: ["model", "module_parallelisms", name, key],
      placeholder: empty }));
    this.where = element("span", { class: "where muted" });
    this.more = button("More", () => this.toggle(), { "aria-expanded": "false", class: "plain",
      "aria-label": `Network and links of ${name}`,
      title: "How it is executed, its network, and what it feeds" });
    const act = (text, label, message) =>
      button(text, () => planner.send(message), { class: "plain", "aria-label": label, title: label });
    this.errors = new FieldErrors(planner);
    this.below = this.details(name, field);
    this.below.hidden = true;
    this.line = element("div", { class: "row" },
      element("span", { class: "titled" }, this.dot, this.title),
      ...this.sizes.map((size) => size.node));
    for (const size of this.sizes) size.node.dataset.size = size.path[3];
    this.offset = this.sizes.at(-1);
    this.node = element("div", { class: "module", role: "group", "aria-label": `Module ${name}` },
      this.line, element("div", { class: "under" }, this.where, this.more,
        act("↑", `Move ${name} up`, { type: "move", name, by: -1 }),
        act("↓", `Move ${name} down`, { type: "move", name, by: 1 }),
        act("×", `Remove ${name}`, { type: "remove", name })),
      this.errors.node, this.below);
  }

  details(name, field) {
    const sizePath = (key) => ["model", "module_parallelisms", name, key];
    this.execution = this.inputs.execution.map((input) => field({ ...input, path: sizePath(input.key),
      name: `${input.label} of ${name}`, placeholder: input.empty }));
    this.executionFlags = this.boxes(this.inputs.execution_flags, sizePath);
    this.network = this.inputs.network.map((input) => [input, field({ ...input,
      name: `${input.label} of ${name}`, placeholder: input.empty,
      path: ["model", "module_architectures", name, input.key] })]);
    this.published = chooser(`Published network for ${name}`, [], (published) => {
      if (published) this.planner.send({ type: "network", name, published });
      this.published.value = "";
    });
    this.token = field({ label: "token id", name: `token id of ${name}`,
      path: ["model", "special_token_ids", name],
      hint: "placeholder token id that the module's output replaces" });
    this.length = field({ label: "tokens", name: `tokens per sample of ${name}`,
      path: ["data", "modality_seq_lengths", name],
      hint: "most tokens per sample of the module's output; empty: the number of image tokens" });
    this.feeds = element("div", { class: "feeds" });
    this.flags = this.boxes(this.inputs.flags, (key) => ["model", "module_architectures", name, key]);
    return element("div", { class: "network" },
      ...this.execution.map((each) => each.node),
      element("div", { class: "feeds" },
        ...[...this.executionFlags.values()].map((box) => box.parentNode)),
      element("label", { class: "field wide" }, element("span", {}, "like"), this.published),
      ...this.network.map(([, each]) => each.node), this.token.node, this.length.node,
      element("div", { class: "feeds" },
        ...[...this.flags.values()].map((box) => box.parentNode)),
      this.feeds);
  }

  /** Boxes to tick, by the key of what they set. */
  boxes(inputs, pathOf) {
    return new Map(inputs.map(({ key, label, hint }) => [key, tickBox(label, (on) =>
      this.planner.send({ type: "flag", path: pathOf(key), on }), { title: hint })]));
  }

  toggle(open = this.below.hidden) {
    this.below.hidden = !open;
    setAttribute(this.more, "aria-expanded", String(open));
  }

  rename() {
    this.planner.send({ type: "rename", name: this.name, text: this.title.value });
    this.title.value = this.name; // Python says what it is called
  }

  update(module, others, heterogeneous) {
    this.dot.style.background = module.color;
    for (const field of this.sizes) {
      const key = field.path[3];
      const auto = key === "data_parallel"
        ? (module.worked_out && !module.sizes[key] ? `auto ${module.worked_out}` : "auto") : undefined;
      field.set(module.sizes[key], auto);
      if (key === "rank_offset") {
        field.input.hidden = !heterogeneous && ["", "0"].includes(module.sizes[key]);
      }
    }
    for (const field of this.execution) field.set(module.sizes[field.path[3]]);
    for (const [key, box] of this.executionFlags) box.checked = module.execution_flags[key];
    for (const [{ key, empty }, field] of this.network) {
      field.set(module.network[key]);
      field.node.hidden = module.language && this.inputs.encoders.includes(key)
        && ["", empty].includes(module.network[key]);
    }
    for (const [key, box] of this.flags) {
      box.checked = module.flags[key];
      const apt = key === "tied_embeddings" ? module.language
        : !module.language || !this.inputs.encoders.includes(key);
      box.parentNode.hidden = !apt && !box.checked;
    }
    this.token.set(module.token);
    this.length.set(module.length, this.planner.state.fields.data.image_seq_length);
    this.token.node.hidden = module.language && !module.token;
    this.length.node.hidden = module.language && !module.length;
    const roles = [module.where, module.beyond, module.language && "language module",
      module.flags.frozen && "frozen"];
    setText(this.where, roles.filter(Boolean).join(" · "));
    offer(this.published, [["", "a published model …"], ...this.inputs.published[module.kind]]);
    this.updateFeeds(module, others);
  }

  updateFeeds(module, others) {
    const key = JSON.stringify([others, module.feeds]);
    if (key === this.feedsKey) return;
    this.feedsKey = key;
    this.feeds.replaceChildren(element("span", { class: "muted" }, "feeds"),
      ...others.map((target) => {
        const box = tickBox(target, (on) =>
          this.planner.send({ type: "feeds", name: this.name, target, on }));
        box.checked = module.feeds.includes(target);
        return box.parentNode;
      }));
  }

  /** Mark the fields that errors are about; open the network where one is hidden in it. */
  mark(errors) {
    const ids = this.errors.show(errors);
    for (const field of this.all) field.mark(ids.get(field.path.join(".")));
    const inRow = new Set(this.sizes.map(({ path }) => path[3]));
    const hidden = errors.some(({ path }) => path[1] !== "module_parallelisms"
      || !inRow.has(path[3]));
    setAttribute(this.more, "data-invalid", hidden ? "true" : null);
  }

  remove() {
    for (const field of this.all) field.remove();
    this.node.remove();
  }
}
