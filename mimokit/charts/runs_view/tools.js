// What stands above the charts of runs: what is compared with what, and the columns of the table.

import { chooser, element } from "mimokit/dom.js";
import { smoothingSlider } from "mimokit/smoothing.js";
import { duration, written } from "mimokit/words.js";

export class RunTools {
  /** `view` has a table, whose filter stands here too. */
  constructor(view) {
    const { store, table } = view;
    this.several = store.runs.length > 1;
    const compared = store.metrics.filter((metric) => metric.compared);
    this.metric = chooser("Compare by", compared.map(({ name, title }) => [name, title]),
      (name) => view.remember("metric", name));
    this.base = chooser("Baseline", store.runs.map(({ name }) => name),
      (name) => view.remember("baseline", name));
    const labelled = (text, node) => element("label", {}, `${text} `, node);
    this.node = element("span", { class: "tools" }, table.filter, table.count,
      labelled("compare by", this.metric), labelled("with", this.base),
      smoothingSlider((share) => view.smooth(share)));
  }

  draw(metric, base) {
    if (metric) this.metric.value = metric.name;
    if (base) this.base.value = base.name;
    this.metric.parentElement.hidden = !metric;
    this.base.parentElement.hidden = !base || !this.several;
  }
}

/** The columns of the table; those of metrics have the values where the pointer is. */
export function columnsOf(view) {
  const { store } = view;
  const valueOf = (run, name) => (view.pointed === null ? store.lastOf(run, name)
    : store.valueAt(run, name, view.pointed, 0));
  const metrics = store.metrics.map(({ name, kind, title }) => {
    const words = title.split(",")[0].toLowerCase();
    return { name, title: words, follows: true, order: (run) => store.lastOf(run, name),
      text: (run) => written(valueOf(run, name), kind),
      heading: () => `${words}, ${view.pointed === null ? "last" : view.pointed}` };
  });
  const took = ({ seconds }) => (seconds === null ? "–" : duration(seconds));
  return [
    { name: "status", title: "status", text: (run) => run.status, order: (run) => run.status },
    { name: "ranks", title: "ranks", text: (run) => run.ranks ?? "–", order: (run) => run.ranks },
    { name: "iterations", title: "iterations", order: (run) => run.iterations_done,
      text: (run) => run.iterations_done.toLocaleString("en") },
    { name: "seconds", title: "took", text: took, order: (run) => run.seconds },
    ...metrics,
    { name: "layout", title: "layout", text: (run) => run.layout, order: (run) => run.layout }];
}
