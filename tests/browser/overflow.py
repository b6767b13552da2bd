"""Where views as Chromium lays them out are cut off, stick out, or break a line that is one.

`overflowing(page)` names each: an element that is wider than the view or column around it, a text
that its box cuts off (what may be scrolled is not cut), a field narrower than its value, and a
button, tab, heading, summary or row of tabs on two lines.
"""

from playwright.sync_api import Page

ONE_LINE = "button, [role=tab], summary, dt, .verdicts dd"
FIND = """(oneLine) => {
  const found = [];
  const seen = (node) => node.checkVisibility({ opacityProperty: true, visibilityProperty: true })
    && node.getClientRects().length;
  const name = (node) => (node.ariaLabel || node.textContent || node.value || node.className
    || node.tagName).toString().trim().replace(/\\s+/g, " ").slice(0, 60);
  const scrolls = (node) => ["auto", "scroll"].includes(getComputedStyle(node).overflowX);
  const within = (node, root) => {
    for (let at = node.parentElement; at && at !== root; at = at.parentElement) {
      if (scrolls(at)) return true;
    }
    return false;
  };
  const widthOf = (text, node) => {
    const context = document.createElement("canvas").getContext("2d");
    context.font = getComputedStyle(node).font;
    return context.measureText(text).width;
  };
  for (const root of document.querySelectorAll(".mimokit")) {
    const edge = root.getBoundingClientRect().right + 1;
    for (const node of root.querySelectorAll("*")) {
      if (!seen(node) || node.closest("svg *")) continue;
      const style = getComputedStyle(node);
      const beyond = node.getBoundingClientRect().right - edge;
      if (beyond > 0 && !within(node, root)) found.push(`'${name(node)}' sticks out`);
      if (node.matches("td, th") && node.scrollWidth > node.clientWidth + 1) {
        found.push(`'${name(node)}' sticks out of its column`);
      }
      const hides = ["hidden", "clip"].includes(style.overflowX) && node.textContent.trim();
      if (hides && node.scrollWidth > node.clientWidth + 1 && node.clientWidth > 1) {
        found.push(`'${name(node)}' is cut off`);
      }
      if (node.matches("select, input[type=text], input[type=search]")) {
        const text = node.matches("select") ? node.selectedOptions[0]?.text ?? ""
          : node.value || node.placeholder;
        const arrow = node.matches("select, [type=search]") ? 18 : 0;
        const room = node.clientWidth - parseFloat(style.paddingLeft)
          - parseFloat(style.paddingRight) - arrow;
        if (text && widthOf(text, node) > room + 1) found.push(`'${text}' is cut off in its field`);
      }
      const rows = node.matches("[role=tablist]") ? [...node.children].filter(seen) : [];
      const bottoms = rows.map((each) => Math.round(each.getBoundingClientRect().bottom / 6));
      if (new Set(bottoms).size > 1) {
        found.push(`'${name(node)}' takes two lines`);
      }
      if (node.matches(oneLine) && !node.querySelector("b + span, br, div")) {
        const range = document.createRange();
        range.selectNodeContents(node);
        const lines = new Set([...range.getClientRects()].filter((box) => box.width > 1)
          .map((box) => Math.round(box.bottom / 6)));
        const height = parseFloat(style.lineHeight) || 1.5 * parseFloat(style.fontSize);
        if (lines.size > 1 && range.getBoundingClientRect().height > 1.7 * height) {
          found.push(`'${name(node)}' takes two lines`);
        }
      }
    }
  }
  return [...new Set(found)];
}"""


def overflowing(page: Page) -> list[str]:
    """Return what is cut off, sticks out or is broken in the views of a page."""
    return list(page.evaluate(FIND, ONE_LINE))
