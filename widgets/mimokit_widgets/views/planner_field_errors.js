// Sentences about what is wrong, each with the button that rights it.

import { button, element, freshId } from "mimokit/dom.js";

export class FieldErrors {
  constructor(planner) {
    this.planner = planner;
    this.node = element("div", { class: "field-errors", role: "status" });
  }

  /** Show errors [{path, sentence, label, fixes}]; returns path -> id of its sentence. */
  show(errors) {
    const key = JSON.stringify(errors);
    if (key === this.key) return this.ids;
    this.key = key;
    this.ids = new Map();
    this.node.replaceChildren(...errors.map((each) => this.one(each)));
    return this.ids;
  }

  one(error) {
    const id = freshId("field-error");
    this.ids.set(error.path.join("."), id);
    const fix = error.label && button(error.label, () => {
      this.planner.send({ type: "fix", fixes: error.fixes });
      this.planner.focus(error.path);
    }, { class: "fix", title: "Apply this fix" });
    if (fix && error.result) {
      const worse = error.result.startsWith("−") || error.result.endsWith("not fit");
      fix.append(element("span", { class: worse ? "worse" : "better" }, error.result));
    }
    return element("div", { class: "field-error" },
      element("span", { class: "sign", "aria-hidden": "true" }, "!"),
      element("span", { id }, error.sentence), fix || null);
  }
}
