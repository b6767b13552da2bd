// The browser's half of ScheduleView: sliders above the timeline of all schedules.

import { element } from "mimokit/dom.js";
import { renderedAs } from "./views/one_view.js";
import { TimelineView } from "mimokit/timeline_view.js";

const SLIDERS = [["stages", "stages of the language model", 1, 16],
  ["encoder_stages", "stages of the encoder", 0, 16], ["microbatches", "micro-batches", 1, 64],
  ["chunks", "chunks where interleaved", 1, 4]];

class Schedules {
  constructor(root, send) {
    this.sliders = new Map(SLIDERS.map(([name, words, least, most]) => {
      const number = element("output", {});
      const input = element("input", { type: "range", min: least, max: most, "aria-label": words,
        input: () => { number.value = input.value; send({ name, value: Number(input.value) }); } });
      return [name, { input, number, node: element("label", { class: "slider" }, words, input, number) }];
    }));
    root.append(element("div", { class: "sliders" },
      ...[...this.sliders.values()].map((slider) => slider.node)));
    this.timeline = new TimelineView(root);
  }

  set(name, value) {
    const { input, number } = this.sliders.get(name);
    if (document.activeElement !== input) input.value = value;
    number.value = value;
  }

  remove() {
    this.timeline.remove();
  }
}

const follows = Object.fromEntries(SLIDERS.map(([name]) =>
  [name, (view, model) => view.set(name, model.get(name))]));

export default {
  render: renderedAs((root, send) => new Schedules(root, send),
    { ...follows, _timeline: ({ timeline }, model) => timeline.update(model.get("_timeline")) }),
};
