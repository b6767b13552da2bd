// When a picture on a canvas is drawn again.

import { watchTheme } from "./theme.js";

/** Draws on request, when the area is resized and when the theme changes. */
export class Redraw {
  constructor(area, draw) {
    /** Draw in the next frame; however often it is called before, once. */
    this.soon = () => {
      this.frame ||= requestAnimationFrame(() => {
        this.frame = 0;
        draw();
      });
    };
    this.resizing = new ResizeObserver(this.soon);
    this.resizing.observe(area);
    this.stopWatching = watchTheme(this.soon);
  }

  end() {
    this.resizing.disconnect();
    this.stopWatching();
    if (this.frame) cancelAnimationFrame(this.frame);
  }
}
