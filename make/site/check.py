"""Whether the built pages load anything from the network."""

from __future__ import annotations

import re
from pathlib import Path

from mimokit_widgets.notebooks.page import external_references

IMPORTED_BY_STYLE = re.compile(
    r"""url\(\s*['"]?\s*((?:https?:)?//[^'")\s]+)|@import\s+['"]((?:https?:)?//[^'"]+)"""
)


def loaded_from_elsewhere(site: Path) -> list[str]:
    """Return a sentence for each page or style sheet that loads something from another host."""
    told = []
    for page in sorted(site.rglob("*.html")):
        found = external_references(page.read_text(encoding="utf-8"))
        told += [f"{page.relative_to(site)} loads {address}." for address in sorted({*found})]
    for sheet in sorted(site.rglob("*.css")):
        matches = IMPORTED_BY_STYLE.findall(sheet.read_text(encoding="utf-8"))
        told += [f"{sheet.relative_to(site)} loads {''.join(match)}." for match in matches]
    return told
