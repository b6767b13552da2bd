// Sentences about what is wrong, each with the button that rights it.

import { button, element, freshId } from "./dom.js";

export class Complaints {
  constructor(planner) {
    this.planner = planner;
    this.node = element("div", { class: "complaints", role: "status" });
  }

  /** Show complaints [{path, sentence, label, fix}]; returns path -> id of its sentence. */
  show(complaints) {
    const key = JSON.stringify(complaints);
    if (key === this.key) return this.ids;
    this.key = key;
    this.ids = new Map();
    this.node.replaceChildren(...complaints.map((each) => this.one(each)));
    return this.ids;
  }

  one(complaint) {
    const id = freshId("complaint");
    this.ids.set(complaint.path.join("."), id);
    const fix = complaint.label && button(complaint.label, () => {
      this.planner.send({ type: "fix", fix: complaint.fix });
      this.planner.focus(complaint.path);
    }, { class: "fix", title: "Apply this fix" });
    return element("div", { class: "complaint" },
      element("span", { class: "sign", "aria-hidden": "true" }, "!"),
      element("span", { id }, complaint.sentence), fix || null);
  }
}
