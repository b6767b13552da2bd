// Above the charts: how far the run is, what can be done to it, its latest numbers.

import { button, element, setAttribute, setChildren, setText } from "mimokit/dom.js";
import { smoothingSlider } from "mimokit/smoothing.js";
import { duration, memory, milliseconds, percent, short } from "mimokit/words.js";

const ENDED = ["finished", "stopped", "failed", "aborted"];
const [FREEZE, FOLLOW] = ["Freeze view", "Follow again"];
const SECONDS_OF_SILENCE = 15;
const SECONDS_TO_ANSWER = 5;
const TITLES = { training: "Training", stopping: "Stopping", finished: "Training finished",
  stopped: "Training stopped", failed: "Training failed", aborted: "Training aborted" };
const NUMBERS = [["loss", "loss"], ["accuracy", "right"], ["tokens", "tokens/s"],
  ["step", "step time"], ["communication", "of step time communication"],
  ["waiting", "of step time waiting"], ["memory", "memory, largest rank"],
  ["utilisation", "of the peak FLOP/s"]];

/** What the last iteration had, in the form of what a run comes down to. */
function latest(store, all) {
  const whole = all.phases.reduce((a, b) => a + b, 0);
  const share = (seconds) => (all.ranks && seconds !== null ? seconds / whole : null);
  return { seconds: all.seconds, tokens: all.tokens, utilisation: all.utilisation,
    communication: share(all.phases[store.communication]), waiting: share(all.waiting) };
}

export class RunHead {
  constructor(view, model) {
    this.view = view;
    this.model = model;
    this.askedAt = null;
    this.title = element("h3");
    this.freeze = button(FREEZE, () => view.toggleFreeze(), { "aria-pressed": "false",
      title: "Hold the picture still; the run goes on, and nothing is lost" });
    this.whole = button("Whole run", () => view.zoomBack(), { title: "Zoom back" });
    this.stop = button("Stop", () => this.ask("stop"), { title: "End after this iteration" });
    this.abort = button("Abort", () => this.ask("abort"), {
      title: "End at once; the iteration is lost" });
    this.acts = element("span", { class: "tools run-tools", role: "group", "aria-label": "the run" },
      this.stop, this.abort);
    this.fill = element("div");
    this.progress = element("div", { class: "progress", role: "progressbar",
      "aria-label": "training", "aria-valuemin": 0 }, this.fill);
    this.done = element("span");
    this.left = element("span");
    this.sentence = element("div", { class: "sentence", role: "status" });
    this.health = element("div", { class: "health", role: "alert" });
    this.restarts = element("ul", { class: "restarts", "aria-label": "restarts" });
    this.note = element("div", { class: "note", role: "status" });
    this.values = {};
    this.nodes = [element("header", {}, this.title,
      element("span", { class: "layout" }, model.get("_layout_in_words")),
      element("span", { class: "tools" }, smoothingSlider((share) => view.smooth(share)), this.whole,
        this.freeze),
      this.acts),
    this.progress, element("div", { class: "where" }, this.done, this.left), this.sentence,
    this.health, this.restarts, this.note, this.numbers()];
  }

  numbers() {
    const boxes = NUMBERS.map(([name, text]) => {
      const value = { value: element("b", {}, "–"), label: element("span", {}, text) };
      value.box = element("div", { class: "number" }, value.value, value.label);
      this.values[name] = value;
      return value.box;
    });
    return element("div", { class: "numbers" }, ...boxes);
  }

  ask(what) {
    this.askedAt = Date.now();
    this.view.kernel.send({ type: what });
    this.view.schedule();
  }

  ended() {
    return ENDED.includes(this.model.get("status"));
  }

  draw(store) {
    const status = this.model.get("status");
    const total = this.model.get("total_iterations");
    const done = (store.last?.iteration ?? -1) + 1;
    const ended = this.ended();
    setText(this.title, this.titleOf(status, done));
    setText(this.sentence, this.model.get("sentence"));
    setText(this.health, this.model.get("health") ?? "");
    this.drawRestarts(store);
    this.fill.style.width = `${(100 * done) / Math.max(1, total)}%`;
    setAttribute(this.progress, "aria-valuemax", total);
    setAttribute(this.progress, "aria-valuenow", done);
    setText(this.done, `iteration ${done} of ${total}`);
    setText(this.left, this.timeLeft(store, ended, total));
    setText(this.note, this.noteOf(store, status, ended));
    this.drawButtons(status, ended);
    this.drawNumbers(store, ended);
  }

  titleOf(status, done) {
    if (this.view.orphaned && status === "training") return "Training, when the kernel ended";
    if (!this.view.live && status === "training") return "Training, when this page was saved";
    return status === "training" && !done ? "Starting" : TITLES[status];
  }

  timeLeft(store, ended, total) {
    const spent = store.lastTime === null ? 0 : store.lastTime - store.firstTime;
    if (ended || !this.view.live) return store.lastTime === null ? "" : duration(spent);
    if (this.model.get("status") === "stopping") return "ends after the iteration that ranks are in";
    const left = store.secondsLeft(total);
    return left === null ? "" : `about ${duration(left)} left`;
  }

  noteOf(store, status, ended) {
    const { frozen, live } = this.view;
    if (!live || ended) return this.thinning(store);
    const asked = this.askedAt !== null && Date.now() - this.askedAt > SECONDS_TO_ANSWER * 1000;
    if (asked && status === "training") {
      return "The kernel does not answer. A cell may keep it busy, or it has ended.";
    }
    if (status === "stopping") return this.stoppingNote(store);
    if (frozen !== null) {
      const newer = (store.last?.iteration ?? frozen) - frozen;
      return `The view is frozen at iteration ${frozen}; ${newer} newer have come since.`;
    }
    const silence = (Date.now() - this.view.heardAt) / 1000;
    const usual = 5 * (store.last?.seconds ?? 0);
    if (store.last && silence > Math.max(SECONDS_OF_SILENCE, usual)) {
      return `Nothing has come from the ranks for ${duration(silence)}.`;
    }
    return "";
  }

  /** How long ranks have been asked to end, once that is longer than their step. */
  stoppingNote(store) {
    this.stoppedAt ??= Date.now();
    const since = (Date.now() - this.stoppedAt) / 1000;
    if (since < Math.max(SECONDS_TO_ANSWER, 2 * (store.last?.seconds ?? 0))) return "";
    return `Asked to end ${duration(since)} ago; the ranks are still in an iteration. Abort ends them at once.`;
  }

  thinning({ every }) {
    return every > 1 ? `Of ${every} iterations one is kept in this page.` : "";
  }

  /** Why attempts ended, and how long no new step came; texts come from ranks. */
  drawRestarts(store) {
    const lines = this.model.get("restarts").map(({ step, resumed, cause }) => {
      const gap = store.secondsBefore(step);
      const waited = gap === null ? "" : `, ${duration(gap)} without a new step`;
      return `Restart in step ${step}, from step ${resumed}${waited}: ${cause}`;
    });
    setChildren(this.restarts, ...lines.map((line) => element("li", {}, line)));
  }

  drawButtons(status, ended) {
    const over = ended || !this.view.live;
    this.acts.hidden = this.freeze.hidden = over;
    this.whole.hidden = !this.view.zoomed;
    this.stop.disabled = status !== "training";
    setText(this.freeze, this.view.frozen === null ? FREEZE : FOLLOW);
    setAttribute(this.freeze, "aria-pressed", String(this.view.frozen !== null));
  }

  drawNumbers(store, ended) {
    const { values } = this;
    const all = store.last;
    if (all) {
      const shown = ended ? store.typical(this.model.get("warmup_iterations")) : latest(store, all);
      setText(values.loss.value, all.loss === null ? "–" : all.loss.toFixed(3));
      setText(values.tokens.value, short(shown.tokens));
      setText(values.step.value, shown.seconds ? milliseconds(shown.seconds) : "–");
      setText(values.memory.value, all.memory ? memory(all.memory) : "–");
      setText(values.communication.value, percent(shown.communication));
      setText(values.waiting.value, percent(shown.waiting));
      setText(values.utilisation.value, percent(shown.utilisation));
      setText(values.tokens.label, ended ? "tokens/s, median" : "tokens/s");
      const planned = this.model.get("_planned");
      const words = planned ? `, ${planned.words} ${milliseconds(planned.seconds)}` : "";
      setText(values.step.label, `${ended ? "step time, median" : "step time"}${words}`);
      setText(values.communication.label, ended ? "of all time communication"
        : "of step time communication");
    }
    values.tokens.box.hidden = all !== null && all.tokens === null;
    values.memory.box.hidden = all !== null && !all.memory;
    values.waiting.box.hidden = (all?.waiting ?? null) === null;
    values.utilisation.box.hidden = (all?.utilisation ?? null) === null;
    const tested = store.evaluations[store.evaluations.length - 1];
    values.accuracy.box.hidden = !tested;
    if (tested) {
      setText(values.accuracy.value, percent(tested.exact));
      const chance = tested.chance === null ? "" : `, chance ${percent(tested.chance)}`;
      setText(values.accuracy.label, `right${chance}`);
    }
  }
}
