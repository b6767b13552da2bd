// What a layout comes down to, in one line that stays in view while the fields are scrolled.

import { button, element, freshId, setAttribute, setChildren, setText } from "mimokit/dom.js";

export class VerdictStrip {
  /** root: of which it stays in view. */
  constructor(root) {
    this.items = new Map();
    this.list = element("dl", { class: "verdicts" });
    this.said = element("p", { class: "muted against", role: "status" });
    this.supposed = element("p", { class: "muted supposed", id: freshId("supposed") });
    this.supposed.hidden = true;
    this.node = element("section", { class: "verdict", "aria-label": "Verdict" }, this.list,
      this.supposed, this.said);
    this.follow = () => this.stay();
    window.addEventListener("scroll", this.follow, { capture: true, passive: true });
    this.resizing = new ResizeObserver(this.follow); // sizes read at an edit would delay its frame
    this.resizing.observe(root);
  }

  /** colors: of the modules, by name. */
  update(verdict, colors) {
    this.node.hidden = !verdict;
    if (!verdict) return;
    for (const line of verdict.lines) {
      if (!this.items.has(line.key)) this.items.set(line.key, new Item(line.key, this.supposed));
      this.items.get(line.key).update(line, verdict.gpu);
    }
    setChildren(this.list, ...verdict.lines.map(({ key }) => this.items.get(key).node));
    this.items.get("memory")?.fill(verdict.bar, colors, verdict.fits);
    setText(this.said, verdict.sentence || verdict.against || "");
    setText(this.supposed, verdict.supposed ?? "");
  }

  /** A notebook clips its outputs, so that `position: sticky` would stick to the output itself. */
  stay() {
    const frame = this.node.parentElement?.getBoundingClientRect();
    if (!frame?.height) return;
    const own = this.node.getBoundingClientRect().height;
    const over = Math.min(Math.max(0, topOf(this.node) - frame.top), frame.height - own);
    this.node.style.transform = over > 0 ? `translateY(${over}px)` : "";
    this.node.classList.toggle("stuck", over > 0);
  }

  remove() {
    window.removeEventListener("scroll", this.follow, { capture: true });
    this.resizing.disconnect();
  }
}

/** Where the part begins that is seen of what a node is scrolled in. */
function topOf(node) {
  let top = 0;
  for (let at = node.parentElement; at && at !== document.body; at = at.parentElement) {
    const scrolls = at.scrollHeight > at.clientHeight + 1
      && ["auto", "scroll"].includes(getComputedStyle(at).overflowY);
    if (scrolls) top = Math.max(top, at.getBoundingClientRect().top);
  }
  return top;
}

class Item {
  constructor(key, supposed) {
    this.label = element("dt", {});
    this.value = element("b", {});
    this.note = key === "seconds" ? badgeFor(supposed) : element("span", { class: "muted" });
    this.change = element("span", { class: "change" });
    this.track = key === "memory" ? element("div", { class: "track", role: "img" }) : null;
    this.node = element("div", { "data-key": key }, this.label,
      element("dd", {}, this.value, this.note, this.change, this.track));
  }

  update({ label, value, note, band, change, better, why }, gpu) {
    setText(this.label, this.track ? `${label} (${gpu})` : label);
    setText(this.value, value);
    setText(this.note, band || note);
    this.note.hidden = !(band || note);
    setAttribute(this.note, "title", [note, why].filter(Boolean).join(". ") || null);
    this.note.disabled = !why;
    setText(this.change, change.match(/\((.*)\)$/)?.[1] ?? change);
    setAttribute(this.change, "title", change || null);
    this.change.classList.toggle("better", better === true);
    this.change.classList.toggle("worse", better === false);
  }

  fill(bar, colors, fits) {
    fillMemory(this.track, bar, colors);
    this.node.classList.toggle("bad", !fits);
  }
}

/** The band of a time; pressed, it opens what widens it. */
function badgeFor(supposed) {
  const badge = button("", () => {
    supposed.hidden = !supposed.hidden;
    setAttribute(badge, "aria-expanded", String(!supposed.hidden));
  }, { class: "badge", "aria-expanded": "false", "aria-controls": supposed.id });
  return badge;
}

/** One bar: the GPU, with the modules that share it on each other. */
export function fillMemory(track, bar, colors) {
  setChildren(track, ...bar.map(([name, share]) => element("i", { title: name,
    style: `width:${(100 * share).toFixed(2)}%;background:${colors.get(name) ?? "#888"}` })));
  const words = bar.map(([name, share]) => `${name} ${Math.round(100 * share)} %`);
  setAttribute(track, "aria-label", `Of a GPU: ${words.join(", ")}`);
}
