// The browser's half of LayoutPlanner: draws what Python says and reports what the user does.

import { button, choices, element, setAttribute, setChildren, setText, tickBox, vector } from "mimokit/dom.js";
import { Advice } from "./views/planner_advice.js";
import { renderedAs } from "./views/one_view.js";
import { Outbox } from "./views/outbox.js";
import { FieldErrors } from "./views/planner_field_errors.js";
import { Field } from "./views/planner_field.js";
import { drawGraph } from "./views/planner_graph.js";
import { ModuleRow } from "./views/planner_module.js";
import { Pictures } from "./views/planner_pictures.js";
import { Toolbar } from "./views/planner_toolbar.js";
import { VerdictStrip } from "./views/verdict_strip.js";

const MODES = [
  ["homogeneous", "homogeneous", "same sizes, same ranks"],
  ["colocated", "colocated", "separate sizes, same ranks"],
  ["heterogeneous", "heterogeneous", "separate sizes, separate ranks"],
];

const toldBy = (screen) => JSON.stringify({ ...screen, serial: "" });

class Planner {
  constructor(root, ask, model) {
    Object.assign(this, { root, ask, model, fields: new Set(), rows: [], folds: [],
      state: model.get("_state"), inputs: model.get("_inputs") });
    this.outbox = new Outbox(ask,
      (late) => setText(this.late, late ? "Waiting for the kernel …" : ""));
    this.send = (message) => {
      this.toolbar.closeSaving(message);
      const screen = this.screenAhead(message);
      const taken = this.outbox.put(message, screen);
      if (screen) this.show(screen);
      this.foreseen = screen ? toldBy(screen) : this.foreseen;
      return taken;
    };
    this.build();
    const heard = { keydown: (event) => this.key(event), paste: (event) => this.paste(event),
      dragover: (event) => this.drag(event, true), drop: (event) => this.drop(event),
      dragleave: (event) => this.drag(event, false),
      focusin: ({ target }) => this.advice.focus(target) };
    for (const [name, listener] of Object.entries(heard)) root.addEventListener(name, listener);
  }

  build() {
    this.toolbar = new Toolbar(this);
    this.headline = element("p", { class: "headline" });
    this.late = element("span", { class: "late", role: "status" });
    this.notice = element("p", { class: "notice", role: "status" });
    this.general = new FieldErrors(this);
    this.verdict = new VerdictStrip(this.root);
    this.numbers = element("div", { class: "numbers" });
    this.others = element("div", { class: "numbers" });
    const numbers = element("section", { "aria-label": "Numbers" }, this.numbers,
      element("details", {}, element("summary", {}, "more numbers"), this.others));
    this.pictures = new Pictures(this);
    this.advice = new Advice(this);
    this.dimmed = element("div", { class: "follows" }, this.advice.node, numbers,
      this.pictures.node);
    const body = element("div", { class: "body" },
      element("div", { class: "asks" }, this.world(), this.modules(), this.batch(),
        this.training()), this.dimmed);
    const judged = element("div", { class: "judged" }, this.verdict.node, body);
    this.root.append(element("div", { class: "page" }, this.toolbar.node,
      element("div", { class: "status" }, this.headline, this.late), this.notice,
      this.general.node, judged));
  }

  world() {
    this.mode = choices("Deployment mode", "mode", MODES,
      (text) => this.send({ type: "edit", path: ["model", "deployment_mode"], text }));
    this.worldSize = new Field(this, { label: "world size", name: "World size",
      path: ["world_size"], hint: "ranks of the world; empty: the number that the modules need" });
    this.perNode = new Field(this, { label: "ranks per node", name: "Ranks per node",
      path: ["ranks_per_node"] });
    this.gaps = tickBox("allow ranks without a module", (on) =>
      this.send({ type: "flag", path: ["model", "allow_rank_gaps"], on }), { class: "check" });
    this.inLine = button("Lay end to end", () => this.send({ type: "end_to_end" }),
      { title: "Let the modules' ranks follow each other in this order" });
    this.worldErrors = new FieldErrors(this);
    return element("section", { "aria-label": "World" }, this.mode.node,
      element("div", { class: "fields" }, this.worldSize.node, this.perNode.node,
        this.gaps.parentNode), this.worldErrors.node);
  }

  /** A tick box of the view, which does not change the layout. */
  box(type, text, title) {
    return tickBox(text, (on) => this.send({ type, on }), { class: "check", title });
  }

  modules() {
    this.graph = vector("svg", { role: "img", class: "graph" });
    this.list = element("div", { class: "modules" });
    this.more = button("CP, EP", () => this.root.classList.toggle("all-sizes"), { class: "plain",
      title: "Show context and expert parallel sizes where none is in use" });
    const head = element("div", { class: "row head" },
      element("span", {}, "module ", this.more),
      ...this.inputs.sizes.map(({ key, label, hint }) =>
        element("span", { title: hint, "data-size": key, "aria-hidden": "true" }, label)));
    this.offsetHead = head.lastChild;
    this.forAll = this.box("for_all", "for all modules",
      "A size that is typed is that of all modules");
    this.holding = this.box("hold", "hold GPUs and batch", "Sizes trade: what TP takes, DP and "
      + "micro-batches give; the ranks of every module and the samples per step stay");
    this.gave = element("span", { class: "gave", role: "status" });
    return element("section", { "aria-label": "Modules" }, this.graph, head, this.list,
      element("div", { class: "holds" }, this.holding.parentNode, this.gave),
      element("div", { class: "buttons" },
        button("+ Add module", () => this.send({ type: "add" })), this.inLine,
        this.forAll.parentNode));
  }

  /** How it is trained: precision, schedule, strategy, optimizer. */
  training() {
    this.trained = this.inputs.training.map(({ path, label, hint, empty, options }) =>
      new Field(this, { label, hint, name: label, path, options, placeholder: empty }));
    this.trainingErrors = new FieldErrors(this);
    return element("section", { "aria-label": "Training" },
      ...this.folded("Training", this.trained, ["precision"]), this.trainingErrors.node);
  }

  batch() {
    this.data = this.inputs.data.map(({ key, label, hint }) => new Field(this, { label, hint,
      name: label, path: ["data", key] }));
    this.dataErrors = new FieldErrors(this);
    return element("section", { "aria-label": "Batch and sequences" },
      ...this.folded("Sequences and vocabulary", this.data,
        ["base_batch_size", "num_microbatches"]), this.dataErrors.node);
  }

  /** The fields that are edited often, and a line with the others, which opens. */
  folded(title, fields, first) {
    const often = fields.filter(({ path }) => first.includes(path.at(-1)));
    const others = fields.filter((field) => !often.includes(field));
    const line = element("summary", {});
    const fold = element("details", { class: "fold" }, line,
      element("div", { class: "fields" }, ...others.map(({ node }) => node)));
    this.folds.push({ title, others, line, fold });
    return [element("div", { class: "fields" }, ...often.map(({ node }) => node)), fold];
  }

  /** What a closed line holds is said in it; one with an error opens. */
  updateFolds() {
    for (const { title, others, line, fold } of this.folds) {
      const told = others.filter(({ input }) => input.value)
        .map(({ input }) => `${input.ariaLabel} ${input.value}`);
      setText(line, [title, ...told.slice(0, 1), ...(told.length > 1 ? ["…"] : [])].join(" · "));
      if (others.some(({ input }) => input.ariaInvalid)) fold.open = true;
    }
  }

  // ------------------------------------------------------------ what Python says

  /** What Python told ahead of a message, to be shown at once; what it says later holds. */
  screenAhead(message) {
    const { screens, after } = this.model.get("_ahead") ?? {};
    return !this.foreseen && !this.outbox.flying && screens?.[after[JSON.stringify(message)]];
  }

  update() {
    const state = this.model.get("_state");
    try {
      if (this.foreseen !== toldBy(state)) this.show(state);
      this.foreseen = "";
      this.state = state;
      this.root.dataset.serial = state.serial;
      if (this.model.saved) this.closeFields();
    } finally { // a picture that fails must not hold back what the user does next
      this.outbox.handled(state.serial);
    }
  }

  /** On a page without a kernel pictures can be opened, and nothing edited. */
  closeFields() {
    const fields = ":is(input, select, button, textarea)";
    for (const node of this.root.querySelectorAll(`:is(.asks, header, .samples-view) ${fields}`)) {
      node.disabled = true;
    }
    setText(this.notice, "A saved planner: its pictures can be opened, its fields not edited. Run its cell to edit it.");
    this.notice.hidden = false;
  }

  show(state) {
    this.state = state;
    const { fields } = state;
    const heterogeneous = fields.mode === "heterogeneous";
    this.toolbar.update(state);
    setText(this.headline, state.headline || "No valid layout yet");
    this.showNotice(state);
    this.mode.set(fields.mode);
    this.worldSize.set(fields.world_size, fields.world ? `auto ${fields.world}` : "auto");
    this.perNode.set(fields.ranks_per_node);
    this.gaps.checked = fields.gaps;
    this.gaps.parentNode.hidden = !heterogeneous;
    this.inLine.hidden = !heterogeneous;
    if (!this.outbox.awaits("hold", state.serial)) this.holding.checked = fields.holding;
    if (!this.outbox.awaits("for_all", state.serial)) this.forAll.checked = fields.for_all;
    for (const field of this.data) field.set(fields.data[field.path[1]]);
    for (const field of this.trained) field.set(fields.training[field.path.join(".")]);
    drawGraph(this.graph, fields.layers, fields.modules);
    this.updateModules(fields.modules, heterogeneous);
    this.offsetHead.hidden = this.rows.every((row) => row.offset.input.hidden);
    this.showGiven(state.gave);
    this.complain(state);
    this.updateFolds();
    this.verdict.update(state.verdict, new Map(fields.modules.map((each) =>
      [each.name, each.color])));
    const numbers = (main) => state.figures.filter((figure) => figure.main === main)
      .map(({ label, value, formula }) => element("span", { title: `${label} = ${formula}` },
        `${label} `, element("b", {}, value)));
    setChildren(this.numbers, ...numbers(true));
    setChildren(this.others, ...numbers(false));
    this.advice.update(this.model.get("_advice"));
    this.pictures.update(state);
    this.root.classList.toggle("invalid", !state.valid);
    setAttribute(this.dimmed, "aria-label", state.valid ? null : "The last valid layout");
  }

  updateModules(modules, heterogeneous) {
    for (const [size, name] of [["context_parallel", "cp"], ["expert_parallel", "ep"]]) {
      const used = modules.some(({ sizes, network }) => !["", "1"].includes(sizes[size])
        || (name === "ep" && network.num_moe_experts));
      this.root.classList.toggle(`without-${name}`, !used);
    }
    const names = modules.map((module) => module.name);
    const known = new Map(this.rows.map((row) => [row.name, row]));
    for (const row of this.rows) if (!names.includes(row.name)) row.remove();
    this.rows = modules.map((module) => known.get(module.name) ?? new ModuleRow(this, module));
    this.rows.forEach((row, at) => {
      if (this.list.children[at] !== row.node) {
        this.list.insertBefore(row.node, this.list.children[at] ?? null);
      }
      row.update(modules[at], names.filter((name) => name !== row.name), heterogeneous);
    });
  }

  complain(state) {
    const all = state.problems;
    const taken = new Set();
    const those = (test) => all.filter((each) => test(each.path) && taken.add(each));
    for (const row of this.rows) {
      row.mark(those((path) => path.length > 2 && path[2] === row.name));
    }
    const ofWorld = (path) => path.length === 1 && ["world_size", "ranks_per_node"].includes(path[0]);
    this.markWith(this.worldErrors, those(ofWorld), [this.worldSize, this.perNode]);
    this.markWith(this.dataErrors, those((path) => path[0] === "data"), this.data);
    this.markWith(this.trainingErrors, those((path) => ["runtime", "strategy"].includes(path[0])),
      this.trained);
    const rest = all.filter((each) => !taken.has(each));
    const more = state.more_problems;
    if (more) rest.push({ path: [], sentence: `And ${more} problems more.`, label: "" });
    const price = this.pictures.views.get("prediction")?.view.price;
    this.markWith(this.general, rest, [this.toolbar.name, ...(price ? [price] : [])]);
  }

  markWith(errors, found, fields) {
    const ids = errors.show(found);
    for (const field of fields) field.mark(ids.get(field.path.join(".")));
  }

  /** What an edit changed besides its field: in words, and the fields that gave way are marked. */
  showGiven({ sentence, paths }) {
    setText(this.gave, sentence);
    const given = new Set(paths.map((path) => path.join(".")));
    for (const field of this.fields) {
      field.input.classList.toggle("given", given.has(field.path.join(".")));
    }
  }

  showNotice(state) {
    const text = [...state.notes, state.notice].filter(Boolean).join(" ");
    setText(this.notice, text);
    this.notice.hidden = !text;
    if (state.again) {
      this.notice.append(" ", button("Replace it", () => this.send(state.again), { class: "fix" }));
    }
  }

  async receive(message) {
    if (message.type !== "text") return;
    const { what, text, file } = message;
    if (what === "yaml") {
      const link = element("a", { download: file,
        href: URL.createObjectURL(new Blob([text], { type: "text/yaml" })) });
      link.click();
      URL.revokeObjectURL(link.href);
      return;
    }
    try {
      await navigator.clipboard.writeText(text);
      setText(this.notice, "The torchrun command is in the clipboard.");
    } catch {
      const area = element("textarea", { rows: 6, readonly: true, "aria-label": "The command" });
      area.value = text;
      this.notice.replaceChildren("The torchrun command, to be copied: ", area);
      area.select();
    }
    this.notice.hidden = false;
    this.notice.dataset.copied = what;
  }

  // ------------------------------------------------------------ what the user does

  focus(path) {
    const key = path.join(".");
    [...this.fields].find((field) => field.path.join(".") === key)?.input.focus();
  }

  key(event) {
    event.stopPropagation(); // the notebook has separate shortcuts
    if (event.key === "Escape") {
      this.toolbar.closeSaving();
      this.advice.close();
    }
    const undoing = (event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "z";
    const redoing = (event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "y";
    if (!undoing && !redoing) return;
    event.preventDefault();
    this.send({ type: redoing || event.shiftKey ? "redo" : "undo" });
  }

  drag(event, over) {
    event.preventDefault();
    this.root.classList.toggle("dropping", over);
  }

  drop(event) {
    this.drag(event, false);
    event.stopPropagation();
    const file = event.dataTransfer.files[0];
    if (file) this.read(file);
    else this.load(event.dataTransfer.getData("text/plain"), "dropped.yaml");
  }

  paste(event) {
    const into = event.target.closest("input, textarea");
    const text = event.clipboardData.getData("text/plain");
    if (into && !text.trim().includes("\n")) return; // a value for a field
    event.preventDefault();
    this.load(text, "pasted.yaml");
  }

  async read(file) {
    this.load(await file.text(), file.name);
  }

  load(text, name) {
    if (text) this.send({ type: "load", text, name });
  }

  leave() {
    this.outbox.close();
  }

  remove() {
    this.advice.remove();
    this.verdict.remove();
    this.pictures.remove();
  }
}

export default {
  render: renderedAs((root, send, model) => new Planner(root, send, model), {
    _state: (planner) => planner.update(),
    _search: ({ pictures }, model) =>
      pictures.views.get("search")?.view.showSearch(model.get("_search")),
    _advice: ({ advice }, model) => advice.update(model.get("_advice")),
    "msg:custom": (planner, _, message) => planner.receive(message),
  }, { class: "mimokit mimokit-planner", role: "region", "aria-label": "Layout planner" }),
};
