// The browser's half of RankMap.

import { element } from "./views/dom.js";
import { RankMapView } from "./views/rank_map_view.js";

export default {
  render({ model, el }) {
    const root = element("div", { class: "mimokit", "data-lm-suppress-shortcuts": "true" });
    const body = element("div", {});
    root.append(body);
    el.append(root);
    const view = new RankMapView(body, (rank) => model.send({ type: "select", rank }));
    const draw = () => view.update(model.get("_picture"), model.get("_numbers"));
    const look = () => view.showDetails(model.get("_looked_at"));
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
