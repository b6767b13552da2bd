"""Every copy of every part is compared, and what is not compared does not pass."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import mimokit
from mimokit.extras.foreign_loops.recorder import numbers_in_whole
from tests.cli.call import call

WHOLE = np.random.default_rng(1).normal(size=(8, 4)).astype(np.float32)
CHUNKS = [0, 3], [1, 2]
ROWS_OF_CHUNKS = WHOLE[[0, 1, 6, 7]], WHOLE[2:6]
COLUMNS = WHOLE[:, :2], WHOLE[:, 2:]
Part = tuple[np.ndarray, Mapping[str, Any]]


def _recording(folder: Path, parts: Sequence[Part], name: str = "layer") -> Path:
    """Write a recording of one tensor, of which each rank has a part."""
    folder.mkdir()
    for rank, (values, cut) in enumerate(parts):
        seam = {"step": 0, "call": 0, "phase": "forward", "operation": name, "tensor": "0"}
        about = {
            "recording": "r", "rank": rank, "world_size": len(parts), "steps": 1, "seed": 1,
            "drops": [], "seams": [{**seam, "dtype": "float32", **cut}],
        }  # fmt: skip
        tensors = {"0": np.ascontiguousarray(values)}
        save_file(tensors, folder / f"rank-{rank}.safetensors", {"recording": "r"})
        (folder / f"rank-{rank}.json").write_text(json.dumps(about))
    return folder


def _share(rank: int) -> dict[str, Any]:
    """Return the marks of columns on ranks of which every two share them."""
    group = [rank // 2 * 2, rank // 2 * 2 + 1]
    return {"dimension": -1, "parts": 1, "share": [rank % 2, 2], "group": group}


def _of_group(rank: int) -> dict[str, Any]:
    """Return that every two ranks share tensors, without a mark that says how."""
    return {"group": [rank // 2 * 2, rank // 2 * 2 + 1]}


def _context(rank: int, *, apart: bool) -> dict[str, Any]:
    """Return that two ranks share sequences: neighbours, or with one of another pair between."""
    ranks = [rank % 2, rank % 2 + 2] if apart else [rank // 2 * 2, rank // 2 * 2 + 1]
    return {"context": ranks, "chunks": CHUNKS[ranks.index(rank)]}


def _offset(rank: int) -> dict[str, Any]:
    return {"whole": [8, 4], "offset": [0, rank % 2 * 2], "summand": []}


def _parts(how: str) -> list[Part]:
    """Return copies, or two copies of two shares, or samples of two replicas that share columns."""
    if how == "copies":
        return [(WHOLE, {}), (WHOLE, {})]
    if how == "placements":
        return [(COLUMNS[rank % 2], _offset(rank)) for rank in range(4)]
    if how == "marks":
        return [(COLUMNS[rank % 2], _share(rank)) for rank in range(4)]
    rows = (slice(0, 4), slice(4, 8))
    if how == "samples of replicas":
        return [(WHOLE[rows[rank // 2]], _of_group(rank)) for rank in range(4)]
    if how == "slices of ranks that replicas copy":
        return [(WHOLE[rows[rank % 2]], _of_group(rank)) for rank in range(4)]
    if how == "columns and samples without marks":
        return [(COLUMNS[rank % 2][rows[rank // 2]], _of_group(rank)) for rank in range(4)]
    if how == "chunks of sequences that replicas copy":
        return [(ROWS_OF_CHUNKS[rank % 2], _context(rank, apart=False)) for rank in range(4)]
    if how == "columns of chunks of sequences":
        chunks = [np.split(rows, 2, 1) for rows in ROWS_OF_CHUNKS]
        cuts = [{**_share(rank), **_context(rank, apart=True)} for rank in range(4)]
        return [(chunks[rank // 2][rank % 2], cuts[rank]) for rank in range(4)]
    return [(COLUMNS[rank % 2][rows[rank // 2]], _share(rank)) for rank in range(4)]


HOW = (
    "copies", "placements", "marks", "replicas that share columns", "samples of replicas",
    "slices of ranks that replicas copy", "columns and samples without marks",
    "chunks of sequences that replicas copy", "columns of chunks of sequences",
)  # fmt: skip


@pytest.mark.parametrize("how", HOW)
def test_a_wrong_part_of_any_rank_is_named(tmp_path: Path, how: str) -> None:
    one = _recording(tmp_path / "one", [(WHOLE, {})])
    right = _parts(how)
    ranks = _recording(tmp_path / "ranks", right)
    assert mimokit.compare(one, ranks).passed
    assert mimokit.compare(ranks, one).passed
    for rank, (values, cut) in enumerate(right):
        changed = [*right[:rank], (values * 1.01, cut), *right[rank + 1 :]]
        wrong = _recording(tmp_path / f"wrong on {rank}", changed)
        for found in (mimokit.compare(one, wrong), mimokit.compare(ranks, wrong)):
            assert not found.passed
            assert f"the output of layer on rank {rank}, by " in found.verdict
        other = mimokit.compare(wrong, one)
        assert not other.passed
        if how in ("copies", "placements", "marks"):  # copies of the first recording differ
            assert f"on rank {rank} of {wrong}, whose ranks should" in other.verdict


def test_summands_are_added_and_a_wrong_copy_of_one_is_named(tmp_path: Path) -> None:
    half = {"whole": [8, 4], "offset": [0, 0]}
    summands = [(WHOLE / 2, {**half, "summand": [rank // 2]}) for rank in range(4)]
    one = _recording(tmp_path / "one", [(WHOLE, {})])
    assert mimokit.compare(one, _recording(tmp_path / "sum", summands)).passed
    wrong = [*summands[:3], (WHOLE, summands[3][1])]
    found = mimokit.compare(one, _recording(tmp_path / "wrong", wrong))
    assert "the output of layer on rank 3, by 5.0e-01" in found.verdict


def test_names_and_cuts_can_be_given(tmp_path: Path) -> None:
    one = _recording(tmp_path / "one", [(WHOLE, {})], "decoder.up")
    uneven = [(WHOLE[:, :2], {}), (WHOLE[:, 2:], {})]
    square = _recording(tmp_path / "square", [(WHOLE[:4], {})] * 2, "decoder.up")
    ranks = _recording(tmp_path / "ranks", uneven, "model.up")
    with pytest.raises(ValueError, match="have no tensor in common"):
        mimokit.compare(one, ranks)
    assert mimokit.compare(one, ranks, names={"model": "decoder"}).passed
    wrong = mimokit.compare(one, square)
    assert "on rank 1, by" in wrong.verdict, "rows are told by the shape"
    found = mimokit.compare(one, ranks, names={"model": "decoder"}, cuts={"decoder.up": 0})
    assert "How ranks share decoder.up cannot be told" in found.verdict
    for option, words in (
        (["--name", "model=decoder", "--cut", "decoder.up=1"], "are the same"),
        (["--name", "model"], "--name model should be SECOND=FIRST"),
        (["--name", "other=decoder"], "The second recording has no other; it has model.up"),
        (["--cut", "decoder.up=row"], "--cut decoder.up=row should be NAME=DIMENSION"),
        (["--name", "model=decoder", "--cut", "decoder.up=2"], "has 2 dimensions; none is 2"),
    ):
        done = call("compare", one, ranks, *option)
        assert words in " ".join(done.output.split()), done.output
        assert done.exit_code == (0 if words == "are the same" else 2)


def test_layers_and_experts_have_the_numbers_of_the_whole_model() -> None:
    layer, experts = torch.nn.Module(), torch.nn.Module()
    layer.layer_number, layer.mlp = 3, torch.nn.Module()
    layer.mlp.local_expert_indices, layer.mlp.experts = [4, 5], experts
    experts.local_experts = torch.nn.ModuleList([torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)])
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList([layer])
    assert numbers_in_whole(model) == {
        "layers.0": "2",
        "layers.0.mlp.experts.local_experts.0": "4",
        "layers.0.mlp.experts.local_experts.1": "5",
    }


def _trained(folder: Path, *layers: torch.nn.Module) -> Path:
    model = torch.nn.Sequential(*layers)
    with mimokit.watch(model, folder):
        model(torch.ones(1, 2)).sum().backward()
    return folder


def test_models_of_other_shapes_are_not_the_same(tmp_path: Path) -> None:
    four, six = (_trained(tmp_path / str(n), torch.nn.Linear(2, n)) for n in (4, 6))
    found = mimokit.compare(four, six)
    assert not found.passed
    assert found.reshaped == ("0 (1 x 4 and 1 x 6)",)
    assert f"{four} and {six} are of different models: 0 (1 x 4 and 1 x 6)" in found.verdict
    done = call("compare", four, six)
    assert done.exit_code == 1, done.output


def test_what_only_one_model_has_is_named(tmp_path: Path) -> None:
    torch.manual_seed(1)
    first = torch.nn.Linear(2, 2)
    one = _trained(tmp_path / "one", first)
    two = _trained(tmp_path / "two", first, torch.nn.Linear(2, 2))
    found = mimokit.compare(one, two)
    assert found.unlike == ((), ("1",))
    assert found.verdict.endswith(f" Only {two} has 1.")
    assert mimokit.compare(two, one).unlike == (("1",), ())


def test_where_nothing_can_be_compared_nothing_passes(tmp_path: Path) -> None:
    one = _recording(tmp_path / "one", [(WHOLE, {})])
    cut = _recording(tmp_path / "cut", [(WHOLE[:3], {}), (WHOLE[3:6], {})])
    found = mimokit.compare(one, cut)
    assert not found.passed
    assert found.verdict == (
        f"No tensor of {one} and {cut} could be compared. How ranks share layer cannot be told; "
        "not compared."
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"world_size": 1, "st', "rank-0.json cannot be read"),
        ("[]", "rank-0.json was not written by this version of mimokit.watch"),
        ('{"world_size": 1}', "rank-0.json was not written by this version of mimokit.watch"),
    ],
    ids=["half", "list", "foreign"],
)
def test_an_index_that_is_not_whole_is_said(tmp_path: Path, content: str, words: str) -> None:
    one = _recording(tmp_path / "one", [(WHOLE, {})])
    other = _recording(tmp_path / "other", [(WHOLE, {})])
    (other / "rank-0.json").write_text(content)
    with pytest.raises(ValueError, match=words):
        mimokit.compare(one, other)
    done = call("compare", one, other)
    assert done.exit_code == 2
    assert "Traceback" not in done.output


@pytest.mark.parametrize("name", ["rank-1.json", "rank-1.safetensors"])
def test_files_of_two_recordings_are_not_mixed(tmp_path: Path, name: str) -> None:
    ranks = _recording(tmp_path / "ranks", _parts("copies"))
    if name.endswith("json"):
        about = json.loads((ranks / name).read_text())
        (ranks / name).write_text(json.dumps({**about, "recording": "earlier"}))
    else:
        save_file({"0": WHOLE}, ranks / name, {"recording": "earlier"})
    with pytest.raises(ValueError, match="has files of several recordings: those of rank 1 are"):
        mimokit.compare(ranks, ranks)


def test_a_second_recording_into_a_folder_is_another_one(tmp_path: Path) -> None:
    names = []
    for _ in range(2):
        _trained(tmp_path / "same", torch.nn.Linear(2, 2))
        names.append(json.loads((tmp_path / "same" / "rank-0.json").read_text())["recording"])
        mimokit.compare(tmp_path / "same", tmp_path / "same")
    assert len(set(names)) == 2
    assert {path.name for path in (tmp_path / "same").iterdir()} == {
        "rank-0.json", "rank-0.safetensors",
    }  # fmt: skip
