// The clock and the ranks of a step, which come drawn: clicks, and keys that move between them.

import { element } from "mimokit/dom.js";
import { RovingFocus } from "./roving_focus.js";

export class StepParts {
  /** ask(type, more): sends a message to Python; shown(): what is drawn. */
  constructor(ask, shown) {
    Object.assign(this, { ask, shown });
    const act = (event) => this.act(event);
    const pressed = (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      if (this.act(event)) event.preventDefault();
    };
    const area = (name) => element("div", { class: name, click: act, keydown: pressed });
    this.clock = area("clock");
    this.picture = area("picture");
    this.legend = element("div", { class: "clock-legend legend" });
    this.crossings = element("div", { class: "crossings" });
    this.code = element("div", { class: "codes" });
    this.body = element("div", { class: "body" }, this.picture,
      element("div", { class: "side" }, this.crossings, this.code));
    this.ticks = new RovingFocus(this.clock);
    this.ranks = new RovingFocus(this.picture);
  }

  draw(shown) {
    for (const name of ["clock", "legend", "picture", "crossings", "code"]) {
      this[name].innerHTML = shown[name];
    }
    const ranks = [...this.picture.querySelectorAll(".rank")];
    for (const rank of ranks) {
      rank.dataset.key = `rank ${rank.dataset.rank} ${rank.dataset.module}`;
      const chosen = Number(rank.dataset.rank) === shown.selected;
      rank.classList.toggle("chosen", chosen);
      rank.setAttribute("aria-pressed", String(chosen));
    }
    this.ranks.arrange(columns(ranks));
    const breaks = [...this.clock.querySelectorAll(".break")];
    breaks.forEach((each) => { each.dataset.key = `break ${each.dataset.tick}`; });
    const ticks = [...this.clock.querySelectorAll(".tick")];
    const lanes = ticks.length / (breaks.length || 1);
    const rows = Array.from({ length: lanes }, (_, lane) =>
      ticks.slice(lane * breaks.length, (lane + 1) * breaks.length));
    ticks.forEach((tick, at) => {
      tick.dataset.key = `tick ${Math.floor(at / breaks.length)} ${at % breaks.length}`;
    });
    this.ticks.arrange([breaks, ...rows]);
  }

  /** Do what a click or Enter on a rank, a tick or a breakpoint stands for. */
  act(event) {
    const { target } = event;
    const rank = target.closest(".rank");
    const tick = target.closest(".tick");
    const mark = target.closest(".break");
    if (rank) this.ask("select", { rank: Number(rank.dataset.rank) });
    else if (mark) this.ask("toggle", { tick: Number(mark.dataset.tick) });
    else if (tick) this.tick(Number(tick.dataset.number));
    else return false;
    return true;
  }

  /** A step that was done is looked at; at one to come the next run stops. */
  tick(number) {
    const { taken } = this.shown();
    const count = this.clock.querySelectorAll(".break").length;
    if (number < taken) this.ask("look", { number });
    else this.ask("toggle", { tick: number % count });
  }
}

/** Ranks in rows, as they stand in columns next to each other. */
function columns(ranks) {
  const byLeft = new Map();
  for (const rank of ranks) {
    const left = rank.getAttribute("transform").match(/\((\S+)/)[1];
    byLeft.set(left, [...(byLeft.get(left) ?? []), rank]);
  }
  const all = [...byLeft.values()];
  const most = Math.max(0, ...all.map((column) => column.length));
  return Array.from({ length: most }, (_, row) => all.map((column) => column[row] ?? null));
}
