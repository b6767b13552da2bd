// All that is known of one run: facts, where its time went, its plan, its trace.

import { button, element } from "mimokit/dom.js";
import { TimelineView } from "mimokit/timeline_view.js";

/** What a view begins with: by how much one run is slower, a waterfall, both timelines aligned. */
export class Difference {
  constructor() {
    this.node = element("section", { class: "difference", "aria-label": "What makes a run slower" });
  }

  draw(found) {
    if (found === this.found) return;
    this.found = found;
    this.forget();
    const { sentences = [], picture, timeline } = found ?? {};
    this.node.hidden = !sentences.length;
    const [headline, ...others] = sentences;
    const drawn = element("div", { class: "picture" });
    drawn.innerHTML = picture ?? ""; // made by vl-convert, which escapes texts
    const traced = element("div", { class: "traced" });
    const open = others.length || picture || timeline;
    const more = element("details", { open: true }, element("summary", {}, "where"),
      ...others.map((text) => element("p", {}, text)), drawn, traced);
    this.node.replaceChildren(element("p", { class: "headline" }, headline), ...(open ? [more] : []));
    if (!timeline) return;
    this.timeline = new TimelineView(traced);
    this.timeline.update(timeline);
  }

  forget() {
    this.timeline?.remove();
    this.timeline = null;
  }
}

export class RunLook {
  constructor(close) {
    this.close = close;
    this.node = element("section", { class: "look", tabindex: "-1" });
    this.node.hidden = true;
  }

  /** `details` is undefined until the details of the run have arrived. */
  draw(run, details, answering) {
    const key = JSON.stringify([run?.name, Boolean(details), answering]);
    if (key === this.shown) return;
    this.shown = key;
    this.forget();
    this.node.hidden = !run;
    if (!run) return;
    const { name, status, layout, error } = run;
    this.node.setAttribute("aria-label", `Run ${name}`);
    this.node.replaceChildren(
      element("header", {}, element("h4", {}, name), element("span", { class: "muted" },
        [status, layout].filter(Boolean).join(" · ")), button("Close", this.close)),
      ...(error ? [element("p", { class: "error" }, error)] : []),
      ...(details ? this.details(details) : [element("p", { class: "muted" }, answering
        ? "Reading its files …" : "This page has no more of this run: it was not looked at before "
        + "the page was saved. Run the cell, or read its folder.")]));
  }

  details({ facts, sentences, plan, trace, timeline }) {
    const rows = facts.map(([name, text]) => element("div", {}, element("dt", {}, name),
      element("dd", {}, text)));
    const words = element("ul", {}, ...sentences.map((text) => element("li", {}, text)));
    const parts = [element("dl", {}, ...rows), words];
    if (trace) {
      parts.push(element("p", {}, element("a", { href: trace, target: "_blank" }, "The file of its trace"),
        " has all iterations; Perfetto opens it."));
    }
    if (timeline) parts.push(this.traced(timeline));
    if (plan) {
      const table = element("div", { class: "plan" });
      table.innerHTML = plan; // texts in it are escaped where it is made
      parts.push(element("details", { open: true }, element("summary", {}, "Its plan"), table));
    }
    return parts;
  }

  traced(timeline) {
    const node = element("div", { class: "traced" }, element("h4", {},
      "One iteration, the one of median duration"));
    this.timeline = new TimelineView(node);
    this.timeline.update(timeline);
    return node;
  }

  /** Stop following the page with what is no longer shown. */
  forget() {
    this.timeline?.remove();
    this.timeline = null;
  }
}
