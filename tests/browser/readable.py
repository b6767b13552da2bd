"""Checks of views as Chromium draws them, on canvases, in SVG and outside of them.

Refused are texts below 4.5 : 1, texts on top of each other, texts that a canvas cuts off, numbers
with more digits than are read, canvases on which nothing is drawn, and marks of an SVG that have no
place or lie outside of it. `watched(page)` is for before the view is opened,
`unreadable(page)` for once it is drawn.
"""

from playwright.sync_api import Page

from tests.browser.settled import before, settled
from tests.charts.readable import LEAST_CONTRAST, Box, long_numbers

WATCH = """(() => {
  const proto = CanvasRenderingContext2D.prototype;
  const [clear, fill, copy] = [proto.clearRect, proto.fillText, proto.drawImage];
  const texts = new Map();
  window.canvasTexts = texts;
  proto.clearRect = function (...area) {
    texts.set(this.canvas, []);
    return clear.apply(this, area);
  };
  proto.drawImage = function (source, ...rest) {
    if (texts.has(source)) texts.set(this.canvas, [...texts.get(source)]);
    return copy.call(this, source, ...rest);
  };
  proto.fillText = function (text, x, y, ...rest) {
    const size = this.measureText(text);
    const corners = [[x - size.actualBoundingBoxLeft, y - size.actualBoundingBoxAscent],
      [x + size.actualBoundingBoxRight, y + size.actualBoundingBoxDescent]]
      .map(([a, b]) => this.getTransform().transformPoint({ x: a, y: b }));
    const [left, right] = corners.map((at) => at.x).sort((a, b) => a - b);
    const [top, bottom] = corners.map((at) => at.y).sort((a, b) => a - b);
    const middle = [Math.round((left + right) / 2), Math.round((top + bottom) / 2)];
    const [red, green, blue, alpha] = this.getImageData(...middle, 1, 1).data;
    if (!texts.has(this.canvas)) texts.set(this.canvas, []);
    if (String(text).trim()) texts.get(this.canvas).push({ text: String(text), left, top, right,
      bottom, color: this.fillStyle, ground: [red, green, blue, alpha / 255] });
    return fill.call(this, text, x, y, ...rest);
  };
})();"""

FIND = """(least) => {
  const read = (text) => {
    const context = document.createElement("canvas").getContext("2d");
    context.fillStyle = text;
    context.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = context.getImageData(0, 0, 1, 1).data;
    return [red, green, blue, alpha / 255];
  };
  const over = ([r, g, b, a], [x, y, z]) =>
    [r * a + x * (1 - a), g * a + y * (1 - a), b * a + z * (1 - a), 1];
  const groundOf = (node) => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) {
      const color = read(getComputedStyle(at).backgroundColor);
      layers.push(color);
      if (color[3] === 1) break;
    }
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255, 1]);
  };
  /** What a text of an SVG lies on: the shapes below it, then what the SVG lies on. */
  const groundInSvg = (text, middle) => {
    const below = document.elementsFromPoint(...middle);
    const shapes = below.slice(below.indexOf(text) + 1)
      .filter((node) => node.matches("path, rect, circle, polygon, ellipse"));
    const layers = shapes.map((node) => {
      const style = getComputedStyle(node);
      const [red, green, blue, alpha] = style.fill === "none" ? [0, 0, 0, 0] : read(style.fill);
      return [red, green, blue, alpha * style.fillOpacity * style.opacity];
    });
    return layers.reduceRight((ground, layer) => over(layer, ground),
      groundOf(text.ownerSVGElement.parentElement));
  };
  const luminance = (color) => {
    const [r, g, b] = color.slice(0, 3).map((value) => value / 255)
      .map((value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (first, other) => {
    const [dark, light] = [luminance(first), luminance(other)].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  };
  const found = [];
  const shown = [];
  const judge = (text, color, ground) => {
    const ratio = contrast(over(color, ground), ground);
    if (ratio < least) found.push(`'${text}' has a contrast of ${ratio.toFixed(1)} : 1`);
  };
  const meets = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3;
  const overlaps = (boxes) => boxes.forEach((box, at) => {
    for (const other of boxes.slice(at + 1)) {
      if (meets(box, other)) found.push(`'${box.text}' lies on '${other.text}'`);
    }
  });
  for (const [canvas, boxes] of window.canvasTexts) {
    if (!canvas.isConnected || !canvas.clientWidth) continue;
    const below = groundOf(canvas);
    for (const box of boxes) {
      shown.push(box.text);
      judge(box.text, read(box.color), over(box.ground, below));
      if (box.left < -1 || box.top < -1 || box.right > canvas.width + 1
        || box.bottom > canvas.height + 1) found.push(`'${box.text}' is cut off by its canvas`);
    }
    overlaps(boxes);
  }
  const isSeen = (node) => node.clientWidth > 0 && node.clientHeight > 0
    && node.checkVisibility({ opacityProperty: true, visibilityProperty: true });
  for (const canvas of document.querySelectorAll("canvas")) {
    if (!isSeen(canvas)) continue;
    const { width, height } = canvas;
    const name = canvas.ariaLabel?.split(/[.,;]/)[0] || canvas.className;
    const drawn = width && height && new Uint32Array(
      canvas.getContext("2d").getImageData(0, 0, width, height).data.buffer).some(Boolean);
    if (!drawn) found.push(`the canvas '${name}' is blank`);
  }
  for (const svg of document.querySelectorAll("svg")) {
    if (!isSeen(svg)) continue;
    const room = svg.getBoundingClientRect();
    for (const mark of svg.querySelectorAll("path, rect, circle, line, polygon")) {
      const wrong = [...mark.attributes].find(({ value }) => /NaN|undefined|Infinity/.test(value));
      if (wrong) found.push(`${wrong.name} of a ${mark.tagName} is ${wrong.value}`);
      if (!mark.getClientRects().length) continue; // Vega hides marks that have nothing to draw
      const box = mark.getBoundingClientRect();
      const beyond = Math.max(room.left - box.left, room.top - box.top, box.right - room.right,
        box.bottom - room.bottom);
      const hidden = getComputedStyle(svg).overflow !== "visible" && !mark.closest("defs, marker");
      if (hidden && beyond > 3) found.push(`a ${mark.tagName} lies ${Math.round(beyond)} pixels `
        + "outside of its picture");
    }
  }
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const boxes = [];
  while (walker.nextNode()) {
    const node = walker.currentNode;
    const parent = node.parentElement;
    const text = node.textContent.trim();
    if (!text || parent.closest("script, style, option, :disabled, [inert]")) continue;
    if (!parent.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const box = range.getBoundingClientRect();
    if (box.width < 2 || box.height < 2) continue;
    const middle = [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
    if (!document.elementsFromPoint(...middle).includes(parent)) continue; // it is scrolled away
    shown.push(text);
    if (parent.closest("svg")) {
      judge(text, read(getComputedStyle(parent).fill), groundInSvg(parent, middle));
      continue;
    }
    judge(text, read(getComputedStyle(parent).color), groundOf(parent));
    boxes.push({ text, left: box.left, right: box.right, top: box.top, bottom: box.bottom });
  }
  overlaps(boxes);
  return { found: [...new Set(found)], shown };
}"""


def watched(page: Page) -> Page:
    page.add_init_script(WATCH)
    return before(page)


def unreadable(page: Page) -> list[str]:
    """Return what a reader of a watched page could not read; empty if nothing is."""
    page.set_viewport_size({"width": page.viewport_size["width"], "height": 4000})  # type: ignore[index]
    answer = settled(page).evaluate(FIND, LEAST_CONTRAST)
    numbers = [
        f"{number} in {text!r} has too many digits"
        for text in answer["shown"]
        for number in long_numbers(Box(0, 0, 0, 0, text=text))
    ]
    return [*answer["found"], *dict.fromkeys(numbers)]
