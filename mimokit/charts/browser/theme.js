// Colours of the page around a view, and what follows from them.

/** Is the page around an element dark? */
export function isDark(node) {
  for (let at = node; at; at = at.parentElement) {
    const color = getComputedStyle(at).backgroundColor.match(/[\d.]+/g)?.map(Number);
    if (color && (color.length < 4 || color[3] > 0.5)) {
      return 0.299 * color[0] + 0.587 * color[1] + 0.114 * color[2] < 128;
    }
  }
  return false;
}

/** A colour of a style sheet as #rrggbb. */
function hex(color) {
  const context = document.createElement("canvas").getContext("2d");
  context.fillStyle = color;
  return context.fillStyle.startsWith("#") ? context.fillStyle : "#888888";
}

let themes = new WeakMap(); // of roots: a browser computes all styles before it tells a colour

/** The colours to draw with on a canvas inside an element of class mimokit. */
export function themeOf(node) {
  const root = node.closest(".mimokit");
  if (themes.has(root)) return themes.get(root);
  const style = getComputedStyle(root);
  const read = (name) => style.getPropertyValue(name).trim();
  const dark = isDark(root.parentElement);
  root.dataset.theme = dark ? "dark" : "light";
  const theme = { dark, ink: read("--ink"), muted: read("--muted"), line: read("--line"),
    paper: dark ? "#16191d" : "#ffffff", accent: read("--accent"), empty: hex(read("--fill")) };
  if (root.isConnected) themes.set(root, theme);
  return theme;
}

/** What the theme of the page comes down to. */
function pageColors() {
  const style = getComputedStyle(document.body);
  const names = ["--jp-layout-color1", "--jp-ui-font-color1", "--jp-brand-color1"];
  return [style.backgroundColor, style.color, ...names.map((name) => style.getPropertyValue(name))]
    .join();
}

const MILLISECONDS_BEFORE_A_LOOK = 60;

/**
 * Call back when the theme of the page has changed; returns how to stop.
 *
 * A notebook changes attributes of its page with every message, and colours cannot be read without
 * computing all styles: not while a key press waits for its picture.
 */
export function watchTheme(callback) {
  let last = pageColors();
  let due = null;
  const look = () => {
    due = null;
    const now = pageColors();
    if (now === last) return;
    last = now;
    themes = new WeakMap();
    callback();
  };
  const soon = () => { due ??= setTimeout(look, MILLISECONDS_BEFORE_A_LOOK); };
  const observer = new MutationObserver(soon);
  for (const node of [document.documentElement, document.body]) {
    observer.observe(node, { attributes: true });
  }
  // Style sheets of a new theme may arrive after the attribute.
  observer.observe(document.head, { childList: true });
  document.addEventListener("load", soon, true); // and have effect once they are loaded
  return () => {
    clearTimeout(due);
    observer.disconnect();
    document.removeEventListener("load", soon, true);
  };
}

/** Mix two colours #rrggbb; a share of 1 is the second. */
export function mix(low, high, share) {
  const parts = (color) => [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
  const [a, b] = [parts(low), parts(high)];
  const mixed = a.map((value, at) => Math.round(value + (b[at] - value) * share));
  return `#${mixed.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}

/** The colour at a share of the way through several, 0 is the first. */
export function ramp(colors, share) {
  const place = Math.min(0.9999, Math.max(0, share)) * (colors.length - 1);
  return mix(colors[Math.floor(place)], colors[Math.floor(place) + 1], place % 1);
}

/** A colour #rrggbb as a pixel of an ImageData. */
export function pixelOf(color, opacity = 1) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
  return ((Math.round(255 * opacity) << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

/** The luminance at which black and white have the same contrast, 4.6 : 1. */
const EQUALLY_FAR = 0.179;

/** The relative luminance of a colour #rrggbb, 0 to 1, as WCAG 2.1 defines it. */
export function luminance(color) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16) / 255)
    .map((value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/** Black or white, whichever can be read on a colour. */
export function inkOn(color) {
  return luminance(color) > EQUALLY_FAR ? "#000000" : "#ffffff";
}

/** The two shades of a module: neighbouring replicas differ, also without any hue. */
export function shades(color, theme) {
  return [color, theme.dark ? mix(color, "#ffffff", 0.38) : mix(color, "#ffffff", 0.5)];
}

/** Make a canvas as large as it is shown, sharp on every screen; returns its 2D context. */
export function prepared(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

export const FONT = 'system-ui, "Helvetica Neue", Arial, sans-serif';
