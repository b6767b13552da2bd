// The pictures of a plan, one tab each; a tab whose plan does not exist is absent.

import { BatchSplitView } from "./batch_split_view.js";
import { button, element, freshId, setChildren, setText } from "mimokit/dom.js";
import { FrameView } from "./frame_view.js";
import { PredictionView } from "./prediction_view.js";
import { RankMapView } from "./rank_map_view.js";
import { SamplesView } from "./samples_view.js";
import { SearchView } from "./search_view.js";
import { TrafficView } from "./traffic_view.js";
import { fillMemory } from "./verdict_strip.js";

/** Layouts side by side: what differs, and below it, closed, what is equal. */
class ComparisonView {
  constructor(host, send) {
    this.send = send;
    this.table = element("table", { class: "lines" });
    this.count = element("summary", {});
    this.equal = element("table", { class: "lines" });
    this.root = element("div", { class: "comparison" },
      element("div", { class: "tools" }, button("Pin this layout as well",
        () => send({ type: "pin" }), { title: "Edits of the model and the batch hold for all" })),
      element("div", { class: "scrolled" }, this.table),
      element("details", {}, this.count, this.equal));
    host.append(this.root);
  }

  update(compare) {
    const lines = [...compare.verdicts, ...compare.lines];
    const equal = lines.filter(({ differs }) => !differs);
    setText(this.count, equal.length === lines.length ? "The layouts are the same."
      : `${equal.length} of ${lines.length} lines are equal`);
    const last = compare.names.length - 1;
    const head = compare.names.map((name, at) => element("th", { scope: "col" },
      at === last ? "now" : `pinned${last > 1 ? ` ${at + 1}` : ""}`,
      element("div", { class: "muted" }, name),
      compare.unlike[at] ? element("div", { class: "muted" }, compare.unlike[at]) : null,
      ...(at < last ? [button("×", () => this.send({ type: "unpin", place: at }),
        { class: "plain", "aria-label": `Unpin ${name}` })] : [])));
    const colors = new Map(Object.entries(compare.colors));
    const cell = ({ values, notes, bars, bad }, at) => {
      const track = bars[at]?.length ? element("div", { class: "track", role: "img" }) : null;
      if (track) fillMemory(track, bars[at], colors);
      return element("td", { class: bad[at] ? "bad" : "" },
        values[at].replaceAll(" %", "\u00a0%"),
        notes[at] ? element("div", { class: "muted" }, notes[at]) : null, track);
    };
    const row = (line, cells) => element("tr", {},
      element("th", { scope: "row" }, line.label), ...cells);
    this.table.replaceChildren(
      element("thead", {}, element("tr", {}, element("th", {}), ...head)),
      element("tbody", {}, ...lines.filter(({ differs }) => differs).map((line) =>
        row(line, line.values.map((_, at) => cell(line, at))))));
    this.equal.replaceChildren(...equal.map((line) =>
      row(line, [element("td", {}, line.values[0])])));
  }
}

const MAKERS = {
  ranks: (host, send) => new RankMapView(host, (rank) => send({ type: "select", rank })),
  batch: (host, send) => new BatchSplitView(host, (sample, backward) =>
    send({ type: "sample", sample, backward })),
  traffic: (host, send) => new TrafficView(host, (kind, byNode) =>
    send({ type: "traffic", kind, by_node: byNode })),
  frames: (host, send) => new FrameView(host, send),
  samples: (host, send) => new SamplesView(host, send),
  prediction: (host, send, planner) => new PredictionView(host, planner),
  search: (host, send) => new SearchView(host, send),
  compare: (host, send) => new ComparisonView(host, send),
};

export class Pictures {
  constructor(planner) {
    this.planner = planner;
    this.model = planner.model;
    this.send = planner.send;
    this.views = new Map();
    this.bar = element("div", { class: "tabs", role: "tablist", "aria-label": "Pictures",
      keydown: (event) => this.key(event) });
    this.panel = element("div", { class: "panel", role: "tabpanel", id: freshId("panel") });
    this.node = element("section", { class: "pictures", "aria-label": "Pictures" }, this.bar,
      this.panel);
  }

  update(state) {
    this.tabs = state.tabs;
    const focused = this.bar.contains(document.activeElement);
    setChildren(this.bar, ...state.tabs.map((tab) => this.tab(tab, tab.name === state.tab)));
    if (focused) this.bar.querySelector("[aria-selected=true]")?.focus();
    if (!state.tabs.length) {
      this.panel.replaceChildren(element("p", { class: "muted" },
        "There is no valid layout yet; its pictures will appear here."));
      return;
    }
    if (!this.views.size) this.panel.replaceChildren();
    this.shown = state.tab;
    const view = this.view(state.tab);
    for (const [name, { host }] of this.views) host.hidden = name !== state.tab;
    this.feed(view, state); // once it is seen: what is hidden has no width to be arranged in
  }

  tab({ name, title }, chosen) {
    return element("button", { type: "button", role: "tab", "aria-selected": String(chosen),
      "aria-controls": this.panel.id, tabindex: chosen ? 0 : -1, "data-tab": name,
      click: () => this.send({ type: "tab", name }) }, title);
  }

  key(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const at = this.tabs.findIndex((tab) => tab.name === this.shown);
    const next = this.tabs[(at + by + this.tabs.length) % this.tabs.length];
    this.send({ type: "tab", name: next.name });
  }

  view(name) {
    if (!this.views.has(name)) {
      const host = element("div", {});
      this.panel.append(host);
      this.views.set(name, { host, view: MAKERS[name](host, this.send, this.planner) });
    }
    return this.views.get(name).view;
  }

  feed(view, state) {
    view.suppose?.(state.fields);
    const picture = state[state.tab];
    if (state.tab === "frames" && view.picture
      && this.planner.outbox.awaits("frames", state.serial)) return; // a newer one comes
    view.update(picture, state.numbers);
    if (state.tab === "ranks") view.showDetails(state.details);
    else if (state.tab === "batch") view.showWalk(state.walk);
    else if (state.tab === "search") view.showSearch(this.model.get("_search"));
  }

  remove() {
    for (const { view } of this.views.values()) view.remove?.();
  }
}
