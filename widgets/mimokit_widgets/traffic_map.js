// The browser's half of TrafficMap.

import { renderedAs } from "./views/one_view.js";
import { TrafficView } from "./views/traffic_view.js";

export default {
  render: renderedAs(
    (host, send) => new TrafficView(host, (kind, byNode) =>
      send({ type: "traffic", kind, by_node: byNode })),
    { _picture: (view, model) => view.update(model.get("_picture"), model.get("_picture").numbers) },
  ),
};
