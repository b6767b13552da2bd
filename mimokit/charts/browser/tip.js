// A few words next to the pointer.

import { element } from "./dom.js";

export class Tip {
  constructor(host) {
    this.host = host;
    this.node = element("div", { class: "tip", "aria-hidden": "true" });
    this.node.hidden = true;
    host.append(this.node);
  }

  show(event, text) {
    const box = text && this.host.getBoundingClientRect(); // before anything is written
    this.node.hidden = !text;
    if (!text) return;
    this.node.textContent = text;
    const x = event.clientX - box.left;
    this.node.style.top = `${event.clientY - box.top + 14}px`;
    this.node.style.left = x > box.width * 0.6 ? "" : `${x + 12}px`;
    this.node.style.right = x > box.width * 0.6 ? `${box.width - x + 12}px` : "";
  }

  hide() {
    this.node.hidden = true;
  }
}
