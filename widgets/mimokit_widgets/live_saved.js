// A monitor on a page that only remembers the run: no kernel, no network.

import { MonitorView } from "./live/monitor_view.js";
import { RunStore } from "./live/store.js";

/** What a view needs of a model, without a kernel behind it. */
class RememberedModel {
  constructor(state) {
    this.state = { ...state };
  }

  get(name) {
    return this.state[name];
  }

  set(name, value) {
    this.state[name] = value;
  }

  on() {}

  off() {}

  send() {}

  save_changes() {}
}

function drawRemembered(host, styles, state) {
  const store = new RunStore(state._header, state._phases, state._modules);
  store.append(0, state._history);
  const style = document.createElement("style");
  style.textContent = styles;
  host.replaceChildren(style);
  new MonitorView(new RememberedModel(state), store, host, false);
}

/** Draw a run in every element of a class, once it is seen. */
export function showRemembered(name, styles, state) {
  for (const host of document.querySelectorAll(`.${name}:not([data-waits])`)) {
    host.dataset.waits = "yes";
    const seen = new ResizeObserver(() => {
      if (!host.clientWidth) return; // hidden next to the live monitor
      seen.disconnect();
      drawRemembered(host, styles, state);
    });
    seen.observe(host);
  }
}
