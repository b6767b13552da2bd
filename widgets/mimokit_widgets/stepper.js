// The browser's half of StepperView: buttons and keys here, the pictures come drawn.

import { button, element, setText } from "./views/dom.js";
import { KernelLink } from "./views/kernel_link.js";
import { isDark, watchTheme } from "./views/theme.js";

export default {
  render({ model, el }) {
    const root = element("div", { class: "mimokit stepper", tabindex: "0",
      "data-lm-suppress-shortcuts": "true" });
    const ask = (type, more = {}) => {
      tools.querySelectorAll("button").forEach((each) => { each.disabled = true; });
      kernel.send({ type, ...more });
    };
    const kernel = new KernelLink(model, root, () => {
      tools.querySelectorAll("button, input").forEach((each) => { each.disabled = true; });
    });
    const back = button("‹ Back", () => ask("back"), { title: "Look at the step before (←)" });
    const next = button("Next ›", () => ask("next"), { title: "All ranks do one step (→)" });
    const crossing = button("Next transfer", () => ask("crossing"),
      { title: "Go on until something crosses between ranks" });
    const difference = button("Next difference", () => ask("difference"),
      { title: "Go on until something differs from the plan, or the iteration ends" });
    const iteration = button("End of iteration", () => ask("iteration"));
    const found = element("span", { class: "found-differences", role: "status" });
    const slider = element("input", { type: "range", min: "0", "aria-label": "Step looked at",
      change: () => ask("look", { number: Number(slider.value) }) });
    const place = element("span", { class: "muted" });
    const tools = element("div", { class: "tools" }, back, next, crossing, difference, iteration,
      slider, place, found);
    const told = element("div", { class: "told", "aria-live": "polite" });
    const error = element("p", { class: "error", role: "alert" });
    const parts = Object.fromEntries(["clock", "picture", "crossings", "tensors", "code"]
      .map((name) => [name, element("div", { class: name === "code" ? "codes" : name })]));
    const side = element("div", { class: "side" }, parts.crossings, parts.tensors, parts.code);
    root.append(tools, told, error, parts.clock,
      element("div", { class: "body" }, parts.picture, side));
    el.append(root);

    const draw = () => {
      const shown = model.get("_shown");
      theme(); // a new theme's colours may have arrived after its name
      told.innerHTML = shown.heading;
      setText(error, shown.error);
      error.hidden = !shown.error;
      for (const [name, node] of Object.entries(parts)) node.innerHTML = shown[name];
      parts.picture.querySelectorAll(".rank").forEach((node) =>
        node.classList.toggle("chosen", Number(node.dataset.rank) === shown.selected));
      slider.max = String(Math.max(shown.taken - 1, 0));
      slider.value = String(Math.max(shown.number, 0));
      slider.disabled = shown.taken < 2;
      setText(place, shown.taken ? `step ${shown.number} of ${shown.taken} taken` : "no step taken");
      setText(found, shown.found);
      for (const each of [next, crossing, difference, iteration]) each.disabled = false;
      back.disabled = shown.number < 1;
    };
    const theme = () => { root.dataset.theme = isDark(root.parentElement) ? "dark" : "light"; };
    const clicked = (event) => {
      const rank = event.target.closest(".rank");
      const tick = event.target.closest(".tick");
      if (rank) ask("select", { rank: Number(rank.dataset.rank) });
      else if (tick && Number(tick.dataset.number) < model.get("_shown").taken) {
        ask("look", { number: Number(tick.dataset.number) });
      }
    };
    const pressed = (event) => {
      if (event.target.matches("input")) return;
      if (event.key === "ArrowRight" && !next.disabled) ask("next");
      else if (event.key === "ArrowLeft" && !back.disabled) ask("back");
      else return;
      event.preventDefault();
    };
    root.addEventListener("click", clicked);
    root.addEventListener("keydown", pressed);
    model.on("change:_shown", draw);
    model.on("msg:custom", draw);
    const stop = watchTheme(theme);
    draw();
    theme();
    return () => {
      model.off("change:_shown", draw);
      model.off("msg:custom", draw);
      stop();
      kernel.remove();
    };
  },
};
