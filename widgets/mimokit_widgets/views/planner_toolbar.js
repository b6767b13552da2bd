// The planner's head: what is open, undo, files, code.

import { button, chooser, element, setAttribute, setText } from "mimokit/dom.js";
import { Field } from "./planner_field.js";

/** Messages that change neither the layout nor the picture. */
const STAYS_OPEN = ["save", "copy", "settle"];

export class Toolbar {
  constructor(planner) {
    this.planner = planner;
    const ask = (message) => () => planner.send(message);
    this.name = new Field(planner, { name: "Name of the layout", path: ["name"], text: true });
    this.undo = button("↶ Undo", ask({ type: "undo" }), { title: "Undo (Ctrl+Z)" });
    this.redo = button("↷ Redo", ask({ type: "redo" }), { title: "Redo (Ctrl+Shift+Z)" });
    this.file = element("input", { type: "file", accept: ".yaml,.yml,.txt,.json", hidden: true,
      change: () => {
        if (this.file.files.length) planner.read(this.file.files[0]);
        this.file.value = "";
      } });
    const presets = [["", "Presets …"], ...planner.inputs.presets];
    this.presets = chooser("Open a preset", presets, (name) => {
      if (name) planner.send({ type: "preset", name });
      this.presets.value = "";
    });
    this.path = element("input", { type: "text", "aria-label": "File to save to",
      spellcheck: "false", keydown: (event) => event.key === "Enter" && this.save() });
    this.saving = element("div", { class: "popover" },
      element("label", {}, "File, next to the notebook  ", this.path),
      element("div", { class: "buttons" }, button("Save", () => this.save(), { class: "primary" }),
        button("Download", ask({ type: "copy", what: "yaml" }))));
    this.saving.hidden = true;
    this.opener = button("Save …", () => this.toggleSaving(), { "aria-expanded": "false" });
    this.compare = button("Compare",
      () => planner.send({ type: planner.state.pinned ? "unpin" : "pin" }),
      { title: "Pin this layout and compare later ones with it", "aria-pressed": "false" });
    this.node = element("header", {},
      element("div", { class: "titles" }, this.name.node),
      element("div", { class: "buttons" }, this.undo, this.redo,
        button("Open …", () => this.file.click(), { title:
          "A YAML config, or the config.json of a Hugging Face model, which is planned" }), this.file, this.presets,
        element("span", { class: "anchored" }, this.opener, this.saving),
        button("Copy torchrun command", ask({ type: "copy", what: "torchrun" })), this.compare));
  }

  /** The file that is named belongs to the layout that was shown when it was opened. */
  toggleSaving(open = this.saving.hidden) {
    this.saving.hidden = !open;
    setAttribute(this.opener, "aria-expanded", String(open));
    if (!open) return;
    this.path.value = this.savedTo = this.planner.state.fields.file;
    this.path.focus();
    this.path.select();
  }

  save() {
    this.planner.send({ type: "save", path: this.path.value });
    this.toggleSaving(false);
    this.opener.focus();
  }

  /** What else is done, and Escape, closes it. */
  closeSaving(message) {
    if (this.saving.hidden || STAYS_OPEN.includes(message?.type)) return;
    this.toggleSaving(false);
    if (!message) this.opener.focus();
  }

  update(state) {
    if (!this.saving.hidden && state.fields.file !== this.savedTo) this.toggleSaving(false);
    this.name.set(state.fields.name);
    this.undo.disabled = !state.can_undo;
    this.redo.disabled = !state.can_redo;
    setText(this.compare, state.pinned ? "End comparison" : "Compare");
    setAttribute(this.compare, "aria-pressed", String(state.pinned > 0));
  }
}
