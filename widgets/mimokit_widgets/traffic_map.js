// The browser's half of TrafficMap.

import { element } from "./views/dom.js";
import { TrafficView } from "./views/traffic_view.js";

export default {
  render({ model, el }) {
    const root = element("div", { class: "mimokit" });
    const body = element("div", {});
    root.append(body);
    el.append(root);
    const view = new TrafficView(body, (kind, byNode) =>
      model.send({ type: "traffic", kind, by_node: byNode }));
    const draw = () => view.update(model.get("_picture"), model.get("_numbers"));
    draw();
    model.on("change:_picture", draw);
    return () => {
      model.off("change:_picture", draw);
      view.remove();
    };
  },
};
