// A predicted step on the clock: one line per stage, a block for whatever it does.

import { element, setText } from "./dom.js";

export class StepTimeline {
  constructor() {
    this.lanes = element("div", { class: "lanes", role: "img" });
    this.ticks = element("div", { class: "ticks", "aria-hidden": "true" });
    this.legend = element("div", { class: "legend" });
    this.sentence = element("p", { class: "muted" });
    this.node = element("div", { class: "step-timeline" }, element("h4", {}, "The step on the clock"),
      this.lanes, this.ticks, this.legend, this.sentence);
  }

  update({ lanes, ticks, legend, sentence }) {
    this.lanes.replaceChildren(...lanes.map(({ name, blocks }) => element("div", { class: "lane" },
      element("span", { title: name }, name), element("div", {}, ...blocks.map(block)))));
    this.lanes.setAttribute("aria-label", lanes.length ? `The step on the clock, to ${ticks.at(-1)}: `
      + lanes.map(({ name, blocks }) => `${name}, ${blocks.length} blocks`).join("; ") : "");
    this.ticks.replaceChildren(...ticks.map((tick) => element("span", {}, tick)));
    this.ticks.hidden = !lanes.length;
    this.legend.replaceChildren(...legend.map(({ name, color }) => {
      const dot = element("i", { class: "dot" });
      dot.style.background = color;
      return element("span", {}, dot, name);
    }));
    setText(this.sentence, sentence);
    this.sentence.hidden = !sentence;
  }
}

function block([left, width, color, words]) {
  const piece = element("i", { title: words });
  piece.style.left = `${100 * left}%`;
  piece.style.width = `max(${100 * width}% - 1px, 1px)`;
  piece.style.background = color;
  return piece;
}
