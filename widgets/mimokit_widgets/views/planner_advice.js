// The what-if at a field: its valid values, each with what the layout with it comes to, and the
// layouts one step away in words. A click takes a value, and so does a drag that passes over it.

import { button, element, setAttribute, setChildren, setText } from "mimokit/dom.js";

const QUIET = 120; // milliseconds after the last news before anything is asked

export class Advice {
  constructor(planner) {
    this.planner = planner;
    this.path = this.focused = [];
    this.first = element("p", { class: "why" });
    this.rest = element("div", {});
    this.others = element("details", {}, element("summary", {}, "other steps"), this.rest);
    this.node = element("section", { "aria-label": "One step away" }, this.first, this.others);
    this.row = element("div", { class: "what-if", role: "group" });
    this.stop = () => { this.scrubbing = false; };
    window.addEventListener("pointerup", this.stop);
  }

  /** A field for a number has the focus: if it is a size, its values are shown below its module. */
  focus({ dataset, inputMode }) {
    const path = dataset.path?.split(".") ?? [];
    if (!inputMode || !path.length || path.join() === this.focused.join()) return;
    this.focused = path;
    if (path[1] === "module_parallelisms" && path.join() !== this.path.join()) {
      this.path = path;
      this.draw([]);
    }
    this.ask();
  }

  close() {
    this.path = this.focused = [];
    this.row.remove();
  }

  /**
   * Say what is looked at once no news come any more, in one message, since a notebook draws much with
   * each: Python advises on it, and marimo runs the cells again that read the widget. In Jupyter, Python
   * then advises on every later layout unasked: a question after each edit took as long as the edit.
   */
  ask() {
    clearTimeout(this.timer);
    const { model } = this.planner;
    if (model.saved) return;
    this.timer = setTimeout(() => {
      model.set("shown", this.planner.state.layout);
      model.set("_asked", this.focused);
      model.save_changes();
    }, QUIET);
  }

  /** advice: {layout, path, choices, why, follows: whether more comes unasked}, or an empty mapping. */
  update(advice) {
    const fresh = advice?.layout === this.planner.state.layout;
    this.node.classList.toggle("old", !fresh);
    if (!fresh && !advice?.follows) this.ask();
    if (!fresh) return;
    const [first = "", ...rest] = advice.why;
    setText(this.first, first);
    setChildren(this.rest, ...rest.map((sentence) => element("p", {}, sentence)));
    this.others.hidden = !rest.length;
    this.node.hidden = !first;
    // Of another field: that of another view of the planner, or of the one before, which was asked for.
    if (advice.path.join() === this.path.join()) this.draw(advice.choices);
  }

  draw(choices) {
    const module = this.planner.rows.find((row) => row.name === this.path[2]);
    if (!module || !choices.length) return this.row.remove();
    const size = module.sizes.find((field) => field.path.join() === this.path.join());
    setAttribute(this.row, "aria-label", `Values of ${size?.input.ariaLabel ?? this.path[3]}`);
    const values = choices.map(({ value }) => value).join();
    if (values !== this.values || !this.row.children.length) {
      this.values = values;
      this.row.replaceChildren(...choices.map((choice) => this.chip(choice)));
    }
    choices.forEach((choice, at) => fill(this.row.children[at], choice));
    if (this.row.previousSibling !== module.line) module.line.after(this.row);
  }

  chip({ value }) {
    const take = () => {
      if (this.taken === value && this.scrubbing) return;
      this.taken = value;
      this.planner.send({ type: "edit", path: this.path, text: value });
    };
    return button("", () => {}, { "data-value": value,
      mousedown: (event) => event.preventDefault(), // the field keeps the focus
      click: (event) => event.detail === 0 && take(), // by key; by mouse it has been taken
      pointerdown: (event) => {
        event.target.releasePointerCapture?.(event.pointerId);
        this.scrubbing = true;
        this.taken = null;
        take();
      },
      pointerover: () => this.scrubbing && take() });
  }

  remove() {
    clearTimeout(this.timer);
    window.removeEventListener("pointerup", this.stop);
  }
}

function fill(chip, { value, change, better, memory, fits, besides, shown }) {
  const result = shown ? "now" : change || (memory ? "=" : "");
  setChildren(chip, element("b", {}, value),
    element("span", { class: better === null || !fits ? "" : better ? "better" : "worse" }, result),
    element("span", { class: "muted" }, fits ? memory : `${memory} ✗`));
  chip.classList.toggle("bad", !fits);
  setAttribute(chip, "aria-pressed", String(shown));
  const told = [besides && `with ${besides}`, !fits && "does not fit"].filter(Boolean).join("; ");
  setAttribute(chip, "title", told || null);
}
