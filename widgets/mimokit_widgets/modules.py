"""The browser's halves of widgets, each joined to the single file that a widget has to be."""

from pathlib import Path

from mimokit.charts.browser.bundle import BROWSER, joined_module, styles_of

HERE = Path(__file__).parent
SHOW = """
function show(name, styles, state, answers) {
  showSaved(name, styles, state, answers, (model, el) => {
    const made = typeof widget === "function" ? widget() : widget;
    made.initialize?.({ model });
    made.render({ model, el });
  });
}
"""


def joined_modules(entry: str) -> str:
    """Return a file next to this one and all that it imports as one module."""
    return joined_module(HERE / entry)


def saved_modules(entry: str) -> str:
    """Return the module of a widget with a function `show` that draws it without a kernel."""
    module = joined_module(BROWSER / "saved.js", HERE / entry)
    return module.replace("export default", "const widget =", 1) + SHOW


def joined_styles(*files: str) -> str:
    """Return style sheets next to this file as one, with what they import."""
    return styles_of(*(HERE / file for file in files))
