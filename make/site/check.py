"""Whether the built pages load anything from the network."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from pathlib import Path

FETCHED = {"src", "href", "xlink:href", "srcset", "poster", "data", "action", "background"}
ELSEWHERE = re.compile(r"^\s*(https?:|wss?:|ftp:|//)", re.IGNORECASE)
FETCHED_BY_STYLE = re.compile(
    r"""url\(\s*['"]?\s*((?:https?:)?//[^'")\s]+)|@import\s+['"]?([^'";\s]+)""", re.IGNORECASE
)
FETCHED_BY_SCRIPT = re.compile(
    r"""(?:\bimport\s*\(?|\bfrom|\bfetch\s*\(|\.src\s*=|\brequire\s*\()\s*['"`]"""
    r"""((?:https?:)?//[^'"`]+)""",
    re.IGNORECASE,
)
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


def external_references(page: str) -> list[str]:
    """Return what a browser would fetch from elsewhere to show the page.

    A link that a reader may click is none; pictures within the page are looked into as well.
    """
    finder = _Finder()
    finder.feed(page)
    finder.close()
    return finder.found


class _Finder(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag if tag in ("style", "script") else ""
        for name, value in attrs:
            if value is None or (tag == "a" and name in ("href", "xlink:href")):
                continue
            if name == "style":
                self._look_into_style(value)
            elif name in FETCHED:
                self._look_at_address(value)

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "style":
            self._look_into_style(data)
        elif self._inside == "script":
            self.found += FETCHED_BY_SCRIPT.findall(data)

    def _look_into_style(self, style: str) -> None:
        self.found += [address or imported for address, imported in FETCHED_BY_STYLE.findall(style)]

    def _look_at_address(self, address: str) -> None:
        svg = "data:image/svg+xml;base64,"
        if address.startswith(svg):
            self.found += external_references(base64.b64decode(address[len(svg) :]).decode())
        elif ELSEWHERE.match(address):
            self.found.append(address)
