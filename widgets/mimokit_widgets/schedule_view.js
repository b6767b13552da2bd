// The browser's half of ScheduleView: sliders, and a timeline for every schedule.

import { element } from "mimokit/dom.js";
import { renderedAs } from "./views/one_view.js";
import { TimelineView, keysInWords } from "mimokit/timeline_view.js";

const SLIDERS = [["stages", "stages of the language model", 1, 16],
  ["encoder_stages", "stages of the encoder", 0, 16], ["microbatches", "micro-batches", 1, 64],
  ["chunks", "chunks where interleaved", 1, 4]];

class Schedules {
  constructor(host, send) {
    this.sliders = new Map(SLIDERS.map(([name, words, least, most]) => {
      const number = element("output", {});
      const input = element("input", { type: "range", min: least, max: most, "aria-label": words,
        input: () => { number.value = input.value; send({ name, value: Number(input.value) }); } });
      return [name, { input, number, node: element("label", { class: "slider" }, words, input, number) }];
    }));
    this.legend = element("div", { class: "legend timeline-legend" });
    this.list = element("div", {});
    this.views = [];
    host.append(element("div", { class: "sliders" },
      ...[...this.sliders.values()].map((slider) => slider.node)), this.legend, this.list);
  }

  set(name, value) {
    const { input, number } = this.sliders.get(name);
    if (document.activeElement !== input) input.value = value;
    number.value = value;
  }

  update(schedules) {
    while (this.views.length < schedules.length) {
      const title = element("h4", {});
      const said = element("span", { class: "muted" });
      const host = element("div", {});
      this.list.append(element("section", { class: "schedule" }, title, said, host));
      const view = new TimelineView(host);
      view.legend.hidden = true; // all have the same colours
      this.views.push({ title, said, host, view });
    }
    const keys = schedules.flatMap(({ timeline }) => timeline?.keys ?? []);
    const byName = new Map(keys.map((key) => [key.name, key]));
    this.legend.replaceChildren(...keysInWords([...byName.values()]));
    const last = Math.max(...schedules.map(({ timeline }) =>
      Math.max(0, ...(timeline?.spans ?? []).map((span) => span[3]))));
    schedules.forEach(({ name, said, timeline }, at) => {
      const shown = this.views[at];
      shown.title.textContent = name;
      shown.said.textContent = said;
      shown.host.hidden = !timeline;
      if (timeline) shown.view.update({ ...timeline, until: last, perfetto: "" }); // nothing ran;
    });
  }

  remove() {
    for (const { view } of this.views) view.remove();
  }
}

const follows = Object.fromEntries(SLIDERS.map(([name]) =>
  [name, (view, model) => view.set(name, model.get(name))]));

export default {
  render: renderedAs((host, send) => new Schedules(host, send),
    { ...follows, _schedules: (view, model) => view.update(model.get("_schedules")) }),
};
