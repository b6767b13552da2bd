// The browser's half of ParetoView.

import { element } from "./views/dom.js";
import { FoundView } from "./views/found_view.js";
import { themeOf, watchTheme } from "./views/theme.js";

export default {
  render({ model, el }) {
    const body = element("div", {});
    const root = element("div", { class: "mimokit", role: "region", "aria-label": "Found layouts",
      "data-lm-suppress-shortcuts": "true" }, body);
    el.append(root);
    const view = new FoundView(body, (index) => model.send({ type: "take_found", index }));
    const mark = () => view.show(model.get("_loaded"));
    const stopWatching = watchTheme(() => themeOf(body));
    themeOf(body);
    view.update(model.get("_found"));
    mark();
    model.on("change:_loaded", mark);
    return () => {
      model.off("change:_loaded", mark);
      stopWatching();
      view.remove();
    };
  },
};
