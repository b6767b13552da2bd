// The browser's half of FrameBalance.

import { FrameView } from "./views/frame_view.js";
import { renderedAs } from "./views/one_view.js";

export default {
  render: renderedAs(
    (host, send) => new FrameView(host, send),
    { _picture: (view, model) => view.update(model.get("_picture"), model.get("_picture").numbers) },
  ),
};
