"""Checks of a chart as it is drawn: what a reader would find missing, cut off or unreadable."""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator

from tests.charts.readable import unreadable

SVG = "{http://www.w3.org/2000/svg}"
MARKS = ("mark-rect", "mark-line", "mark-symbol", "mark-area", "mark-rule", "mark-arc")
SLACK = 2.0
"""Pixels by which a mark may reach over the edge: half a stroke."""
_MOVE = re.compile(r"translate\(([-\d.e]+),?\s*([-\d.e]+)?\)")
_POINT = re.compile(r"[ML](-?[\d.]+(?:e-?\d+)?),(-?[\d.]+(?:e-?\d+)?)")
_BOX = re.compile(r"M(-?[\d.]+),(-?[\d.]+)h(-?[\d.]+)v(-?[\d.]+)h")


def faults(text: str) -> list[str]:
    root = ElementTree.fromstring(text)
    found = ["NaN in the picture"] if re.search(r"\bNaN\b|undefined|Infinity", text) else []
    marks = list(_marks(root))
    if not any(_visible(mark) for mark in marks):
        found.append(f"none of its {len(marks)} marks can be seen")
    width, height = (float(root.attrib[side]) for side in ("width", "height"))
    for mark, (x, y) in _placed(root):
        for right, down in _ends(mark):
            if not (-SLACK <= x + right <= width + SLACK and -SLACK <= y + down <= height + SLACK):
                found.append(
                    f"a mark at {x + right:.0f}, {y + down:.0f} of {width:.0f} x {height:.0f}"
                )
                break
    return [*found, *unreadable(root)]


def _marks(root: ElementTree.Element) -> Iterator[ElementTree.Element]:
    for group in root.iter(f"{SVG}g"):
        names = group.attrib.get("class", "").split()
        if "role-mark" in names and any(name in MARKS for name in names):
            yield from group


def _visible(mark: ElementTree.Element) -> bool:
    style = mark.attrib
    try:
        opacity = float(style.get("opacity", 1)) * float(style.get("fill-opacity", 1))
    except ValueError:
        return False
    painted = {style.get("fill", "none"), style.get("stroke", "none")} - {"none", "transparent"}
    return bool(opacity > 0.02 and painted and style.get("d"))


def _placed(
    root: ElementTree.Element, at: tuple[float, float] = (0.0, 0.0), inside: bool = False
) -> Iterator[tuple[ElementTree.Element, tuple[float, float]]]:
    for child in root:
        move = _MOVE.search(child.attrib.get("transform", ""))
        place = at if move is None else (at[0] + float(move[1]), at[1] + float(move[2] or 0))
        names = child.attrib.get("class", "").split()
        marks = inside or ("role-mark" in names and any(name in MARKS for name in names))
        if marks and child.tag == f"{SVG}path":
            yield child, place
        yield from _placed(child, place, marks)


def _ends(mark: ElementTree.Element) -> Iterator[tuple[float, float]]:
    path = mark.attrib.get("d", "")
    if box := _BOX.match(path):
        left, top, across, down = map(float, box.groups())
        yield left, top
        yield left + across, top + down
        return
    for right, down in _POINT.findall(path):
        yield float(right), float(down)
