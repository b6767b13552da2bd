// The browser's half of TimelineView.

import { renderedAs } from "./views/one_view.js";
import { TimelineView } from "mimokit/timeline_view.js";

export default {
  render: renderedAs((host) => new TimelineView(host),
    { _timeline: (view, model) => view.update(model.get("_timeline")) }),
};
