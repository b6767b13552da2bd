// A field of the planner: a text that Python reads as a number.

import { element, setAttribute } from "./dom.js";

/** Numbers step with the arrow keys, and double or halve with Shift. */
function stepped(text, key, doubling) {
  const number = Number(text.trim() === "" ? "1" : text.replaceAll(",", ""));
  if (!Number.isInteger(number)) return null;
  const up = key === "ArrowUp";
  if (doubling) return up ? number * 2 : Math.max(1, Math.floor(number / 2));
  return up ? number + 1 : Math.max(0, number - 1);
}

export class Field {
  /** options: {label, name, path, placeholder, wide, text} */
  constructor(planner, options) {
    this.planner = planner;
    this.path = options.path;
    this.input = element("input", {
      type: "text", inputmode: options.text ? null : "numeric", autocomplete: "off",
      spellcheck: "false", "aria-label": options.name, placeholder: options.placeholder ?? "",
      "data-path": options.path.join("."), class: options.wide ? "wide" : null,
      input: () => planner.edit(this.path, this.input.value),
      change: () => planner.send({ type: "settle" }),
      keydown: (event) => this.key(event, options.text),
    });
    this.node = options.label
      ? element("label", { class: "field", title: options.hint ?? null },
        element("span", {}, options.label), this.input)
      : this.input;
    planner.fields.add(this);
  }

  key(event, isText) {
    if (isText || !["ArrowUp", "ArrowDown"].includes(event.key)) return;
    const value = stepped(this.input.value, event.key, event.shiftKey);
    event.preventDefault();
    if (value === null) return;
    this.input.value = value;
    this.planner.edit(this.path, this.input.value);
  }

  /** Show a value, unless the user is just typing it. */
  set(text, placeholder) {
    if (placeholder !== undefined) setAttribute(this.input, "placeholder", placeholder);
    const typing = document.activeElement === this.input
      && (this.planner.outbox.pending(this.path)
        || this.planner.state.edited.join("\n") === this.path.join("\n"));
    if (!typing && this.input.value !== text) this.input.value = text;
  }

  mark(errorId) {
    setAttribute(this.input, "aria-invalid", errorId ? "true" : null);
    setAttribute(this.input, "aria-describedby", errorId);
  }

  remove() {
    this.planner.fields.delete(this);
  }
}
