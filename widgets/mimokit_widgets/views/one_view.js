// The browser's half of a widget that is one view and no more.

import { element } from "mimokit/dom.js";
import { KernelLink } from "./kernel_link.js";

/**
 * How such a widget is rendered.
 *
 * make(host, send) makes the view; follows says by name of a trait what the view does when it has
 * changed: (view, model) => …, in the order in which they are done at first.
 */
export function renderedAs(make, follows, attributes = {}) {
  return ({ model, el }) => {
    const host = element("div", {});
    const root = element("div", { class: "mimokit", "data-lm-suppress-shortcuts": "true",
      ...attributes }, host);
    el.append(root);
    const kernel = new KernelLink(model, root);
    const view = make(host, (message) => kernel.send(message));
    const heard = Object.entries(follows).map(([trait, follow]) =>
      [`change:${trait}`, () => follow(view, model)]);
    for (const [event, follow] of heard) {
      follow();
      model.on(event, follow);
    }
    return () => {
      for (const [event, follow] of heard) model.off(event, follow);
      kernel.remove();
      view.remove();
    };
  };
}
