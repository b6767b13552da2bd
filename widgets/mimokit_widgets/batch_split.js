// The browser's half of BatchSplit.

import { BatchSplitView } from "./views/batch_split_view.js";
import { renderedAs } from "./views/one_view.js";

export default {
  render: renderedAs(
    (host, send) => new BatchSplitView(host, (sample, backward) =>
      send({ type: "sample", sample, backward })),
    {
      _picture: (view, model) => view.update(model.get("_picture")),
      _looked_at: (view, model) => view.showWalk(model.get("_looked_at")),
    },
  ),
};
