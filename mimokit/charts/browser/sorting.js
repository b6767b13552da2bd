// Tables that are sorted by a click on a heading.

import { button, element, setAttribute } from "./dom.js";

const DIRECTIONS = { ascending: 1, descending: -1 };

/** Items in the order of a key, null at the end; without a way as they came. */
export function sortedBy(items, key, way) {
  if (way === null) return items;
  const sign = DIRECTIONS[way];
  return [...items].sort((a, b) => {
    const [left, right] = [key(a), key(b)];
    if (left === null || right === null) return (left === null) - (right === null);
    return sign * (typeof left === "string" ? left.localeCompare(right) : left - right);
  });
}

/** Headings of columns; `changed` is called when a click has sorted by another one. */
export class SortableHeads {
  constructor(changed) {
    Object.assign(this, { changed, heads: new Map(), name: null, way: null });
  }

  add(name, title) {
    const made = button(title, () => this.sortBy(name), { class: "plain" });
    this.heads.set(name, made);
    return element("th", { scope: "col" }, made);
  }

  sortBy(name) {
    this.way = this.name === name && this.way === "ascending" ? "descending" : "ascending";
    this.name = name;
    for (const [each, node] of this.heads) {
      setAttribute(node.parentElement, "aria-sort", each === name ? this.way : null);
    }
    this.changed();
  }
}
