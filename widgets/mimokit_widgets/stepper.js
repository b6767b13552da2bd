// The browser's half of StepperView: buttons, keys and tensors here, the steps come drawn.

import { button, choices, element, setText } from "mimokit/dom.js";
import { findingViews } from "./views/findings_view.js";
import { renderedAs } from "./views/one_view.js";
import { StepParts } from "./views/step_parts.js";
import { TensorList } from "./views/tensor_list.js";
import { TensorView } from "./views/tensor_view.js";

const BUTTONS = [
  ["back", "‹ Back", "Look at the step before (←)"],
  ["next", "Next ›", "All ranks do one step (→)"],
  ["crossing", "Next transfer", "Go on until something crosses between ranks"],
  ["breakpoint", "Go on", "Go on to a breakpoint, or to the end of the iteration"],
  ["first", "First difference", "Go to the first step that differs from the plan"],
  ["difference", "Next difference",
    "Go on until something differs from the plan, or the iteration ends"],
  ["iteration", "End of iteration", "Go on to the end of the optimizer step"],
];

const TRAVEL = 1600; // milliseconds that samples take along an arrow
const SPEEDS = [["2", "½×"], ["1", "1×"], ["0.4", "2½×"]];

function stepperView(root, send, model) {
  let busy = false; // a button that is disabled loses the focus, and the notebook gets the keys
  let waiting = null; // what was asked last while busy
  let slowness = 1;
  let playing = null; // the timer of the next step
  const ask = (type, more = {}) => {
    if (busy) {
      waiting = [type, more];
      return;
    }
    if (type === "back" && model.get("_shown").number < 1) return;
    busy = true;
    root.setAttribute("aria-busy", "true");
    const sent = send(onPage(type, more));
    if (!sent) pause();
    if (!sent || model.saved) rest();
  };
  const pause = () => {
    clearTimeout(playing);
    playing = null;
    setText(play, "▶ Play");
  };
  /** Go on when what crosses has arrived. */
  const goOn = () => {
    const wait = steps.picture.querySelector(".traveller") ? TRAVEL * slowness : 400;
    playing = setTimeout(() => ask("next"), wait);
  };
  const play = button("▶ Play", () => {
    if (playing) return pause();
    setText(play, "❚❚ Pause");
    return goOn();
  }, { title: "Step after step, to a breakpoint, a difference or the end of the iteration" });
  const speed = choices("Speed", "speed", SPEEDS, (value) => {
    slowness = Number(value);
    root.style.setProperty("--travel", `${TRAVEL * slowness}ms`);
  });
  speed.set("1");
  /** A saved page has steps to look at: it goes from one to the next by their numbers. */
  const onPage = (type, more) => {
    const by = { back: -1, next: 1 }[type];
    if (!model.saved || !by) return { type, ...more };
    return { type: "look", number: model.get("_shown").number + by };
  };
  const buttons = Object.fromEntries(BUTTONS.map(([type, text, title]) =>
    [type, button(text, () => ask(type), { title })]));
  const restore = button("Restore", () => ask("restore", { number: model.get("_shown").number }),
    { title: "Take the ranks back to the step looked at, bit for bit and without its edits" });
  const found = element("span", { class: "found-differences", role: "status" });
  const tools = element("div", { class: "tools" }, play, speed.node, ...Object.values(buttons),
    restore, found);
  const takeBack = button("✕ Take back", () => ask("take-back"),
    { title: "Do the steps behind this edit again, without it" });
  const told = element("div", { class: "told", "aria-live": "polite" });
  const error = element("p", { class: "error", role: "alert" });
  const steps = new StepParts(ask, () => model.get("_shown"));
  const findings = element("div", { class: "found" });
  const list = new TensorList((name) => ask("open", { name }));
  const tensor = new TensorView(ask);
  root.append(tools, told, error, steps.clock, steps.legend, steps.body, findings, list.node,
    tensor.node);

  const drawStep = () => {
    const shown = model.get("_shown");
    told.innerHTML = shown.heading;
    told.querySelector(".edited")?.append(" ", takeBack);
    setText(error, shown.error);
    error.hidden = !shown.error;
    steps.draw(shown);
    setText(found, shown.found);
    findings.replaceChildren(...findingViews(shown.findings, isDarkHere()));
    if (shown.number < 1 && document.activeElement === buttons.back) root.focus();
    buttons.back.disabled = shown.number < 1;
    restore.disabled = shown.number < 0;
  };
  const withFocus = (paint) => () => { // what is drawn anew loses it
    const focused = document.activeElement?.dataset?.key;
    paint();
    if (focused) root.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  };
  const isDarkHere = () => root.dataset.theme === "dark";
  const draw = withFocus(drawStep);
  const drawTensors = withFocus(() => {
    const opened = model.get("_opened");
    list.draw(model.get("_tensors"), opened.name, isDarkHere());
    tensor.draw(opened, isDarkHere());
  });
  const rest = () => {
    busy = false;
    root.removeAttribute("aria-busy");
    const next = waiting;
    waiting = null;
    if (next) ask(...next);
    else if (playing && model.get("_shown").stops) pause();
    else if (playing) goOn();
  };
  const pressed = (event) => {
    if (event.target.matches("input")) return;
    if (event.key === "ArrowRight") ask("next");
    else if (event.key === "ArrowLeft") ask("back");
    else return;
    event.preventDefault();
  };
  root.addEventListener("keydown", pressed);
  const leave = () => {
    root.querySelectorAll("button, input").forEach((each) => { each.disabled = true; });
  };
  const themed = () => {
    draw();
    drawTensors();
  };
  return { draw, drawTensors, rest, leave, themed, remove: pause };
}

export default {
  render: renderedAs(stepperView, {
    _shown: ({ draw }) => draw(),
    _tensors: ({ drawTensors }) => drawTensors(),
    _opened: ({ drawTensors }) => drawTensors(),
    "msg:custom": ({ rest }) => rest(),
  }, { class: "mimokit stepper", tabindex: "0" }),
};
