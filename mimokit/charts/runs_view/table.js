// The table of runs: eyes, order, filter; its rows stay in hand while they change.

import { button, element, setAttribute, setText, lineLook } from "mimokit/dom.js";
import { SortableHeads, sortedBy } from "mimokit/sorting.js";
import { percent, written } from "mimokit/words.js";

/** One run: its eye, its texts and the bar of its median. */
class RunRow {
  constructor(run, view, columns) {
    Object.assign(this, { run, view, columns });
    this.eye = element("input", { type: "checkbox", "aria-label": `Show ${run.name}`,
      change: () => view.setEye(run, this.eye.checked) });
    this.swatch = element("i", { class: "stroke" });
    this.name = button(run.name, () => view.look(run.name), { class: "plain name",
      title: `All about ${run.name}` });
    this.cells = columns.map((column) => (column.follows ? element("div", { class: "follows" })
      : column.text(run)));
    this.fill = element("span", { class: "fill" });
    this.interval = element("span", { class: "interval" });
    this.value = element("span", { class: "value" });
    this.bar = element("td", { class: "median", click: () => view.look(run.name) },
      element("span", { class: "track" }, this.fill, this.interval), this.value);
    this.line = element("tr", { pointerenter: () => view.light(run.name),
      pointerleave: () => view.light(null) },
    element("td", {}, this.eye), element("td", {}, this.swatch, this.name), this.bar,
    ...this.cells.map((cell) => element("td", {}, cell)));
  }

  /** Write the values where the pointer is, or the last ones. */
  follow(pointed) {
    if (pointed === this.followed) return;
    this.followed = pointed;
    this.columns.forEach((column, at) => {
      if (column.follows) setText(this.cells[at], column.text(this.run));
    });
  }

  update(state) {
    const { run } = this;
    this.eye.checked = state.eyes.has(run.name);
    const [color, dash] = this.view.strokeOf(run);
    this.swatch.style.background = lineLook(color, dash);
    setAttribute(this.line, "aria-selected", state.selected === run.name ? "true" : "false");
    this.line.classList.toggle("off", !this.eye.checked);
    this.updateBar(state);
  }

  updateBar({ metric, base, most }) {
    const median = metric && this.view.store.median(this.run, metric.name);
    this.fill.hidden = this.interval.hidden = !median;
    if (!median) return setText(this.value, "–");
    const [value, low, high] = median;
    this.fill.style.width = `${Math.min(100, (100 * value) / most)}%`;
    this.interval.hidden = low === null;
    this.interval.style.left = `${Math.max(0, (100 * low) / most)}%`;
    this.interval.style.width = `${Math.max(0, (100 * (high - low)) / most)}%`;
    const against = this.view.against(this.run);
    this.line.classList.toggle("same", against !== null && !against.significant);
    const sign = against === null ? (this.run === base ? "baseline" : "")
      : `${against.change < 0 ? "−" : "+"}${percent(Math.abs(against.change))}`;
    const doubt = against?.known && !against.significant ? ", not significant" : "";
    setText(this.value, `${written(value, metric.kind)}${sign ? `  ${sign}` : ""}`);
    setAttribute(this.bar, "title", `median ${written(value, metric.kind)}` + (low === null
      ? ", too few steps for an interval"
      : `, ${written(low, metric.kind)} to ${written(high, metric.kind)} at 95 %`)
      + (sign ? `; ${sign}${doubt}` : ""));
  }
}

export class RunTable {
  /** `columns` have name, title, text(run) and order(run); `view` says what a click does. */
  constructor(view, columns) {
    Object.assign(this, { view, columns, rows: new Map() });
    this.sorted = new SortableHeads(() => view.changed());
    this.filter = element("input", { type: "search", placeholder: "Filter",
      "aria-label": "Filter runs", title: "By name, layout and status", input: () => view.filterBy(this.filter.value) });
    this.count = element("span", { class: "muted", role: "status" });
    this.all = element("input", { type: "checkbox", "aria-label": "Show all runs of the table",
      change: () => view.setEyes(this.all.checked) });
    const heads = [element("th", {}, this.all), this.sorted.add("name", "run"),
      this.sorted.add("median", "median"),
      ...columns.map((column) => this.head(column))];
    this.body = element("tbody");
    this.shown = [];
    this.node = element("div", { class: "rows", tabindex: "0", scroll: () => this.follow() },
      element("table", {}, element("thead", {}, element("tr", {}, ...heads)), this.body));
    for (const run of view.store.runs) {
      this.rows.set(run.name, new RunRow(run, view, columns));
    }
  }

  /** Headings with the iteration of the pointer are as wide with one as without. */
  head({ name, title, follows }) {
    const head = this.sorted.add(name, title);
    if (!follows) return head;
    head.className = "follows";
    head.firstChild.style.width = `${0.9 * title.length + 4}ch`;
    return head;
  }

  /** The runs that pass the filter, in the order of the table. */
  ordered(runs) {
    const { name, way } = this.sorted;
    const column = this.columns.find((each) => each.name === name);
    const key = name === "name" ? (run) => run.name
      : column?.order ?? ((run) => this.view.medianOf(run));
    return sortedBy(runs, key, way); // best first, as they came, before a click
  }

  draw(runs, state) {
    setText(this.count, `${state.shown} of ${this.rows.size} shown`);
    const { heads } = this.sorted;
    setText(heads.get("median"), state.metric ? `median ${state.metric.title.toLowerCase()}`
      : "median");
    const lines = runs.map((run) => this.rows.get(run.name).line);
    const same = lines.length === this.body.children.length
      && lines.every((line, at) => line === this.body.children[at]);
    if (!same) this.body.replaceChildren(...lines);
    this.all.checked = runs.length > 0 && runs.every((run) => state.eyes.has(run.name));
    this.shown = runs.map((run) => this.rows.get(run.name));
    for (const row of this.shown) row.update(state);
  }

  /** Write the values where the pointer is, into the rows that can be seen; without one into all. */
  follow() {
    const { pointed } = this.view;
    const { scrollTop, clientHeight } = this.node;
    const each = this.body.clientHeight / Math.max(1, this.shown.length);
    const first = Math.max(0, Math.floor(scrollTop / each) - 2);
    const seen = pointed === null ? this.shown
      : this.shown.slice(first, first + Math.ceil(clientHeight / each) + 3);
    for (const row of seen) row.follow(pointed);
    for (const column of this.columns) {
      if (column.follows) setText(this.sorted.heads.get(column.name), column.heading());
    }
  }
}
