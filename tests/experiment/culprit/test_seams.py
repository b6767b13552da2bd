"""Sketches of parts add up to those of whole tensors, and what is missing or doubled is found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from mimokit.engine.verify.seams.places import RowPlaces
from mimokit.engine.verify.seams.recorder import Recorder
from mimokit.experiment.culprit.first import Measured, Order, measured
from mimokit.experiment.culprit.join import joined
from mimokit.planning.seams import Recording, Seam, SeamPhase
from tests.experiment.culprit.reports import CULPRIT

ROWS, COLUMNS = 12, 10
PLACES = RowPlaces(np.repeat(np.arange(3), 4), np.tile(np.arange(4), 3))
TENSOR = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(1))
LOW, HIGH = np.arange(5), np.arange(5, 10)


def _recorded(tensor=TENSOR, columns=None, rows=slice(None), operation="layer") -> Recording:
    recorder = Recorder()
    places = RowPlaces(PLACES.samples[rows], PLACES.rows[rows])
    own = tensor[rows] if columns is None else tensor[rows][:, columns]
    recorder.tensor("images", operation, SeamPhase.FORWARD, own, places, columns)
    return recorder.recording


def _measured(*ranks: Recording) -> Measured:
    reference = joined({0: _recorded()})
    (found,) = measured(reference, joined(dict(enumerate(ranks))), {})
    return found


def test_parts_of_rows_and_columns_add_up():
    early, late = slice(0, 4), slice(4, 12)
    parts = [_recorded(columns=c, rows=r) for c in (LOW, HIGH) for r in (early, late)]
    assert _measured(*parts, parts[0]).difference < 1e-12, "the last is a copy of the first"
    wrong = TENSOR.clone()
    wrong[2, 7] *= 1.001
    found = _measured(*(_recorded(wrong, c, r) for c in (LOW, HIGH) for r in (early, late)))
    assert found.differs
    assert found.samples == (0,)
    norm = float(TENSOR[:4].norm())
    assert found.difference == pytest.approx(
        abs(float(wrong[2, 7] - TENSOR[2, 7])) / norm, rel=1e-3
    )


def test_a_copy_that_differs_is_named_by_its_rank():
    found = _measured(_recorded(), _recorded(TENSOR + 1e-3), _recorded())
    assert found.ranks == (1,)
    assert found.samples == (0, 1, 2)


@pytest.mark.parametrize(
    "ranks",
    [
        (_recorded(columns=LOW),),
        (_recorded(), _recorded(columns=HIGH)),
        (_recorded(rows=slice(0, 8)),),
        (_recorded(columns=LOW), _recorded(columns=HIGH + 1 - 1, rows=slice(0, 4))),
    ],
    ids=["half", "one and a half", "without a sample", "half of two samples"],
)
def test_what_is_missing_or_doubled_is_no_match(ranks):
    found = _measured(*ranks)
    assert found.missing
    assert found.differs


def test_gradients_follow_the_forward_passes_of_their_micro_batch():
    alone = _recorded()
    order = Order(alone, ["images", "language"], samples_per_microbatch=2)

    def key(module, phase, sample, step=0):
        one = Measured(Seam(step, module, "layer", phase), (sample,), (), 1.0, 1e-5)
        return order.key(one)

    forward, backward = SeamPhase.FORWARD, SeamPhase.BACKWARD
    in_order = [
        key("images", forward, 0), key("language", forward, 1), key("language", backward, 0),
        key("images", backward, 1), key("images", forward, 2), key("language", backward, 2),
        key("images", SeamPhase.REDUCED, 0), key("", SeamPhase.NORM, 0),
        key("images", SeamPhase.WEIGHT, 0), key("images", forward, 0, step=1),
    ]  # fmt: skip
    assert in_order == sorted(in_order)


def test_the_sentence_says_where_by_how_much_and_what_was_not_deterministic():
    verdict = CULPRIT.verdict
    assert verdict == (
        "Step 1, micro-batch 0, samples 0 to 1: the first tensor that differs from one process is "
        "the gradient from decoder.layers.2 of module 'images' (backward) on rank 1: by 7.0e-01, "
        "1.0e-05 is allowed."
    )
    unsteady = replace(CULPRIT, is_deterministic=False)
    assert unsteady.verdict.startswith("Two runs of one process gave different numbers: ")
    lines = str(CULPRIT).splitlines()
    assert len(lines) <= 20
    assert "← first" in str(CULPRIT)


def test_encoders_that_pad_items_of_a_rank_are_recorded_at_their_ends():
    from mimokit.engine.models.vision import AnySizeVisionTransformer, VisionTransformer
    from mimokit.engine.verify.seams.hooks import _cut_of

    for encoder, recorded in ((VisionTransformer, "cut"), (AnySizeVisionTransformer, None)):
        owner = encoder.__new__(encoder)
        object.__setattr__(owner, "_cut", "cut")
        assert _cut_of(owner) == recorded
