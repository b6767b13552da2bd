// A row per run that is shown, in the order of the table: where its step goes, what its ranks work.

import { button, element, setText } from "mimokit/dom.js";
import { mix } from "mimokit/theme.js";
import { milliseconds, percent, ticks } from "mimokit/words.js";

const DIVERGING = ["#0b5a8a", "#f4f6f8", "#b8336a"];
const DIVERGING_DARK = ["#4a98c5", "#20262d", "#f07da8"];
const LEFT_TO_RIGHT = "\u200e"; // names are cut at their beginning, where those of a sweep are alike
const FULL = 0.5; // the share above or below the usual at which a colour is full

/** Rows of runs; `fill(run, track)` puts its picture into the track of a run. */
class RunRows {
  constructor(view, title, { wide = true } = {}) {
    Object.assign(this, { view });
    this.keys = element("span", { class: "keys" });
    this.axis = element("div", { class: "axis muted" });
    this.list = element("div", { class: "run-rows" });
    this.figure = element("figure", { class: wide ? "wide" : null },
      element("figcaption", {}, element("b", {}, title), this.keys), this.list, this.axis);
  }

  draw(figures, theme) {
    const drawn = this.view.drawn();
    const runs = drawn.filter((run) => this.known(figures[run.name]));
    const shown = [theme.dark, this.view.answering(), drawn.length, ...runs.map(({ name }) => name)].join("\n");
    if (shown === this.shown && figures === this.figures) return;
    Object.assign(this, { shown, figures });
    this.begin(runs.map((run) => figures[run.name]), theme);
    this.list.replaceChildren(...runs.map((run) => this.row(run, figures[run.name], theme)));
    const missing = drawn.length - runs.length;
    if (missing) this.list.append(element("p", { class: "muted" }, this.view.without(missing)));
    if (!drawn.length) {
      this.list.append(element("p", { class: "muted" }, "no run is shown: open an eye"));
    }
  }

  showKeys(keys) {
    this.keys.replaceChildren(...keys.map(([name, color]) => element("span", { class: "key" },
      element("i", { style: `background:${color}` }), name)));
  }

  row(run, figures, theme) {
    const track = element("div", { class: "track" });
    const end = element("span", { class: "end" });
    this.fill(figures, track, end, theme);
    return element("div", { class: "run-row" }, button(`${LEFT_TO_RIGHT}${run.name}`, () =>
      this.view.look(run.name), { class: "plain name", title: `All about ${run.name}` }), track, end);
  }
}

/** Where the median step of a run goes, stacked, as a mean over its ranks. */
export class StepParts extends RunRows {
  constructor(view) {
    super(view, "Where a step goes, mean rank");
  }

  known(figures) {
    return figures?.parts.length > 0;
  }

  begin(all) {
    const total = ({ parts }) => parts.reduce((sum, [, , seconds]) => sum + seconds, 0);
    this.longest = Math.max(1e-9, ...all.map(total), ...all.map(({ planned }) => planned?.[0] ?? 0));
    const colors = new Map(all.flatMap(({ parts }) => parts.map(([name, color]) => [name, color])));
    this.showKeys([...colors]);
    if (all.some(({ planned }) => planned)) {
      this.keys.append(element("span", { class: "key" }, element("i", { class: "planned" }), "predicted"));
    }
    this.axis.replaceChildren(...(all.length ? ticks(0, this.longest, 6) : []).map((tick) =>
      element("span", { style: `left:${(100 * tick) / this.longest}%` }, milliseconds(tick))));
  }

  fill({ parts, planned }, track, end) {
    const whole = parts.reduce((sum, [, , seconds]) => sum + seconds, 0);
    track.append(...parts.map(([name, color, seconds]) => {
      const share = percent(seconds / whole);
      return element("span", { title: `${name}: ${milliseconds(seconds)}, ${share}`,
        style: `background:${color};width:${(100 * seconds) / this.longest}%` });
    }));
    if (planned) track.append(this.predicted(planned));
    setText(end, milliseconds(whole));
  }

  predicted([seconds, low, high]) {
    const band = high > low ? `, ${milliseconds(low)} to ${milliseconds(high)}` : "";
    return element("span", { class: "planned", title: `predicted ${milliseconds(seconds)}${band}`,
      style: `left:${(100 * seconds) / this.longest}%` });
  }
}

/** What each rank of a run works against the median rank: who is waited for. */
export class Stragglers extends RunRows {
  constructor(view) {
    super(view, "Work of each rank, against the median of those with the same work");
  }

  known(figures) {
    return figures?.ranks.length > 1;
  }

  begin(all, theme) {
    const colors = theme.dark ? DIVERGING_DARK : DIVERGING;
    const words = ["less", "as much", "more: the others wait for it"];
    this.showKeys(colors.map((color, at) => [words[at], color]));
    setText(this.axis, all.length ? "rank 0 is at the left" : "");
  }

  fill({ ranks }, track, end, theme) {
    const canvas = element("canvas", { width: ranks.length, height: 1, role: "img",
      pointermove: (event) => {
        const at = Math.floor((event.offsetX / canvas.clientWidth) * ranks.length);
        const [rank, seconds, share] = ranks[Math.min(ranks.length - 1, Math.max(0, at))];
        this.view.tip.show(event, `rank ${rank} works ${milliseconds(seconds)}, ${signed(share)}`);
      }, pointerleave: () => this.view.tip.hide() });
    const context = canvas.getContext("2d");
    ranks.forEach(([, , share], at) => {
      context.fillStyle = diverging(share, theme.dark ? DIVERGING_DARK : DIVERGING);
      context.fillRect(at, 0, 1, 1);
    });
    const [slow, , most] = ranks.reduce((worst, each) => (each[2] > worst[2] ? each : worst));
    const words = `rank ${slow} ${signed(most)}`;
    canvas.setAttribute("aria-label", `most work: ${words}`);
    track.append(canvas);
    setText(end, words);
  }
}

function diverging(share, [less, usual, more]) {
  const full = Math.min(1, Math.abs(share) / FULL);
  return mix(usual, share < 0 ? less : more, full);
}

function signed(share) {
  return `${share < 0 ? "−" : "+"}${percent(Math.abs(share))}`;
}
