"""`show_strips`: what the model is given, as pictures."""

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mimokit.units import counted

PIXELS = 6
"""Screen pixels of one pixel of a scan."""


@dataclass(frozen=True)
class Strip:
    """A sample.

    Attributes:
        images: grey, [count, height, width], 0 to 1.
        read: what the model answered; None: it was not asked.
    """

    images: NDArray[np.floating[Any]]
    question: str
    answer: str
    read: str | None = None

    @property
    def is_right(self) -> bool:
        """Whether the model gave the right answer."""
        return self.read == self.answer


class Strips:
    """Strips of scans with question and answer; a notebook shows them as a table of pictures."""

    def __init__(self, rows: Sequence[Strip]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return "\n".join(
            f"{counted(len(row.images), 'scan')}, {row.question} → {row.answer}{_read(row)}"
            for row in self._rows
        )

    def _repr_html_(self) -> str:
        columns = ["images", "question", "answer"]
        if any(row.read is not None for row in self._rows):
            columns.append("the model read")
        left = " style='text-align: left'"
        head = "".join(f"<th{left if name == 'images' else ''}>{name}</th>" for name in columns)
        body = "".join(
            f"<tr><td{left}>{_picture(row.images, row.answer)}</td><td>{escape(row.question)}</td>"
            f"<td>{escape(row.answer)}</td>{_verdict(row)}</tr>"
            for row in self._rows
        )
        style = "table-layout: auto; white-space: nowrap"
        parts = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
        return f"<table style='{style}'>{parts}</table>"


def show_strips(
    samples: Iterable[Mapping[str, Any]],
    vocabulary: Sequence[str],
    count: int = 5,
    read: Mapping[int, Sequence[int]] | None = None,
) -> Strips:
    """Return a view of the first samples, or of those that a model has read.

    Args:
        samples: with "images" [count, height, width] and token ids in "question" and "answer",
            such as `mimokit.engine.data.digits.DigitStrips`.
        vocabulary: token id -> text.
        count: samples to show; of those that were read as many right ones as wrong ones, if there
            are.
        read: number of a sample -> the tokens that a model answered, `TrainingRun.answers`;
            `samples` is then a sequence.
    """

    def text(tokens: Iterable[int]) -> str:
        return " ".join(vocabulary[token] for token in tokens)

    def strip(sample: Mapping[str, Any], answer: Sequence[int] | None = None) -> Strip:
        told = None if answer is None else text(answer)
        images = np.asarray(sample["images"])  # torch tensors, too
        return Strip(images, text(sample["question"]), text(sample["answer"]), told)

    if read is None:
        return Strips([strip(sample) for sample, _ in zip(samples, range(count), strict=False)])
    rows = [strip(samples[number], answer) for number, answer in read.items()]  # type: ignore[index]
    return Strips(_right_and_wrong(rows, count))


def _right_and_wrong(rows: Sequence[Strip], count: int) -> list[Strip]:
    right, wrong = ([row for row in rows if row.is_right is kind] for kind in (True, False))
    shown_wrong = min(len(wrong), max(count // 2, count - len(right)))
    return [*right[: count - shown_wrong], *wrong[:shown_wrong]]


def _read(row: Strip) -> str:
    if row.read is None:
        return ""
    return f" (the model read {row.read}: {'right' if row.is_right else 'wrong'})"


def _verdict(row: Strip) -> str:
    if row.read is None:
        return ""
    mark, name = ("✓", "right") if row.is_right else ("✗", "wrong")
    return f"<td>{escape(row.read)} <b title='{name}'>{mark} {name}</b></td>"


def ink_strip(images: NDArray[np.floating[Any]]) -> NDArray[np.uint8]:
    """Return images [n, height, width] or [n, height, width, 3] in a row; grey ones as ink."""
    low, high = float(images.min()), float(images.max())
    scaled = (images - low) / (high - low or 1.0)
    gap = np.zeros((images.shape[1], 1, *images.shape[3:]))
    row = np.concatenate([part for image in scaled for part in (image, gap)][:-1], axis=1)
    return np.round(255 * (1 - row if row.ndim == 2 else row)).astype(np.uint8)


def png_address(pixels: NDArray[np.uint8]) -> str:
    """Return a picture as an address that holds it."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _picture(images: NDArray[np.floating[Any]], text: str) -> str:
    strip = ink_strip(images)
    height, width = strip.shape
    return (
        f'<img alt="scans of {escape(text)}" src="{png_address(strip)}" '
        f'style="width: {width * PIXELS}px; height: {height * PIXELS}px; max-width: none; '
        'image-rendering: pixelated; border: 1px solid #ccc">'
    )
