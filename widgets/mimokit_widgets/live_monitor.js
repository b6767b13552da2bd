// The browser's half of LiveMonitor: one store for a model, however many views show it.

import { MonitorView } from "./live/monitor_view.js";
import { RunStore } from "./live/store.js";

export default () => {
  let store = null;

  function initialize({ model }) {
    store = new RunStore(model.get("_header"), model.get("_phases"), model.get("_modules"));
    const takeHistory = () => store.takeHistory(model.get("_history"));
    takeHistory();
    model.on("change:_history", takeHistory);
    model.on("msg:custom", (message) => {
      if (message.type !== "append") return;
      if (!store.append(message.start, message.rows)) model.send({ type: "resync" });
    });
  }

  function render({ model, el }) {
    const view = new MonitorView(model, store, el, !model.saved);
    return () => view.remove();
  }

  return { initialize, render };
};
