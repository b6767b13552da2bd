"""The slices of a plan, layers of one kind together, against the entries that its pieces name."""

from pathlib import Path

import numpy as np

from mimokit.planning.weights import WeightPlan, plan_weights, read_directory, sliced_tensors
from mimokit.planning.weights.slices import SlicedTensor
from mimokit.planning.weights.types import joined_spans
from tests.rows import rows
from tests.sparse_weights import LLAMA_70B, SMALL, small_checkpoint, sparse_checkpoint

Entries = dict[tuple[int, str], np.ndarray]
"""(Rank, tensor) -> whether the rank holds each entry of it."""


def of_pieces(directory: Path, plan: WeightPlan) -> Entries:
    """Return what every rank holds, one tensor at a time, from the pieces."""
    tensors = read_directory(directory).tensors
    found: Entries = {}
    for number, rank in enumerate(plan.ranks):
        for parameter in rank.parameters.values():
            for piece in parameter.pieces:
                shape = tensors[piece.tensor].shape or (1,)
                held = found.setdefault((number, piece.tensor), np.zeros(shape, bool))
                held[slice(*piece.rows)][:, *_across(piece.columns)] = True
    return found


def _across(columns: tuple[int, int] | None) -> tuple[slice, ...]:
    return () if columns is None else (slice(*columns),)


def of_slices(found: tuple[SlicedTensor, ...]) -> Entries:
    """Return the same from the slices: rows and columns of every tensor."""
    entries: Entries = {}
    for one in found:
        for part in one.slices:
            for layer in one.layers or (None,):
                name = one.name if layer is None else one.name.replace(".N.", f".{layer}.")
                for rank in part.ranks:
                    empty = np.zeros((one.rows, one.columns), bool)
                    held = entries.setdefault((rank, name), empty)
                    held[slice(*part.rows)][:, *_across(part.columns)] = True
    return entries


@rows("family", *SMALL)
def test_slices_are_the_entries_that_pieces_name(family: str, tmp_path: Path) -> None:
    directory = small_checkpoint(tmp_path, family)
    for sizes in ((1, 1), (2, 1 if family == "clip" else 2), (4, 1)):
        plan = plan_weights(directory, *sizes)
        wanted, found = of_pieces(directory, plan), of_slices(sliced_tensors(plan))
        assert wanted.keys() == found.keys()
        for key, held in wanted.items():
            assert np.array_equal(held.reshape(len(held), -1), found[key]), (sizes, key)


def test_slices_that_touch_are_one(tmp_path: Path) -> None:
    """A fused query, key and value takes each head by itself out of the file."""
    directory = small_checkpoint(tmp_path, "gpt2")
    parts = []
    for ranks in (1, 2):
        (fused,) = (
            one
            for one in sliced_tensors(plan_weights(directory, ranks))
            if one.name == "transformer.h.N.attn.c_attn.weight"
        )
        parts.append([(one.ranks, one.columns) for one in fused.slices])
    assert parts[0] == [((0,), None)]
    assert parts[1][:3] == [((0,), (0, 16)), ((0,), (32, 48)), ((0,), (64, 80))]


def test_a_kind_states_its_stage_layers_and_files(tmp_path: Path) -> None:
    plan = plan_weights(small_checkpoint(tmp_path, "llama", files=3), 2, 2)
    found = {(one.name, one.stage): one for one in sliced_tensors(plan)}
    name = "model.layers.N.self_attn.k_proj.weight"
    first, last = found[name, 0], found[name, 1]
    assert (first.layers, last.layers) == ((0, 1), (2, 3))
    assert (first.ranks, last.ranks) == ((0, 1), (2, 3))
    assert [one.rows for one in first.slices] == [(0, 8), (8, 16)]
    tensors = read_directory(tmp_path).tensors
    assert set(last.files) == {tensors[name.replace("N", str(layer))].file for layer in (2, 3)}
    norm = found["model.norm.weight", 1]
    assert (norm.layers, norm.rows, norm.columns, norm.replicated) == ((), 32, 1, True)
    assert [one.ranks for one in norm.slices] == [(2, 3)]
    down = found["model.layers.N.mlp.down_proj.weight", 0]
    assert [one.columns for one in down.slices] == [(0, 24), (24, 48)]


def test_a_large_model_has_as_many_kinds_as_a_small_one(tmp_path: Path) -> None:
    found = sliced_tensors(plan_weights(sparse_checkpoint(tmp_path, LLAMA_70B, files=3), 8, 4))
    assert len(found) == 4 * 9 + 3
    assert found[0].name == "model.embed_tokens.weight"
    assert len(found[1].layers) == 20


def test_spans_that_touch_overlap_or_lie_in_each_other_are_one() -> None:
    assert joined_spans([(9, 10), (0, 8), (2, 4), (7, 9), (12, 13)]) == [(0, 10), (12, 13)]
