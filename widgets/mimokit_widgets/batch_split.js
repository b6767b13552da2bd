// The browser's half of BatchSplit.

import { BatchSplitView } from "./views/batch_split_view.js";
import { element } from "./views/dom.js";

export default {
  render({ model, el }) {
    const root = element("div", { class: "mimokit", "data-lm-suppress-shortcuts": "true" });
    const body = element("div", {});
    root.append(body);
    el.append(root);
    const view = new BatchSplitView(body, (sample, backward) =>
      model.send({ type: "sample", sample, backward }));
    const draw = () => view.update(model.get("_picture"));
    const look = () => view.showWalk(model.get("_looked_at"));
    draw();
    look();
    model.on("change:_picture", draw);
    model.on("change:_looked_at", look);
    return () => {
      model.off("change:_picture", draw);
      model.off("change:_looked_at", look);
      view.remove();
    };
  },
};
