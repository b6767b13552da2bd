"""Pictures of tensors for the browser: cells as bytes, and what is said of them."""

from collections.abc import Sequence
from typing import Any

from mimokit.experiment import Stepper
from mimokit.experiment.stepping.findings import TransferFinding, alike
from mimokit.experiment.stepping.tensors import TensorPart, samples_of_part, tensor_samples
from mimokit.planning.stepper.pictures import Floats, TensorPicture, Window, place_in
from mimokit.units import samples_text
from mimokit_widgets.view_models.step_samples import SampleFaces
from mimokit_widgets.view_models.step_words import ranks_text

TOKENS = ("input_ids", "labels")
"""How the names of tensors end that hold token ids."""
MOST_PICTURED = 8
"""Findings with pictures; the others have words."""


def picture_view(picture: TensorPicture) -> dict[str, Any]:
    """Return a picture as plain data and bytes."""
    lines, places = picture.cells.shape
    images = picture.thumbnails
    return {
        "shape": " × ".join(map(str, picture.shape)) or "one number",
        "dtype": picture.dtype,
        "rows": picture.rows,
        "columns": picture.columns,
        "window": list(picture.window),
        "lines": lines,
        "places": places,
        "cells": _bytes(picture.cells),
        "said": str(picture),
        "odd": bool(picture.nans or picture.infinite),
        "exact": picture.is_exact,
        "sketch": picture.is_sketch,
        "bounds": list(picture.bounds),
        "images": None
        if images is None
        else {
            "count": images.shape[0],
            "height": images.shape[1],
            "width": images.shape[2],
            "colors": 3 if images.ndim > 3 else 1,
            "values": _bytes(images),
        },
    }


def _bytes(values: Floats) -> bytes:
    return values.astype("<f4").tobytes()


def list_view(stepper: Stepper, rank: int) -> list[dict[str, Any]]:
    """Return a small picture of every tensor of a rank after the step that is looked at."""
    pictures = stepper.pictures(rank)
    return [{"name": name, **picture_view(picture)} for name, picture in pictures.items()]


def opened_view(
    stepper: Stepper,
    rank: int,
    name: str,
    *,
    whole: bool,
    window: Window | None,
    samples: SampleFaces,
) -> dict[str, Any]:
    """Return a tensor of one rank, or the whole with the borders of its parts."""
    if whole:
        parts = [_part_view(part) for part in stepper.whole(rank, name)]
    else:
        picture = stepper.picture(rank, name, window)
        first = (samples_of_part(stepper.plan, rank, name) or (0, 0))[0]
        words = samples.words(picture.cells) if name.endswith(TOKENS) and picture.is_exact else []
        told = {"who": f"rank {rank}", "unlike": False, "first": first, "words": words}
        parts = [{**told, **picture_view(picture)}]
    snapshot = stepper.now
    last = snapshot is not None and snapshot.number == len(stepper.snapshots) - 1
    return {
        "rank": rank,
        "name": name,
        "whole": whole,
        "parts": parts,
        "editable": last and not whole and stepper.ended is None,
    }


def _part_view(part: TensorPart) -> dict[str, Any]:
    ranks = ranks_text(list(part.ranks))
    samples = "" if part.samples is None else f", samples {samples_text(part.samples)}"
    first = 0 if part.samples is None else part.samples[0]
    view = picture_view(part.picture)
    return {"who": f"{ranks}{samples}", "unlike": part.unlike, "first": first, **view}


def finding_views(findings: Sequence[TransferFinding]) -> list[dict[str, Any]]:
    """Return what came, next to what should have; ranks that took the same share one picture."""
    return [
        {
            "words": f"{ranks_text(ranks)} {finding.words}",
            "right": picture_view(finding.right),
            "came": picture_view(finding.came),
        }
        for ranks, finding in alike(findings)[:MOST_PICTURED]
    ]


def index_of(stepper: Stepper, rank: int, name: str, row: int, column: int) -> tuple[int, ...]:
    """Return the index in a tensor of a cell of its picture."""
    picture = stepper.picture(rank, name, (row, row + 1, column, column + 1))
    samples = tensor_samples(stepper.plan, rank, name)
    count = None if samples is None else samples.count
    return place_in(picture.shape, count, row, column, images=picture.thumbnails is not None)
