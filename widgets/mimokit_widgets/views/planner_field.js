// A field of the planner: a text that Python reads as a number.

import { chooser, element, setAttribute } from "mimokit/dom.js";

export class Field {
  /** options: {label, name, path, placeholder, wide, text, hint, options: of which one is taken} */
  constructor(planner, options) {
    this.planner = planner;
    this.path = options.path;
    const path = options.path.join(".");
    this.input = options.options?.length ? chooser(options.name,
      [["", options.placeholder || "none"], ...options.options],
      (text) => planner.send({ type: "edit", path: this.path, text }), { "data-path": path }) : element("input", {
      type: "text", inputmode: options.text ? null : "numeric", autocomplete: "off",
      spellcheck: "false", "aria-label": options.name, placeholder: options.placeholder ?? "",
      "data-path": path, class: options.wide ? "wide" : null,
      input: () => planner.send({ type: "edit", path: this.path, text: this.input.value }),
      change: () => planner.send({ type: "settle" }),
      keydown: (event) => this.key(event, options.text),
    });
    this.node = options.label
      ? element("label", { class: "field", title: options.hint ?? null },
        element("span", {}, options.label), this.input)
      : this.input;
    planner.fields.add(this);
  }

  /** Python knows the next number that goes with the rest; with Shift it doubles or halves. */
  key(event, isText) {
    if (isText || !["ArrowUp", "ArrowDown"].includes(event.key)) return;
    event.preventDefault();
    this.planner.send({ type: "step", path: this.path, doubling: event.shiftKey,
      by: event.key === "ArrowUp" ? 1 : -1 });
  }

  /** Show a value, unless the user is just typing it. */
  set(text, placeholder) {
    if (this.input.tagName === "SELECT") {
      const known = [...this.input.options].some(({ value }) => value === text);
      if (!known) this.input.append(element("option", { value: text }, text)); // of a file
      if (this.input.value !== text) this.input.value = text; // else it is a change all the same
      return;
    }
    if (placeholder !== undefined) setAttribute(this.input, "placeholder", placeholder);
    const typing = document.activeElement === this.input
      && (this.planner.outbox.pending(this.path)
        || this.planner.state.edited.join("\n") === this.path.join("\n"));
    // The browser arranges the whole page for a new text of the field with the focus: after all else.
    if (!typing && this.input.value !== text) queueMicrotask(() => { this.input.value = text; });
  }

  mark(errorId) {
    setAttribute(this.input, "aria-invalid", errorId ? "true" : null);
    setAttribute(this.input, "aria-describedby", errorId);
  }

  remove() {
    this.planner.fields.delete(this);
  }
}
