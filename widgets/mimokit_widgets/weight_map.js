// The browser's half of WeightMap.

import { renderedAs } from "./views/one_view.js";
import { WeightView } from "./views/weight_view.js";

export default {
  render: renderedAs(
    (host, send) => new WeightView(host, send),
    {
      _picture: (view, model) => view.update(model.get("_picture"), model.get("_numbers")),
      selected: (view, model) => view.select(model.get("selected")),
    },
  ),
};
