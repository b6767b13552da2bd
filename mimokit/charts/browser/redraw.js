// When a picture on a canvas is drawn again.

import { watchTheme } from "./theme.js";

const LATEST = 250; // milliseconds

/** Draws on request, when the area is resized and when the theme changes. */
export class Redraw {
  constructor(area, draw) {
    /** Draw in the next frame; however often it is called before, once. */
    this.soon = () => {
      this.late ||= setTimeout(this.now, LATEST); // a page that is moved may lose its frame
      this.frame ||= requestAnimationFrame(this.now);
    };
    this.now = () => {
      clearTimeout(this.late);
      cancelAnimationFrame(this.frame);
      this.late = this.frame = 0;
      draw();
    };
    this.resizing = new ResizeObserver(this.soon);
    this.resizing.observe(area);
    this.stopWatching = watchTheme(this.soon);
  }

  end() {
    this.resizing.disconnect();
    this.stopWatching();
    clearTimeout(this.late);
    cancelAnimationFrame(this.frame);
  }
}
