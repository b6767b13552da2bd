"""When a page has drawn all that it was asked for: no timer and no frame is pending.

`before(page)` is for before the page is opened, `settled(page)` for once something was done on it.
"""

from playwright.sync_api import Page

COUNT_PENDING = """(() => {
  const LONGER = 1000; // milliseconds: such a timer waits for Python or for the user
  const PATIENCE = 120000;
  const pending = new Set();
  const { setTimeout: later, clearTimeout: noLater, requestAnimationFrame: frame,
    cancelAnimationFrame: noFrame } = window;
  window.setTimeout = (call, wait = 0, ...rest) => {
    const number = later(() => {
      pending.delete(`timer ${number}`);
      call(...rest);
    }, wait);
    if (wait < LONGER) pending.add(`timer ${number}`);
    return number;
  };
  window.clearTimeout = (number) => {
    pending.delete(`timer ${number}`);
    noLater(number);
  };
  window.requestAnimationFrame = (call) => {
    const number = frame((time) => {
      pending.delete(`frame ${number}`);
      call(time);
    });
    pending.add(`frame ${number}`);
    return number;
  };
  window.cancelAnimationFrame = (number) => {
    pending.delete(`frame ${number}`);
    noFrame(number);
  };
  const nextFrame = () => new Promise((done) => frame(done));
  window.settled = async () => {
    const until = performance.now() + PATIENCE;
    for (let still = 0; still < 2; still = pending.size ? 0 : still + 1) {
      await nextFrame();
      await nextFrame(); // observers of sizes are told between two frames
      if (performance.now() > until) throw new Error(`pending stay ${[...pending].join()}`);
    }
  };
})();"""


def before(page: Page) -> Page:
    page.add_init_script(COUNT_PENDING)
    return page


def settled(page: Page) -> Page:
    page.evaluate("window.settled()")
    return page
