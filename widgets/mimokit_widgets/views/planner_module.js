// One module of the planner: its sizes in a row, its network and its links below.

import { button, element, setAttribute, setText } from "./dom.js";
import { FieldErrors } from "./planner_field_errors.js";
import { Field } from "./planner_field.js";

export const SIZES = [
  ["tensor_parallel", "TP", "tensor parallel: ranks that share each layer"],
  ["pipeline_parallel", "PP", "pipeline parallel: stages that the layers are cut into"],
  ["context_parallel", "CP", "context parallel: ranks that share each sequence"],
  ["expert_parallel", "EP", "expert parallel: ranks that share the experts; takes none of its own"],
  ["data_parallel", "DP", "data parallel: replicas; empty or auto: as many as there is room for"],
  ["rank_offset", "offset", "rank offset: the first rank of the module"],
];
const NETWORK = [
  ["num_layers", "layers"], ["hidden_size", "hidden size"], ["num_attention_heads", "heads"],
  ["ffn_hidden_size", "ffn size"], ["seq_length", "longest sequence"], ["vocab_size", "vocabulary"],
  ["image_size", "image size"], ["patch_size", "patch size"], ["num_channels", "channels"],
  ["merge_size", "merge size"], ["num_registers", "registers"], ["mel_bins", "mel bins"],
];
const FLAGS = [
  ["frozen", "frozen", "nothing in the module is trained"],
  ["class_token", "class token", "a learned position before the patches"],
  ["tied_embeddings", "tied embeddings", "the output layer is the token embedding"],
];
const OF_ENCODERS = ["image_size", "patch_size", "num_channels", "merge_size", "num_registers",
  "mel_bins", "class_token"];
const DEFAULTS = { ffn_hidden_size: "4 × hidden", num_channels: "1", merge_size: "1",
  num_registers: "0", rank_offset: "0" };

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
    this.sizes = SIZES.map(([key, label, hint]) => field({ name: `${label} of ${name}`,
      path: ["model", "module_parallelisms", name, key], hint,
      placeholder: DEFAULTS[key] ?? "1" }));
    this.where = element("span", { class: "where muted" });
    this.more = button("Network", () => this.toggle(), { "aria-expanded": "false", class: "plain",
      "aria-label": `Network and links of ${name}` });
    const act = (text, label, message) =>
      button(text, () => planner.send(message), { class: "plain", "aria-label": label, title: label });
    this.errors = new FieldErrors(planner);
    this.below = this.details(name, field);
    this.below.hidden = true;
    this.node = element("div", { class: "module", role: "group", "aria-label": `Module ${name}` },
      element("div", { class: "row" }, element("span", { class: "titled" }, this.dot, this.title),
        ...this.sizes.map((size) => size.node)),
      element("div", { class: "under" }, this.where, this.more,
        act("↑", `Move ${name} up`, { type: "move", name, by: -1 }),
        act("↓", `Move ${name} down`, { type: "move", name, by: 1 }),
        act("×", `Remove ${name}`, { type: "remove", name })),
      this.errors.node, this.below);
  }

  details(name, field) {
    this.network = NETWORK.map(([key, label]) => [key, field({ label, name: `${label} of ${name}`,
      path: ["model", "module_architectures", name, key], placeholder: DEFAULTS[key] ?? "" })]);
    this.published = element("select", { "aria-label": `Published network for ${name}`,
      change: () => {
        if (!this.published.value) return;
        this.planner.send({ type: "network", name, published: this.published.value });
        this.published.value = "";
      } });
    this.token = field({ label: "token id", name: `token id of ${name}`,
      path: ["model", "special_token_ids", name],
      hint: "the id that holds the place of the module's output among the tokens" });
    this.length = field({ label: "tokens", name: `tokens per sample of ${name}`,
      path: ["data", "modality_seq_lengths", name],
      hint: "most tokens per sample of the module's output; empty: as many as image tokens" });
    this.feeds = element("div", { class: "feeds" });
    this.flags = new Map(FLAGS.map(([key, label, hint]) => {
      const box = element("input", { type: "checkbox", change: () => this.planner.send({
        type: "flag", path: ["model", "module_architectures", name, key], on: box.checked }) });
      return [key, { box, node: element("label", { title: hint }, box, label) }];
    }));
    return element("div", { class: "network" },
      element("label", { class: "field wide" }, element("span", {}, "like"), this.published),
      ...this.network.map(([, each]) => each.node), this.token.node, this.length.node,
      element("div", { class: "feeds" }, ...[...this.flags.values()].map(({ node }) => node)),
      this.feeds);
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
        const needed = heterogeneous || !["", "0"].includes(module.sizes[key]);
        field.input.style.visibility = needed ? "" : "hidden";
      }
    }
    for (const [key, field] of this.network) {
      field.set(module.network[key]);
      field.node.hidden = module.language && OF_ENCODERS.includes(key)
        && ["", DEFAULTS[key]].includes(module.network[key]);
    }
    for (const [key, { box, node }] of this.flags) {
      box.checked = module.flags[key];
      const apt = key === "tied_embeddings" ? module.language
        : !module.language || !OF_ENCODERS.includes(key);
      node.hidden = !apt && !box.checked;
    }
    this.token.set(module.token);
    this.length.set(module.length, this.planner.state.fields.data.image_seq_length);
    this.token.node.hidden = module.language && !module.token;
    this.length.node.hidden = module.language && !module.length;
    const roles = [module.where, module.beyond, module.language && "language module",
      module.flags.frozen && "frozen"];
    setText(this.where, roles.filter(Boolean).join(" · "));
    this.updatePublished(module);
    this.updateFeeds(module, others);
  }

  updatePublished(module) {
    const names = this.planner.state.published[module.kind];
    if (this.kind === module.kind) return;
    this.kind = module.kind;
    this.published.replaceChildren(element("option", { value: "" }, "a published model …"),
      ...names.map((name) => element("option", { value: name }, name)));
  }

  updateFeeds(module, others) {
    const key = JSON.stringify([others, module.feeds]);
    if (key === this.feedsKey) return;
    this.feedsKey = key;
    this.feeds.replaceChildren(element("span", { class: "muted" }, "feeds"),
      ...others.map((target) => {
        const box = element("input", { type: "checkbox", change: () => this.planner.send({
          type: "feeds", name: this.name, target, on: box.checked }) });
        box.checked = module.feeds.includes(target);
        return element("label", {}, box, target);
      }));
  }

  /** Mark the fields that errors are about; open the network where one is hidden in it. */
  mark(errors) {
    const ids = this.errors.show(errors);
    for (const field of this.all) field.mark(ids.get(field.path.join(".")));
    const hidden = errors.some(({ path }) => path[1] !== "module_parallelisms");
    setAttribute(this.more, "data-invalid", hidden ? "true" : null);
  }

  remove() {
    for (const field of this.all) field.remove();
    this.node.remove();
  }
}
