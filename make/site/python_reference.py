"""The pages of the Python reference: the public names of each package, from its `__init__.py`."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

PACKAGES = {
    "mimokit": "plan, predict, search",
    "mimokit.config": "what a file says",
    "mimokit.planning": "plans",
    "mimokit.prediction": "predictions",
    "mimokit.layout_search": "search",
    "mimokit.interop": "other tools' formats",
    "mimokit.cluster": "engines",
    "mimokit.experiment": "train, verify, sweep, step",
    "mimokit.engine": "inside a rank",
    "mimokit.engine.strategies": "strategies",
    "mimokit.engine.frames": "frame parallel",
    "mimokit.engine.weights": "weights",
    "mimokit.analysis": "tables of runs",
    "mimokit.charts": "charts",
    "mimokit_widgets": "views in a notebook",
}
"""Package -> what it is for, in the words of the menu."""


def pages() -> dict[str, str | bytes]:
    """Return path -> page, one for each package, and a list of them.

    A name that several packages have is described once, on the page of the last of them.
    """
    homes = {package: home_of_names(package) for package in PACKAGES}
    page_of = {home: package for package, named in homes.items() for home in named.values()}
    made: dict[str, str | bytes] = {}
    rows = ["# Python", "", "Generated from docstrings. A name loads when it is first used.", ""]
    rows += ["| package | for | names |", "|---|---|---|"]
    for package, named in homes.items():
        made[f"python/{package}.md"] = _page(package, named, page_of)
        names = ", ".join(f"`{name}`" for name in named)
        rows.append(f"| [`{package}`]({package}.md) | {PACKAGES[package]} | {names} |")
    made["python/index.md"] = "\n".join(rows) + "\n"
    return made


def home_of_names(package: str) -> dict[str, str]:
    """Return public name -> where it is defined, for the names of a package."""
    module = import_module(package)
    homes = {}
    for name in sorted(module.__all__, key=str.lower):
        value = getattr(module, name)
        home = getattr(value, "__module__", None) or ""
        if not isinstance(value, ModuleType) and home.startswith("mimokit"):
            homes[name] = f"{home}.{name}"
    return homes


def _page(package: str, named: dict[str, str], page_of: dict[str, str]) -> str:
    parts = [f"# {package}", (import_module(package).__doc__ or "").strip()]
    elsewhere = [name for name, home in named.items() if page_of[home] != package]
    if elsewhere:
        links = (f"- [`{name}`][{named[name]}], of `{page_of[named[name]]}`" for name in elsewhere)
        parts.append("\n".join(links))
    parts += [f"::: {home}" for home in named.values() if page_of[home] == package]
    return "\n\n".join(parts) + "\n"
