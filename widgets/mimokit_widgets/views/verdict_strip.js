// The numbers that one decides by, in a row, each with its change against another layout.

import { element, setText } from "mimokit/dom.js";

export class VerdictStrip {
  constructor() {
    this.items = new Map();
    this.list = element("dl", { class: "verdicts" });
    this.said = element("p", { class: "muted against", role: "status" });
    this.supposed = element("div", { class: "muted supposed" });
    this.node = element("section", { class: "verdict", "aria-label": "Verdict" }, this.list,
      this.said, this.supposed);
  }

  /** colors: of the modules, by name. */
  update(verdict, colors) {
    this.node.hidden = !verdict;
    if (!verdict) return;
    const keys = verdict.lines.map(({ key }) => key).join();
    if (keys !== this.keys) {
      this.keys = keys;
      this.items = new Map(verdict.lines.map(({ key }) => [key, new Item(key)]));
      this.list.replaceChildren(...[...this.items.values()].map(({ node }) => node));
    }
    for (const line of verdict.lines) this.items.get(line.key).update(line);
    this.items.get("memory")?.fill(verdict.bar, colors, verdict.fits);
    setText(this.said, verdict.sentence || verdict.against || "");
    this.said.hidden = !this.said.textContent;
    setText(this.supposed, verdict.supposed ?? "");
    this.supposed.hidden = !verdict.supposed;
  }
}

class Item {
  constructor(key) {
    this.label = element("dt", {});
    this.value = element("b", {});
    this.note = element("span", { class: "muted" });
    this.change = element("span", { class: "change" });
    this.track = key === "memory" ? element("div", { class: "track", role: "img" }) : null;
    this.node = element("div", { "data-key": key }, this.label,
      element("dd", {}, this.value, " ", this.note, this.track, this.change));
  }

  update({ label, value, note, change, better, why }) {
    setText(this.label, label);
    setText(this.value, value);
    setText(this.note, note);
    this.note.title = why;
    setText(this.change, change);
    this.change.classList.toggle("better", better === true);
    this.change.classList.toggle("worse", better === false);
  }

  fill(bar, colors, fits) {
    fillMemory(this.track, bar, colors);
    this.node.classList.toggle("bad", !fits);
  }
}

/** One bar: the GPU, with the modules that share it on each other. */
export function fillMemory(track, bar, colors) {
  track.replaceChildren(...bar.map(([name, share]) => element("i", { title: name,
    style: `width:${(100 * share).toFixed(2)}%;background:${colors.get(name) ?? "#888"}` })));
  const words = bar.map(([name, share]) => `${name} ${Math.round(100 * share)} %`);
  track.setAttribute("aria-label", `Of a GPU: ${words.join(", ")}`);
}
