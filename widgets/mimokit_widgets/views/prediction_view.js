// What a step takes and what fills the fullest ranks, as bars with the formula of each number.

import { chooser, dotOf, element, offer, setText, tableParts } from "mimokit/dom.js";
import { Field } from "./planner_field.js";
import { TimelineView } from "mimokit/timeline_view.js";

export class PredictionView {
  /** planner: of which the price is a field. */
  constructor(host, planner) {
    host.classList.add("undimmed"); // the price is asked for here, right or wrong
    this.gpu = chooser("GPU to predict for", [], (name) => planner.send({ type: "gpu", name }));
    this.price = new Field(planner, { name: "Price per GPU-hour", text: true,
      path: ["prediction", "price_per_gpu_hour"] });
    this.sentence = element("p", { role: "status" });
    this.step = element("div", {});
    this.memory = element("div", {});
    this.work = element("div", { class: "work" });
    this.opened = new Set(); // modules whose work is shown
    this.order = element("h4", {});
    const clock = element("div", { class: "clock" }, this.order);
    this.timeline = new TimelineView(clock);
    this.results = element("div", { class: "outcome" }, this.sentence, this.step, clock, this.memory, this.work);
    this.root = element("div", { class: "prediction" },
      element("div", { class: "tools asked" },
        element("label", {}, "predicted for ", this.gpu),
        element("label", { title: "for the cost of a million tokens; may be left empty" },
          "at $ ", this.price.node, " per GPU-hour")), this.results);
    host.append(this.root);
  }

  /** Show what is supposed. */
  suppose(fields) {
    offer(this.gpu, fields.gpu_names);
    this.gpu.value = fields.gpu;
    this.price.set(fields.price, "none");
  }

  update(prediction) {
    setText(this.sentence, prediction.sentence);
    this.sentence.classList.toggle("bad", !prediction.fits);
    this.step.replaceChildren(...(prediction.step.length
      ? [element("h4", {}, "One step"), bar("the step", prediction.step), legend(prediction.step)]
      : []));
    this.memory.replaceChildren(...(prediction.memory.length
      ? [element("h4", {}, "Memory of each module's fullest rank, "
        + `of the ${prediction.capacity} that a GPU has`),
        ...prediction.memory.map(memoryRow), table(prediction.memory)] : []));
    this.work.replaceChildren(...((prediction.work ?? []).length
      ? [element("h4", {}, "What each module's busiest rank does in a step"),
        ...prediction.work.map((module) => this.workOf(module))] : []));
    this.timeline.node.hidden = !prediction.timeline;
    setText(this.order, ["The step on the clock", prediction.order].filter(Boolean).join(": "));
    if (prediction.timeline) this.timeline.update(prediction.timeline);
  }

  /** One module's rows, which are shown on request: they are many. */
  workOf({ module, color, total, rows }) {
    const details = element("details", {},
      element("summary", {}, dotOf(color), `${module} `, element("b", {}, total)), workTable(rows));
    details.open = this.opened.has(module);
    details.addEventListener("toggle",
      () => this.opened[details.open ? "add" : "delete"](module));
    return details;
  }

  remove() {
    this.timeline.remove();
    this.price.remove();
  }
}

function bar(what, parts) {
  const track = element("div", { class: "track", role: "img",
    "aria-label": `${what}: ${parts.map(({ name, text }) => `${name} ${text}`).join(", ")}` });
  track.append(...parts.map(({ name, share, text, color }) => element("i", {
    title: `${name} ${text}`, style: `background:${color};width:${100 * share}%` })));
  return track;
}

function legend(parts) {
  return element("div", { class: "legend" }, ...parts.map(({ name, text, color }) =>
    element("span", {}, dotOf(color), `${name} `, element("b", {}, text))));
}

function memoryRow({ module, total, share, parts }) {
  return element("div", { class: "filled" }, element("b", {}, module), bar(module, parts),
    element("span", { class: share > 1 ? "bad" : null }, total));
}

function table(modules) {
  const rows = modules.flatMap(({ module, parts }) => parts.map((part) =>
    element("tr", { title: part.source }, element("td", {}, module),
      element("td", {}, dotOf(part.color), part.name), element("td", {}, part.text),
      element("td", { class: "muted" }, part.formula))));
  return element("table", {}, ...tableParts(["module", "part", "takes", "how it comes about"], rows));
}

const WORK = [["way", "pass"], ["what", "work"], ["count", "times"], ["operations", "operations"],
  ["bytes", "bytes"], ["launches", "launches"], ["rates", "each time"], ["seconds", "takes"],
  ["assumed", "rates are"]];

function workTable(rows) {
  const cells = (row) => WORK.map(([key]) =>
    element("td", { class: key === "rates" || key === "assumed" ? "muted" : null }, row[key]));
  return element("table", {}, ...tableParts(WORK.map(([, head]) => head),
    rows.map((row) => element("tr", {}, ...cells(row)))));
}
