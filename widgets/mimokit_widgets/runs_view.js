// The browser's half of RunsView.

import { KernelLink } from "./views/kernel_link.js";
import { RunsView } from "mimokit/runs_view/view.js";

export default {
  render({ model, el }) {
    let [view, kernel] = [null, null];
    const draw = () => {
      view?.remove();
      kernel?.remove();
      el.replaceChildren();
      view = new RunsView(model, el, (message) => kernel.send(message));
      kernel = new KernelLink(model, view.root, () => view.leave());
    };
    draw();
    model.on("change:_about", draw);
    return () => {
      model.off("change:_about", draw);
      view.remove();
      kernel.remove();
    };
  },
};
