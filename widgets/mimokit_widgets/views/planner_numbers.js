// The numbers of a plan; each opens the formula that gives it.

import { button, element, freshId, setAttribute, setText } from "mimokit/dom.js";

export class Numbers {
  constructor() {
    this.items = new Map();
    this.list = element("dl", { class: "numbers" });
    this.formula = element("div", { class: "formula", id: freshId("formula"), role: "status" });
    this.formula.hidden = true;
    this.node = element("section", { "aria-label": "Numbers" }, this.list, this.formula);
  }

  update(figures) {
    const keys = figures.map((figure) => figure.key).join("\n");
    if (keys !== this.keys) {
      this.keys = keys;
      this.items.clear();
      this.list.replaceChildren(...figures.map((figure) => this.item(figure.key)));
    }
    for (const figure of figures) {
      const item = this.items.get(figure.key);
      setText(item.label, figure.label);
      setText(item.value, figure.value);
      item.formula = figure.formula;
      if (this.open === figure.key) setText(this.formula, `${figure.label} = ${figure.formula}`);
    }
    if (this.open && !this.items.has(this.open)) this.show(null);
  }

  item(key) {
    const value = button("", () => this.show(this.open === key ? null : key), {
      title: "How this number comes about", "aria-expanded": "false",
      "aria-controls": this.formula.id });
    const label = element("dt", {});
    this.items.set(key, { label, value, formula: "" });
    return element("div", {}, label, element("dd", {}, value));
  }

  show(key) {
    this.open = key;
    for (const [each, item] of this.items) {
      setAttribute(item.value, "aria-expanded", String(each === key));
    }
    const item = key === null ? null : this.items.get(key);
    this.formula.hidden = !item;
    setText(this.formula, item ? `${item.label.textContent} = ${item.formula}` : "");
  }
}
