"""`show_strips`: what the model is given, as pictures."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Protocol

import numpy as np

from mimokit.units import counted

PIXELS = 6
"""Screen pixels of one pixel of a scan."""


class Images(Protocol):
    """Grey images [count, height, width], 0 to 1; a torch tensor or a numpy array."""

    def tolist(self) -> list[list[list[float]]]:
        """Return nested lists."""


class Strips:
    """Strips of scans with question and answer; a notebook shows them as a table of pictures."""

    def __init__(self, rows: Sequence[tuple[list[list[list[float]]], str, str]]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return "\n".join(
            f"{counted(len(images), 'scan')}, {question} → {answer}"
            for images, question, answer in self._rows
        )

    def _repr_html_(self) -> str:
        body = "".join(
            f"<tr><td style='text-align: left'>{_picture(images, answer)}</td>"
            f"<td>{escape(question)}</td><td>{escape(answer)}</td></tr>"
            for images, question, answer in self._rows
        )
        head = "<th style='text-align: left'>images</th><th>question</th><th>answer</th>"
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def show_strips(
    samples: Iterable[Mapping[str, Any]], vocabulary: Sequence[str], count: int = 5
) -> Strips:
    """Return a view of the first samples.

    Args:
        samples: with "images" [count, height, width] and token ids in "question" and "answer",
            such as `mimokit.engine.data.digits.DigitStrips`.
        vocabulary: token id -> text.
    """
    rows = []
    for sample, _ in zip(samples, range(count), strict=False):
        question, answer = (
            " ".join(vocabulary[token] for token in sample[part]) for part in ("question", "answer")
        )
        images: Images = sample["images"]
        rows.append((images.tolist(), question, answer))
    return Strips(rows)


def _picture(images: list[list[list[float]]], text: str) -> str:
    """Return the images side by side as an HTML image, dark ink on white."""
    from PIL import Image

    gap = np.zeros((len(images[0]), 1))
    columns = [part for image in images for part in (np.asarray(image), gap)][:-1]
    ink = np.clip(np.concatenate(columns, axis=1), 0.0, 1.0)
    strip = Image.fromarray(np.round(255 * (1 - ink)).astype(np.uint8))
    file = io.BytesIO()
    strip.save(file, format="PNG")
    address = base64.b64encode(file.getvalue()).decode()
    size = f"width: {strip.width * PIXELS}px; height: {strip.height * PIXELS}px"
    return (
        f'<img alt="scans of {escape(text)}" src="data:image/png;base64,{address}" '
        f'style="{size}; max-width: none; image-rendering: pixelated; border: 1px solid #ccc">'
    )
