// The way to Python, and what is said once there is none: the kernel has ended or begun anew.

import { element } from "mimokit/dom.js";

const KERNEL_ENDED = "The kernel has ended: this view shows what stood in it last. Run its cell to go on.";

const SAVED = "This is a saved page without a kernel, which has no answer to that. Run the cell in a notebook to go on.";

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

  /** Send to Python; false if there is nobody who could answer. */
  send(message) {
    try {
      const answered = this.model.send(message);
      if (!this.model.saved) return true;
      this.say(answered ? "" : SAVED);
      return answered;
    } catch {
      this.end();
      return false;
    }
  }

  say(sentence) {
    this.note.textContent = sentence;
    this.note.hidden = !sentence;
  }

  end() {
    if (!this.note.hidden) return;
    this.say(KERNEL_ENDED);
    this.ended();
  }

  remove() {
    this.model.off("comm_live_update", this.look);
  }
}
