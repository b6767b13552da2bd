// Views on a page that only remembers them: no kernel, no network.

import { element } from "./dom.js";

/** What a view needs of a model, without a kernel behind it. */
export class SavedModel {
  /** `answers` are what Python would have set: message as JSON -> traits. */
  constructor(state, answers = {}) {
    this.state = state;
    this.answers = answers;
    this.listeners = new Map();
    this.saved = true; // a model of Jupyter's has no such property
  }

  get(name) {
    return this.state[name];
  }

  set(name, value) {
    this.state[name] = value;
    this.tell(name);
  }

  on(event, listener) {
    if (!this.listeners.has(event)) this.listeners.set(event, new Set());
    this.listeners.get(event).add(listener);
  }

  off(event, listener) {
    this.listeners.get(event)?.delete(listener);
  }

  /**
   * Answer as Python would have; false if it did not say that before the page was saved. A value
   * `{ patch }` changes some entries of what stood there; a message's serial goes with it.
   */
  send({ serial, ...message }) {
    const answer = this.answers[JSON.stringify(message)];
    for (const [name, value] of Object.entries(answer ?? {})) {
      this.state[name] = value.patch ? { ...this.state[name], ...value.patch, serial } : value;
    }
    for (const name of Object.keys(answer ?? {})) this.tell(name);
    return answer !== undefined;
  }

  tell(name) {
    for (const listener of this.listeners.get(`change:${name}`) ?? []) listener();
  }

  save_changes() {}
}

/** Bytes that a page has as text, wherever they are in a state. */
export function unpacked(value) {
  if (value === null || typeof value !== "object") return value;
  if (Array.isArray(value)) return value.map(unpacked);
  if (typeof value.base64 === "string") {
    const bytes = Uint8Array.from(atob(value.base64), (letter) => letter.charCodeAt(0));
    return new DataView(bytes.buffer);
  }
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, unpacked(each)]));
}

/** Draw in every element of a class, once it is seen; draw(model, host) makes the view. */
export function showSaved(name, styles, state, answers, draw) {
  for (const host of document.querySelectorAll(`.${name}:not([data-waits])`)) {
    host.dataset.waits = "yes";
    let drawn = false;
    new ResizeObserver(() => {
      if (drawn === (host.clientWidth > 0)) return;
      if (drawn && !besideLive(host)) return; // a closed tab
      drawn = !drawn;
      host.replaceChildren();
      if (!drawn) return;
      host.append(element("style", {}, styles));
      draw(new SavedModel(unpacked(state), unpacked(answers)), host);
    }).observe(host);
  }
}

/** Whether the view itself stands next to what was saved of it; it may come later than this. */
function besideLive(host) {
  const saved = host.closest(".mimokit-saved");
  return saved !== null && getComputedStyle(saved).display === "none";
}
