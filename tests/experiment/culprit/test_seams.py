"""Sketches of parts add up to those of whole tensors, and what is missing or doubled is found."""

import itertools
import pickle
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import mimokit
from mimokit.architecture.tensor_cut import ShardPlace, TensorCut
from mimokit.engine.models.rng import mask_rows
from mimokit.engine.parallel.context import SequenceCut
from mimokit.engine.parallel.marks import set_shards
from mimokit.engine.parallel.update import finalize_model_grads
from mimokit.engine.verify.seams import hooks
from mimokit.engine.verify.seams.code import lines_of_step
from mimokit.engine.verify.seams.places import ONE_ROW, RowPlaces, places_of_layer
from mimokit.engine.verify.seams.recorder import Recorder
from mimokit.engine.verify.seams.signs import row_signs, salt_of
from mimokit.experiment.culprit.arrays import OnRank, array_of, deviating, rank_parts
from mimokit.experiment.culprit.measures import Measured, Order, measured
from mimokit.experiment.culprit.report import Divergence
from mimokit.experiment.culprit.sketches import combined
from mimokit.planning.seams import GIVEN_ROWS, Recording, Seam, SeamPhase, SeamPiece, code_of
from tests import seams
from tests.experiment.culprit.faults.layouts import fan_in
from tests.experiment.culprit.reports import CULPRIT, FIRST
from tests.rows import rows

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
    reference = combined({0: _recorded()})
    (found,) = measured(reference, combined(dict(enumerate(ranks))), {})
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


def test_positions_that_ranks_have_as_padding_are_left_out():
    """Two ranks share five positions as six, two recordings each."""
    computed = mask_rows(0, range(4, 6))
    whole = torch.randn(5, 2, COLUMNS, generator=torch.Generator().manual_seed(2))
    padded = torch.cat([whole, torch.full((1, 2, COLUMNS), torch.inf)])

    def recording(tensor: torch.Tensor, ranks: int, rank: int) -> Recording:
        groups = SimpleNamespace(cp=SimpleNamespace(size=lambda: ranks, rank=lambda: rank))
        cut = SequenceCut(SimpleNamespace(sequence_parallel=False), groups, causal=False)
        places, _ = places_of_layer(cut, computed, None, len(tensor), positions=5)
        recorder = Recorder(wholes=[seam])
        recorder.tensor("images", "layer", SeamPhase.FORWARD, tensor, places)
        return recorder.recording

    seam = Seam(0, "images", "layer", SeamPhase.FORWARD)
    ranks = {rank: recording(padded[3 * rank : 3 * rank + 3], 2, rank) for rank in range(2)}
    (found,) = measured(combined({0: recording(whole, 1, 0)}), combined(ranks), {})
    assert found.difference < 1e-12
    pieces = [piece for rank in ranks.values() for piece in rank.wholes[seam]]
    assert array_of(pieces).values.shape == (10, COLUMNS)
    assert not found.missing


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


def _rows_of_the_same_signs(rows: int, salt: int) -> np.ndarray:
    signs = row_signs(np.arange(rows), salt).numpy()
    _, index, counts = np.unique(signs, axis=0, return_inverse=True, return_counts=True)
    return np.flatnonzero(index.reshape(-1) == np.flatnonzero(counts == 2)[0])


def test_ranks_whose_rows_have_the_same_signs_hold_no_copies():
    pair = _rows_of_the_same_signs(1000, salt_of(Seam(0, "images", "layer", SeamPhase.FORWARD)))
    tensor = torch.randn(2, COLUMNS, generator=torch.Generator().manual_seed(2))

    def recording(*rows: int) -> Recording:
        recorder, own = Recorder(), list(rows)
        places = RowPlaces(np.zeros(len(own), np.int64), pair[own])
        recorder.tensor("images", "layer", SeamPhase.FORWARD, tensor[own], places)
        return recorder.recording

    reference = combined({0: recording(0, 1)})
    (found,) = measured(reference, combined({0: recording(0), 1: recording(1)}), {})
    assert found.difference < 1e-12
    assert not found.missing
    (found,) = measured(reference, combined({0: recording(0), 1: recording(0)}), {})
    assert found.missing


def test_rows_that_a_sketch_cannot_tell_apart_are_told_apart_by_the_next():
    rows, operations = 1000, [f"decoder.layers.{n}" for n in range(8)]
    first = Seam(0, "images", operations[0], SeamPhase.FORWARD)
    pair = _rows_of_the_same_signs(rows, salt_of(first))
    right = torch.randn(rows, COLUMNS, generator=torch.Generator().manual_seed(3))
    wrong = right.clone()
    wrong[pair] = right[pair[::-1].copy()]

    def recording(tensor: torch.Tensor) -> Recording:
        recorder = Recorder()
        places = RowPlaces(np.zeros(rows, np.int64), np.arange(rows))
        for operation in operations:
            recorder.tensor("images", operation, SeamPhase.FORWARD, tensor, places)
        return recorder.recording

    reference, found = (combined({0: recording(right)}), combined({0: recording(wrong)}))
    differing = [one.seam.operation for one in measured(reference, found, {}) if one.differs]
    assert first.operation not in differing, "its sketch is the same"
    assert differing[0] in operations[:3]
    assert len(differing) >= 4


@rows("width", 8, 8192)
def test_a_recording_takes_as_many_bytes_however_wide_tensors_are(width):
    recorder, rows = Recorder(), len(PLACES.rows)
    recorder.tensor("images", "layer", SeamPhase.FORWARD, torch.ones(rows, width), PLACES)
    weight = torch.nn.Parameter(torch.ones(width, 4))
    set_shards("images", {"weight": weight}, {"weight": TensorCut((width, 4))}, ShardPlace())
    recorder.parameter("images", "weight", SeamPhase.REDUCED, weight, weight)
    assert len(pickle.dumps(recorder.recording)) < 3000, "4 sketches of 16 numbers"


def test_an_update_is_compared_by_what_it_changes():
    """A change that is 1 / 1,000 of a weight, and one of twice as much."""
    generator = torch.Generator().manual_seed(4)
    start, change = torch.randn(2, 1, 500, dtype=torch.float64, generator=generator)

    def recording(*weights: torch.Tensor) -> Recording:
        recorder = Recorder()
        for step, weight in enumerate(weights, -1):
            recorder.step = step
            recorder.tensor("images", "weight", SeamPhase.WEIGHT, weight, ONE_ROW)
        return recorder.recording

    right = combined({0: recording(start, start + 1e-3 * change)})
    spread = {Seam(0, "images", "weight", SeamPhase.WEIGHT): 0.02}
    for factor in (1.0, 2.0):
        wrong = combined({0: recording(start, start + 1e-3 * factor * change)})
        first, after = measured(right, wrong, spread)
        assert not first.differs
        assert after.differs == (factor == 2.0)
        assert after.difference == pytest.approx(factor - 1, abs=1e-3)
    noise = combined({0: recording(start, start * (1 + 2**-24))})
    assert not any(
        one.differs for one in measured(combined({0: recording(start, start)}), noise, {})
    )


def test_a_norm_is_that_of_the_gradients_that_were_found():
    gradient = torch.randn(1, 500, generator=torch.Generator().manual_seed(5))

    def recording(gradient: torch.Tensor, norm: float) -> Recording:
        recorder = Recorder()
        recorder.tensor("images", "weight", SeamPhase.REDUCED, gradient, ONE_ROW)
        recorder.number("", "all modules", SeamPhase.NORM, norm)
        return recorder.recording

    size, seam = float(gradient.norm()), Seam(0, "", "all modules", SeamPhase.NORM)
    reference = combined({0: recording(gradient, size)})
    for norm, differs in ((1.02 * size, False), (size, True), (1.021 * size, True)):
        found = combined({0: recording(1.02 * gradient, norm)})
        *_, measure = measured(reference, found, {})
        assert (measure.seam, measure.differs) == (seam, differs)


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
        "a rounding of the weights changes it by 1.0e-07, 1.0e-05 is allowed."
    )
    unsteady = replace(CULPRIT, is_deterministic=False)
    assert unsteady.verdict.startswith("Two runs of one process gave different numbers: ")
    lines = str(CULPRIT).splitlines()
    assert len(lines) <= 20
    assert "← first" in str(CULPRIT)


def test_what_was_not_compared_is_counted_and_named():
    left_out = tuple(
        Seam(0, "images", f"decoder.layers.{layer}.mlp", SeamPhase.FORWARD) for layer in range(4)
    )
    words = (
        " 4 tensors could not be compared: the output of decoder.layers.0.mlp of module 'images' "
        "(forward), "
    )
    for report in (CULPRIT, replace(CULPRIT, divergence=None)):
        partial = replace(report, not_compared=left_out)
        assert words in partial.verdict
        assert partial.verdict.endswith(
            "decoder.layers.2.mlp of module 'images' (forward) and 1 more."
        )
        assert "not compared" in str(partial)
        assert len(str(partial).splitlines()) <= 20
        assert partial.to_json()["not_compared"][0] == str(left_out[0])
    nothing = replace(CULPRIT, compared=(), divergence=None)
    assert not nothing.passed
    assert "No tensor of 'layout' and one process could be compared." in nothing.verdict


def test_a_weight_that_is_wrong_from_the_start_is_no_fault_of_an_update() -> None:
    seam = Seam(-1, "images", "proj.weight", SeamPhase.WEIGHT)
    first = replace(CULPRIT.divergence.found, seam=seam)
    report = replace(CULPRIT, compared=(first,), divergence=Divergence(first, None))
    assert report.verdict.startswith(
        "From the start: the first tensor that differs from one process is the weight proj.weight "
        "of module 'images' before the first step on rank 1: by 7.0e-01"
    )
    (row,) = report.section().rows
    assert list(row[:3]) == ["start", "weight before the first step", "images"]


def test_a_verdict_that_passes_states_spread_and_tolerance():
    right = replace(FIRST, difference=2e-6, spread=3e-7, samples=(), ranks=())
    report = replace(CULPRIT, compared=(right,), divergence=None)
    assert report.passed
    assert report.verdict.endswith(
        "Closest to it is the gradient from decoder.layers.2 of module 'images' (backward) of "
        "step 1, by 2.0e-06, a rounding of the weights changes it by 3.0e-07; 1.0e-05 is allowed."
    )


@rows("dimension, wrong", *itertools.product([0, 1], [0, 1, None]))
def test_a_wrong_shard_of_a_matrix_is_that_of_its_rank_and_has_a_border(dimension, wrong):
    weight = torch.randn(6, 4, generator=torch.Generator().manual_seed(6))
    seam = Seam(0, "images", "weight", SeamPhase.REDUCED)
    cut = TensorCut((6, 4), dimension, multiple=4 if dimension == 0 else None)

    def pieces(parts: int, rank: int, factor: float) -> list:
        place = ShardPlace(tensor_parallel=parts, tensor_rank=rank)
        values = cut.at(place).of(weight.numpy(), padding=np.inf) if parts > 1 else weight.numpy()
        shard = torch.nn.Parameter(torch.from_numpy(np.array(values)) * factor)
        own = cut if parts > 1 else TensorCut((6, 4))
        if parts > 1:  # as Megatron marks it
            marks = {"tensor_model_parallel": True, "partition_dim": dimension}
            vars(shard).update(marks, partition_stride=1)
        set_shards("images", {"weight": shard}, {"weight": own}, place)
        recorder = Recorder(wholes=[seam])
        recorder.parameter("images", "weight", SeamPhase.REDUCED, shard, shard)
        return recorder.recording.wholes[seam]

    whole = array_of(pieces(1, 0, 1.0))
    assert whole.values.shape == (6, 4)
    by_rank = {rank: pieces(2, rank, 1.01 if rank == wrong else 1.0) for rank in range(2)}
    parts = rank_parts(whole, by_rank)
    assert deviating(whole, parts, (), 1e-5, 0.0) == (() if wrong is None else (wrong,))
    first = replace(FIRST, seam=seam)
    borders = Divergence(first, None, arrays=(whole, tuple(parts))).borders()
    stops = [(one["row"], one["row_stop"], one["column"], one["column_stop"]) for one in borders]
    halves = ((0, 4, 0, 4), (4, 6, 0, 4)), ((0, 6, 0, 2), (0, 6, 2, 4))
    assert tuple(stops) == halves[dimension]


def test_only_samples_that_differ_say_which_rank_is_wrong():
    whole = array_of(
        [SeamPiece("", PLACES.samples, PLACES.rows, np.arange(COLUMNS), np.ones((12, 10)))]
    )
    values = np.ones((12, 5))
    parts = [
        OnRank(rank, "", np.arange(12), columns, values.copy())
        for rank, columns in enumerate((LOW, HIGH))
    ]
    parts[1].values[4] *= 1 + 3e-5
    assert deviating(whole, parts, (1,), 1e-5, 0.0) == (1,)
    assert deviating(whole, parts, (0,), 1e-5, 0.0) == ()


class _Parent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.inner(given)


def test_the_line_that_calls_a_module_is_told():
    parent, recorder = _Parent(), Recorder()
    layers = hooks._Layers(recorder, "images", None, None)
    layers._now = lambda: SimpleNamespace(of=lambda tensor: None)
    layers._watch("inner", parent.inner, hooks._whole, hooks._whole)
    parent(torch.ones(1, 2))
    line = recorder.recording.code["images", "inner"]
    first = _Parent.forward.__code__.co_firstlineno
    assert line.endswith(f"tests/experiment/culprit/test_seams.py:{first + 1}")


def test_the_line_of_a_decorated_function_is_its_own(monkeypatch):
    plan = mimokit.plan(fan_in())
    lines, decorated = lines_of_step(plan), torch.no_grad()(finalize_model_grads)
    monkeypatch.setattr(seams.FINALIZE_GRADS_OF_SEAMS, decorated)
    assert lines_of_step(plan) == lines


@rows(
    "operation, phase, line",
    ("decoder.layers.0.mlp.linear_fc1", SeamPhase.FORWARD, "mlp.py:1"),
    ("decoder.layers.0.mlp.linear_fc1.weight", SeamPhase.ACCUMULATED, "mlp.py:1"),
    ("decoder.layers.0.mlp.linear_fc1.weight", SeamPhase.REDUCED, "update.py:2"),
    ("decoder.layers.0.input", SeamPhase.FORWARD, "block.py:3"),
    ("decoder.layers.0.output", SeamPhase.BACKWARD, "block.py:3"),
    ("rows", SeamPhase.FORWARD, "stages.py:4"),
    ("rows for writer", SeamPhase.BACKWARD, "stages.py:5"),
    ("loss", SeamPhase.BACKWARD, "loss.py:6"),
    ("unknown", SeamPhase.FORWARD, ""),
)
def test_every_tensor_has_its_line(operation, phase, line):
    code = {
        ("images", "decoder.layers.0.mlp.linear_fc1"): "mlp.py:1",
        ("", str(SeamPhase.REDUCED)): "update.py:2",
        ("images", "decoder.layers.0"): "block.py:3",
        ("", "rows"): "stages.py:4",
        ("", GIVEN_ROWS): "stages.py:5",
        ("", "loss"): "loss.py:6",
    }
    assert code_of(Seam(0, "images", operation, phase), code) == line
