// A monitor on a page that only remembers the run: no kernel, no network.

import { showSaved } from "mimokit/saved.js";
import { MonitorView } from "./live/monitor_view.js";
import { RunStore } from "./live/store.js";

export function show(name, styles, state, answers) {
  showSaved(name, styles, state, answers, (model, host) => {
    const store = new RunStore(state._header, state._phases, state._modules);
    store.takeHistory(state._history);
    new MonitorView(model, store, host, false);
  });
}
