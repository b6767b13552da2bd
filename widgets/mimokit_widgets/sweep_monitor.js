// The browser's half of SweepMonitor: a table that changes in place, so that buttons stay in hand.

import { button, element, setAttribute, setText } from "mimokit/dom.js";
import { renderedAs } from "./views/one_view.js";
import { SortableHeads, sortedBy } from "mimokit/sorting.js";

/** One experiment: a row of texts with its button, and below it what it has to say. */
class ExperimentRow {
  constructor(name, columns, skip) {
    this.cells = new Map(columns.map((column) => [column, element("td", {}, "")]));
    this.texts = new Map([...this.cells].map(([column, cell]) => [column, cell]));
    this.bar = this.barIn("iterations");
    this.rate = this.barIn("tokens/s");
    this.step = this.barIn("step");
    this.predicted = element("i");
    this.step.parentElement.append(this.predicted);
    this.skip = button("Skip", () => {
      this.skip.disabled = true;
      skip(name);
    }, { title: `End ${name} after this iteration, or do not begin it`,
      "aria-label": `Skip ${name}` });
    this.line = element("tr", {}, ...this.cells.values(), element("td", {}, this.skip));
    this.words = element("td", { colspan: columns.length + 1 });
    this.message = element("tr", { class: "message" }, this.words);
  }

  /** A bar below the text of a cell. */
  barIn(column) {
    const [bar, text] = [element("div"), element("span")];
    this.cells.get(column).append(text, element("div", { class: "progress", "aria-hidden": "true" },
      bar));
    this.texts.set(column, text);
    return bar;
  }

  /** `most`: the largest number of each column that has a bar. */
  update(row, head, most) {
    const { "tokens/s": rate, step } = row.numbers;
    this.rate.style.width = rate ? `${(100 * rate) / most.rate}%` : "0";
    this.rate.parentElement.hidden = !rate;
    this.step.style.width = step ? `${(100 * step) / most.step}%` : "0";
    this.step.parentElement.hidden = !step;
    this.predicted.hidden = !row.predicted;
    this.predicted.style.left = `${(100 * (row.predicted ?? 0)) / most.step}%`;
    for (const [column, node] of this.texts) setText(node, row.cells[column]);
    this.bar.style.width = `${100 * row.share}%`;
    this.bar.parentElement.hidden = !row.share;
    setAttribute(this.line, "class", row.status);
    setAttribute(this.message, "class", `message ${row.status}`);
    setText(this.words, row.message);
    this.message.hidden = !row.message;
    this.skip.hidden = head.done || row.ended;
    if (head.error) this.skip.disabled = false;
  }
}

class SweepView {
  constructor(root, send) {
    Object.assign(this, { root, send, rows: new Map() });
    this.title = element("h3");
    this.stop = button("Stop", () => {
      this.stop.disabled = true;
      send({ type: "stop" });
    }, { title: "End after this iteration and begin no other experiment" });
    this.fill = element("div");
    this.progress = element("div", { class: "progress", role: "progressbar",
      "aria-label": "sweep", "aria-valuemin": 0, "aria-valuemax": 100 }, this.fill);
    this.sentence = element("p", { class: "sentence", role: "status" });
    this.error = element("p", { class: "error", role: "alert" });
    this.columns = element("tr");
    this.heads = new SortableHeads(() => this.draw(this.shown));
    this.body = element("tbody");
    root.append(element("header", {}, this.title, element("span", { class: "tools" }, this.stop)),
      this.progress, this.sentence, this.error,
      element("div", { class: "rows", tabindex: "0" }, element("table", {},
        element("thead", {}, this.columns), this.body)));
  }

  leave() {
    this.root.querySelectorAll("button").forEach((each) => { each.disabled = true; });
  }

  draw(shown) {
    this.shown = shown;
    const { head, rows, columns } = shown;
    setText(this.title, head.title);
    setText(this.sentence, head.sentence);
    setText(this.error, head.error);
    this.error.hidden = !head.error;
    this.stop.hidden = head.done;
    if (head.stopping) this.stop.disabled = true;
    if (head.error) this.stop.disabled = false;
    this.fill.style.width = `${100 * head.share}%`;
    setAttribute(this.progress, "aria-valuenow", Math.round(100 * head.share));
    if (!this.columns.children.length) {
      this.columns.append(...columns.map((name) => this.heads.add(name, name)), element("th"));
    }
    const most = { rate: Math.max(...rows.map(({ numbers }) => numbers["tokens/s"] ?? 0)),
      step: Math.max(...rows.map(({ numbers, predicted }) => Math.max(numbers.step ?? 0, predicted ?? 0))) };
    for (const row of rows) this.rowOf(row.cells.experiment, columns).update(row, head, most);
    this.arrange(rows);
  }

  /** Put the rows in the order that was clicked for, where it is another one. */
  arrange(rows) {
    const key = ({ numbers, cells }) => numbers[this.heads.name] ?? (this.heads.name in numbers
      ? null : cells[this.heads.name]);
    const lines = sortedBy(rows, key, this.heads.way).flatMap(({ cells }) => {
      const { line, message } = this.rows.get(cells.experiment);
      return [line, message];
    });
    if (lines.some((line, at) => line !== this.body.children[at])) {
      this.body.replaceChildren(...lines);
    }
  }

  rowOf(name, columns) {
    if (!this.rows.has(name)) {
      const made = new ExperimentRow(name, columns, (each) =>
        this.send({ type: "skip", name: each }));
      this.rows.set(name, made);
    }
    return this.rows.get(name);
  }
}

export default {
  render: renderedAs((root, send) => new SweepView(root, send),
    { _shown: (view, model) => view.draw(model.get("_shown")) },
    { class: "mimokit mimokit-sweep", role: "region", "aria-label": "Sweep" }),
};
