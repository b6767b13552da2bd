// The search for layouts: a button, how far it is, how to end it, and what it found.

import { button, chooser, element, offer, setAttribute, setText } from "mimokit/dom.js";
import { FoundView } from "./found_view.js";

export class SearchView {
  constructor(host, send) {
    host.classList.add("undimmed"); // a rejected search says so here
    this.send = send;
    this.gpu = chooser("GPU to search for", [], (name) => send({ type: "gpu", name }));
    this.gpus = element("input", { type: "text", inputmode: "numeric", autocomplete: "off",
      "aria-label": "GPUs to search for", class: "count",
      keydown: (event) => event.key === "Enter" && !this.goesOn && this.start() });
    this.begin = button("Search", () => this.start(), { class: "primary",
      title: "Evaluate every valid layout of this model and batch" });
    this.end = button("Cancel", () => send({ type: "cancel_search" }),
      { title: "End the search with what it has found" });
    this.filled = element("div", {});
    this.bar = element("div", { class: "progress", role: "progressbar", "aria-valuemin": 0,
      "aria-valuemax": 100, "aria-label": "Search" }, this.filled);
    this.far = element("span", { class: "muted so-far" });
    this.going = element("div", { class: "going" }, this.bar, this.far);
    this.sentence = element("p", { class: "refused", role: "alert" });
    this.aged = element("p", { class: "muted", role: "status" });
    this.hint = element("p", { class: "muted" }, "All layouts of this model and batch are tried: "
      + "modes, sizes and splits of the GPUs between the modules. What is found loads with a click.");
    this.results = element("div", {});
    this.root = element("div", { class: "search" }, element("div", { class: "tools asked" },
      element("label", {}, "on at most ", this.gpus), element("label", {}, "× ", this.gpu),
      this.begin, this.end), this.going, this.sentence, this.hint, this.aged,
    this.results);
    host.append(this.root);
  }

  start() {
    this.send({ type: "search", gpus: this.gpus.value });
  }

  /** Show which GPU is supposed. */
  suppose(fields) {
    offer(this.gpu, fields.gpu_names);
    this.gpu.value = fields.gpu;
  }

  /** Show what is asked, and which of what was found stands in the planner. */
  update(asked) {
    this.gpus.value = this.asked ? this.gpus.value : asked.gpus;
    this.asked = asked;
    setAttribute(this.gpus, "placeholder", asked.world);
    setText(this.aged, asked.aged);
    this.aged.hidden = !asked.aged;
    this.found?.show(asked.loaded);
  }

  /** Show how the search stands. */
  showSearch(search) {
    const { status, share, evaluated, sentence, found } = search;
    this.goesOn = status === "running" || status === "cancelling";
    const focused = [this.begin, this.end].includes(document.activeElement);
    this.begin.hidden = this.goesOn;
    this.end.hidden = !this.goesOn;
    this.end.disabled = status === "cancelling";
    if (focused) (this.goesOn ? this.end : this.begin).focus();
    this.gpu.disabled = this.goesOn;
    this.gpus.disabled = this.goesOn;
    this.going.hidden = !this.goesOn;
    this.filled.style.width = `${100 * share}%`;
    setAttribute(this.bar, "aria-valuenow", Math.round(100 * share));
    setText(this.far, status === "cancelling" ? "Ending …" : share < 1
      ? `${evaluated} layouts evaluated` : `${evaluated} layouts evaluated; the best are simulated`);
    setText(this.sentence, sentence);
    this.sentence.hidden = !sentence;
    this.hint.hidden = this.goesOn || Boolean(found) || Boolean(sentence);
    this.root.dataset.status = status;
    this.showFound(found);
  }

  showFound(found) {
    if (this.results.hidden !== !found) this.results.hidden = !found;
    const key = found && JSON.stringify(found);
    if (!found || key === this.key) return;
    this.key = key;
    this.found ??= new FoundView(this.results, (index) => this.send({ type: "take_found", index }));
    this.found.update(found);
    this.found.show(this.asked?.loaded ?? -1);
  }
}
