// Which GPU is supposed: those that are shipped, and the file that a config may name.

import { element } from "mimokit/dom.js";

export class GpuChoice {
  constructor(label, send) {
    this.node = element("select", { "aria-label": label,
      change: () => send({ type: "gpu", name: this.node.value }) });
  }

  update(names, chosen) {
    const key = names.join("\n");
    if (key !== this.key) {
      this.key = key;
      this.node.replaceChildren(
        ...names.map((name) => element("option", { value: name }, name)));
    }
    this.node.value = chosen;
  }
}
