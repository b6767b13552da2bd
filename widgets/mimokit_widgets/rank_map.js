// The browser's half of RankMap.

import { renderedAs } from "./views/one_view.js";
import { RankMapView } from "./views/rank_map_view.js";

export default {
  render: renderedAs(
    (host, send) => new RankMapView(host, (rank) => send({ type: "select", rank })),
    {
      _picture: (view, model) => view.update(model.get("_picture"), model.get("_picture").numbers),
      _looked_at: (view, model) => view.showDetails(model.get("_looked_at")),
    },
  ),
};
