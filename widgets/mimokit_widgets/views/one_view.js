// The browser's half of a widget that is one view.

import { element } from "mimokit/dom.js";
import { Redraw } from "mimokit/redraw.js";
import { themeOf } from "mimokit/theme.js";
import { KernelLink } from "./kernel_link.js";

/**
 * How such a widget is rendered: in a root whose theme is that of the page.
 *
 * make(root, send, model) makes the view, which may have `leave` for the end of the kernel, `themed`
 * and `remove`. `follows` says by name of a trait what the view does when it has changed, in the order
 * in which it is done at first; and by name of any other event: (view, model, message) => ….
 */
export function renderedAs(make, follows, attributes = {}) {
  return ({ model, el }) => {
    const root = element("div", { class: "mimokit", "data-lm-suppress-shortcuts": "true",
      ...attributes });
    el.append(root);
    const kernel = new KernelLink(model, root, () => view.leave?.());
    const view = make(root, (message) => kernel.send(message), model);
    const heard = Object.entries(follows).map(([name, follow]) =>
      [name.includes(":") ? name : `change:${name}`, (message) => follow(view, model, message)]);
    for (const [event, follow] of heard) {
      if (event.startsWith("change:")) follow();
      model.on(event, follow);
    }
    const themed = new Redraw(root, () => { // the page has no theme for it before it is a part of that
      const before = root.dataset.theme;
      themeOf(root);
      if (root.dataset.theme !== before) view.themed?.();
    });
    return () => {
      for (const [event, follow] of heard) model.off(event, follow);
      themed.end();
      kernel.remove();
      view.remove?.();
    };
  };
}
