// The way to Python, and what is said once there is none: the kernel has ended or begun anew.

import { element } from "./dom.js";

const KERNEL_ENDED = "The kernel has ended: this view shows what stood in it last. Run its cell to go on.";

const SIGNS_OF_USE = ["pointerenter", "focusin"];

export class KernelLink {
  /** root: the view, into which the sentence goes; ended() is called once. */
  constructor(model, root, ended = () => {}) {
    Object.assign(this, { model, root, ended });
    this.note = element("p", { class: "kernel-ended", role: "alert" });
    this.note.hidden = true;
    root.prepend(this.note);
    // Jupyter's own view of a model without a kernel has this class; a model has no such trait.
    this.look = () => {
      if (root.closest(".jupyter-widgets-disconnected")) this.end();
    };
    model.on("comm_live_update", this.look);
    // A focused button matches the notebook's shortcuts itself, whatever is said around it.
    root.addEventListener("keydown", (event) => {
      if (!event.ctrlKey && !event.metaKey && !event.altKey) event.stopPropagation();
    });
    for (const event of SIGNS_OF_USE) root.addEventListener(event, this.look);
  }

  send(message) {
    try {
      this.model.send(message);
    } catch {
      this.end();
    }
  }

  end() {
    if (!this.note.hidden) return;
    this.note.textContent = KERNEL_ENDED;
    this.note.hidden = false;
    this.ended();
  }

  remove() {
    this.model.off("comm_live_update", this.look);
  }
}
