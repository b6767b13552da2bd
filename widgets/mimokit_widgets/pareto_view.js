// The browser's half of ParetoView.

import { FoundView } from "./views/found_view.js";
import { renderedAs } from "./views/one_view.js";

export default {
  render: renderedAs(
    (host, send) => new FoundView(host, (index) => send({ type: "take_found", index })),
    {
      _found: (view, model) => view.update(model.get("_found")),
      _loaded: (view, model) => view.show(model.get("_loaded")),
    },
    { role: "region", "aria-label": "Found layouts" },
  ),
};
