// Elements, in as few words as possible.

// Every widget on a page has a copy of this module, so that a counter alone would repeat ids.
const OWN = Math.random().toString(36).slice(2, 10);
let lastNumber = 0;

/** Make an element; attributes that are functions are listeners, null leaves one out. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value !== null && value !== undefined && value !== false) {
      made.setAttribute(name, value === true ? "" : value);
    }
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Make an element of an SVG picture. */
export function vector(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value !== null) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/** An id that no other element of the page has. */
export function freshId(stem) {
  lastNumber += 1;
  return `mimokit-${stem}-${OWN}-${lastNumber}`;
}

export function button(text, click, attributes = {}) {
  return element("button", { type: "button", click, ...attributes }, text);
}

/** A box to tick, which stands in a label with its words. */
export function tickBox(text, change, attributes = {}) {
  const box = element("input", { type: "checkbox", change: () => change(box.checked) });
  element("label", attributes, box, text);
  return box;
}

/** A list of which one is chosen: texts, or pairs of a value and its text. */
export function chooser(label, options, choose, attributes = {}) {
  const made = element("select", { "aria-label": label, change: () => choose(made.value),
    ...attributes });
  offer(made, options);
  return made;
}

/** Offer other options in a list; one that is already offered is left alone. */
export function offer(select, options) {
  const pairs = options.map((each) => (Array.isArray(each) ? each : [each, each]));
  const key = JSON.stringify(pairs);
  if (select.dataset.offered === key) return;
  select.dataset.offered = key;
  select.replaceChildren(...pairs.map(([value, text]) => element("option", { value }, text)));
}

/** A dot of a colour, in legends and tables. */
export function dotOf(color) {
  return element("i", { class: "dot", style: `background:${color}` });
}

/** What a line looks like in a legend: its colour, and its dashes if it has some. */
export function lineLook(color, dash) {
  return dash?.length
    ? `repeating-linear-gradient(90deg, ${color} 0 ${dash[0]}px, transparent 0 ${dash[0] + dash[1]}px)`
    : color;
}

/** Headings and rows of a table; the cells of a row are elements, or texts of cells. */
export function tableParts(heads, rows) {
  return [element("thead", {}, element("tr", {}, ...heads.map((head) =>
    element("th", { scope: "col" }, head)))),
  element("tbody", {}, ...rows.map((row) => (row instanceof Node ? row
    : element("tr", {}, ...row.map((text) => element("td", {}, text))))))];
}

/** Set a text only if it differs, so that a screen reader does not repeat it. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node, name, value) {
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

/** Give an element other children; those that it has stay where they equal the new ones. */
export function setChildren(host, ...children) {
  children.forEach((child, at) => {
    const before = host.childNodes[at];
    if (!before) host.append(child);
    else if (!before.isEqualNode(child)) before.replaceWith(child);
  });
  while (host.childNodes.length > children.length) host.lastChild.remove();
}

const STEPS = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 };

/**
 * A bar of choices of which one is taken; arrow keys move, as in any radio group.
 *
 * JupyterLab prevents what a browser does at an arrow key, so that it is done here.
 */
export function choices(label, name, options, choose) {
  const group = element("div", { class: "choices", role: "radiogroup", "aria-label": label });
  const unique = freshId(name);
  const inputs = new Map();
  const move = (event) => {
    const all = [...inputs.values()];
    if (!(event.key in STEPS)) return;
    event.preventDefault();
    event.stopPropagation();
    const next = all[(all.indexOf(event.target) + STEPS[event.key] + all.length) % all.length];
    next.focus();
    next.click();
  };
  for (const [value, text, hint] of options) {
    const input = element("input", { type: "radio", name: unique, value,
      change: () => choose(value), keydown: move });
    inputs.set(value, input);
    group.append(element("label", { title: hint ?? null }, input, element("span", {}, text)));
  }
  return {
    node: group,
    set(value) {
      for (const [each, input] of inputs) input.checked = each === value;
    },
  };
}
