// What a step takes and what fills the fullest ranks, as bars with the formula beside each number.

import { element, setText } from "./dom.js";

export class PredictionView {
  /** ask(name) is told on which GPU to predict. */
  constructor(host, ask) {
    this.gpu = element("select", { "aria-label": "GPU to predict for",
      change: () => ask(this.gpu.value) });
    this.sentence = element("p", { role: "status" });
    this.step = element("div", {});
    this.memory = element("div", {});
    this.root = element("div", { class: "prediction" },
      element("div", { class: "bar" }, element("label", {}, "predicted for ", this.gpu)),
      this.sentence, this.step, this.memory);
    host.append(this.root);
  }

  update(prediction) {
    if (!this.gpu.children.length) {
      this.gpu.append(...prediction.gpus.map((name) => element("option", { value: name }, name)));
    }
    this.gpu.value = prediction.gpu;
    setText(this.sentence, prediction.sentence);
    this.sentence.classList.toggle("bad", !prediction.fits);
    this.step.replaceChildren(...(prediction.step.length
      ? [element("h4", {}, "One step"), bar("the step", prediction.step), legend(prediction.step)]
      : []));
    this.memory.replaceChildren(...(prediction.memory.length
      ? [element("h4", {}, "Memory of each module's fullest rank, of what a GPU has"),
        ...prediction.memory.map(memoryRow), table(prediction.memory)] : []));
  }

  remove() {}
}

function bar(what, parts) {
  const track = element("div", { class: "track", role: "img",
    "aria-label": `${what}: ${parts.map(({ name, text }) => `${name} ${text}`).join(", ")}` });
  for (const { name, share, text, color } of parts) {
    const piece = element("i", { title: `${name} ${text}` });
    piece.style.background = color;
    piece.style.width = `${100 * share}%`;
    track.append(piece);
  }
  return track;
}

function legend(parts) {
  return element("div", { class: "legend" }, ...parts.map(({ name, text, color }) => {
    const dot = element("i", { class: "dot" });
    dot.style.background = color;
    return element("span", {}, dot, `${name} `, element("b", {}, text));
  }));
}

function memoryRow({ module, total, share, parts }) {
  return element("div", { class: "filled" }, element("b", {}, module), bar(module, parts),
    element("span", { class: share > 1 ? "bad" : null }, total));
}

function table(modules) {
  const rows = modules.flatMap(({ module, parts }) => parts.map((part) => {
    const dot = element("i", { class: "dot" });
    dot.style.background = part.color;
    return element("tr", { title: part.source }, element("td", {}, module),
      element("td", {}, dot, part.name), element("td", {}, part.text),
      element("td", { class: "muted" }, part.formula));
  }));
  const heads = ["module", "part", "takes", "how it comes about"];
  return element("table", {}, element("thead", {}, element("tr", {},
    ...heads.map((head) => element("th", { scope: "col" }, head)))), element("tbody", {}, ...rows));
}
