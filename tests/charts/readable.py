"""Checks of the texts of a drawn chart: contrast, overlaps, axes without a title, digits."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

SVG = "{http://www.w3.org/2000/svg}"
LETTER = 0.46
"""Of the size of a text, the width of its narrowest letters on average: no false overlap."""
LINE = 0.62
"""Of the size of a text, the height of its letters."""
LEAST_CONTRAST = 4.5
"""Of small texts, in the guidelines of the W3C (WCAG 2.1, 1.4.3)."""
MOST_DIGITS = 5
"""That count, in a number without separators of thousands."""
Color: TypeAlias = tuple[float, float, float]
PAPER, BLACK = (255.0, 255.0, 255.0), (0.0, 0.0, 0.0)
THEMES: tuple[tuple[Color, Color], ...] = (
    (BLACK, PAPER),
    ((222.0, 222.0, 222.0), (17.0, 17.0, 17.0)),
)
"""Text and ground of the pages around a picture, in JupyterLab's themes."""
_MOVE = re.compile(r"translate\(([-\d.e]+),?\s*([-\d.e]+)?\)")
_TURN = re.compile(r"rotate\(([-\d.e]+)")
_BOX = re.compile(r"M(-?[\d.]+),(-?[\d.]+)h(-?[\d.]+)v(-?[\d.]+)h")
_POINT = re.compile(r"[MLC](-?[\d.]+(?:e-?\d+)?),(-?[\d.]+(?:e-?\d+)?)")
_NUMBER = re.compile(r"(?<![\w.])\d[\d,]*\.?\d*(?:e[+-]?\d+)?(?![\w.])")
_HUGE = re.compile(r"\de\+?\d")


@dataclass(frozen=True)
class Box:
    """A rectangle of a picture, in pixels; `color` and `opacity` are those that fill it."""

    left: float
    top: float
    right: float
    bottom: float
    color: Color = PAPER
    opacity: float = 1.0
    text: str = ""

    def covers(self, x: float, y: float) -> bool:
        return self.left <= x <= self.right and self.top <= y <= self.bottom

    def meets(self, other: Box) -> bool:
        """Say whether it has more than its edge in common with another."""
        across = min(self.right, other.right) - max(self.left, other.left)
        down = min(self.bottom, other.bottom) - max(self.top, other.top)
        return across > 1 and down > 1


def unreadable(root: ElementTree.Element) -> list[str]:
    texts = [box for box in _boxes(root, BLACK) if box.text]
    found = [
        f"{first.text!r} lies on {second.text!r}"
        for first, second in combinations(texts, 2)
        if first.meets(second)
    ]
    for box in texts:
        found += [f"{number} in {box.text!r} has too many digits" for number in long_numbers(box)]
    pale = dict.fromkeys(text for ink, paper in THEMES for text in _pale(root, ink, paper))
    return [*found, *pale, *untitled_axes(root)]


def _pale(root: ElementTree.Element, ink: Color, paper: Color) -> Iterator[str]:
    """Yield a sentence for every text that cannot be told from its ground on a page."""
    drawn = list(_boxes(root, ink))
    for place, box in enumerate(drawn):
        if box.text:
            ground = _ground(drawn[:place], box, paper)
            ratio = contrast(_over(box.color, box.opacity, ground), ground)
            if ratio < LEAST_CONTRAST:
                yield f"{box.text!r} has a contrast of {ratio:.1f} : 1"


def untitled_axes(root: ElementTree.Element) -> Iterator[str]:
    """Yield a sentence for every axis of numbers that says neither what they are nor their unit."""
    for group in root.iter(f"{SVG}g"):
        label = group.attrib.get("aria-label", "")
        if group.attrib.get("aria-roledescription") == "axis" and "titled" not in label:
            texts = [text.text or "" for text in group.iter(f"{SVG}text")]
            if any(_NUMBER.fullmatch(text.strip("%kMGms ")) for text in texts):
                yield f"an axis has no title: {label}"


def long_numbers(box: Box) -> list[str]:
    """Return the numbers of a text with more digits than are read."""
    return [
        number
        for number in _NUMBER.findall(box.text)
        if _HUGE.search(number)
        or ("," not in number and len(number.replace(".", "").strip("0")) > MOST_DIGITS)
    ]


def contrast(first: Color, other: Color) -> float:
    """Return the contrast of two colours as the W3C defines it, from 1 to 21."""
    light, dark = sorted((_luminance(first), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(color: Color) -> float:
    channels = [value / 255 for value in color]
    red, green, blue = (
        value / 12.92 if value <= 0.03928 else ((value + 0.055) / 1.055) ** 2.4
        for value in channels
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _ground(below: list[Box], text: Box, paper: Color) -> Color:
    x, y = (text.left + text.right) / 2, (text.top + text.bottom) / 2
    color = paper
    for box in below:
        if not box.text and box.covers(x, y):
            color = _over(box.color, box.opacity, color)
    return color


def _over(color: Color, opacity: float, ground: Color) -> Color:
    red, green, blue = (
        opacity * value + (1 - opacity) * below for value, below in zip(color, ground, strict=True)
    )
    return red, green, blue


def _boxes(
    root: ElementTree.Element, ink: Color, at: tuple[float, float] = (0.0, 0.0)
) -> Iterator[Box]:
    """Yield filled rectangles and texts in the order in which they are drawn."""
    for child in root:
        moved = child.attrib.get("transform", "")
        move = _MOVE.search(moved)
        place = at if move is None else (at[0] + float(move[1]), at[1] + float(move[2] or 0))
        fill, opacity = _color(child.attrib.get("fill", ""), ink), _opacity(child)
        if child.tag == f"{SVG}text" and fill is not None and opacity > 0.02:
            yield from _text(child, place, fill, opacity)
        if child.tag == f"{SVG}path" and fill is not None:
            yield from _filled(child.attrib.get("d", ""), place, fill, opacity)
        yield from _boxes(child, ink, place)


def _filled(path: str, place: tuple[float, float], fill: Color, opacity: float) -> Iterator[Box]:
    if match := _BOX.match(path):
        left, top, across, down = map(float, match.groups())
        ends = [(left, top), (left + across, top + down)]
    else:
        ends = [(float(x), float(y)) for x, y in _POINT.findall(path)] if "Z" in path else []
    if ends:
        (lefts, tops) = zip(*ends, strict=True)
        x, y = place
        yield Box(min(lefts) + x, min(tops) + y, max(lefts) + x, max(tops) + y, fill, opacity)


def _text(
    node: ElementTree.Element, place: tuple[float, float], fill: Color, opacity: float
) -> Iterator[Box]:
    text = "".join(node.itertext()).strip()
    size = float(node.attrib.get("font-size", "11px").removesuffix("px"))
    turn = _TURN.search(node.attrib.get("transform", ""))
    if not text or (turn is not None and float(turn[1]) % 180):
        return
    width, height = LETTER * size * len(text), LINE * size
    shift = {"middle": width / 2, "end": width}.get(node.attrib.get("text-anchor", "start"), 0.0)
    left, bottom = place[0] - shift, place[1]
    yield Box(left, bottom - height, left + width, bottom, fill, opacity, text)


def _opacity(node: ElementTree.Element) -> float:
    try:
        return float(node.attrib.get("opacity", 1)) * float(node.attrib.get("fill-opacity", 1))
    except ValueError:
        return 0.0


def _color(text: str, ink: Color) -> Color | None:
    if text == "currentColor":
        return ink
    if re.fullmatch("#[0-9a-fA-F]{6}", text):
        red, green, blue = (float(int(text[start : start + 2], 16)) for start in (1, 3, 5))
        return red, green, blue
    if match := re.fullmatch(r"rgb\((\d+), ?(\d+), ?(\d+)\)", text):
        return float(match[1]), float(match[2]), float(match[3])
    return {"white": PAPER, "black": BLACK}.get(text)
