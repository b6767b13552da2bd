// Runs on a page without a kernel.

import { showSaved } from "mimokit/saved.js";
import { RunsView } from "./view.js";

export function show(name, styles, state, answers) {
  showSaved(name, styles, state, answers, (model, host) => new RunsView(model, host, null));
}
