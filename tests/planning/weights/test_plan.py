"""Every entry of every tensor is held by the ranks that need it, and by no other."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimokit.architecture.tensor_cut import TensorShard
from mimokit.planning.weights import WeightPlan, plan_weights, read_directory
from tests.cli.call import call
from tests.hugging_face_weights import WHOLE, checkpoint
from tests.rows import rows
from tests.sparse_weights import LLAMA_70B, sparse_checkpoint

LAYOUTS = ((1, 1), (2, 2), (4, 1), (8, 3))


def holders(directory: Path, plan: WeightPlan) -> dict[str, np.ndarray[Any, Any]]:
    """Return tensor -> how often each of its entries is held, from the plan's JSON.

    Raises:
        AssertionError: an entry of a parameter is filled twice, or stays empty outside padding.
    """
    tensors = read_directory(directory).tensors
    counts = {name: np.zeros(one.shape or (1,), int) for name, one in tensors.items()}
    for rank in plan.to_json()["ranks"].values():
        for name, parameter in rank["parameters"].items():
            filled = np.zeros(parameter["shape"], int)
            for piece in parameter["pieces"]:
                block = counts[piece["tensor"]][slice(*piece["rows"])]
                if piece["columns"] is not None:
                    block = block[:, slice(*piece["columns"])]
                block += 1
                shape = block.T.shape if piece["transposed"] else block.shape
                row, column = piece["at"]
                if len(shape) == filled.ndim:
                    place = tuple(
                        slice(start, start + length)
                        for start, length in zip((row, column, 0), shape, strict=False)
                    )
                else:  # a class token, a patch embedding: as many entries in the same order
                    assert block.size == filled.size
                    place = (slice(None),)
                filled[place] += 1
            assert filled.max() <= 1, name
            empty = filled.reshape(len(filled), -1).min(axis=1) == 0
            padding = np.zeros(len(filled), bool)
            if "word_embeddings" in name or "output_layer" in name:
                padding = np.arange(*rank["vocab"]) >= plan.vocab_size
            assert np.array_equal(empty, padding), name
    return counts


def check_entries(name: str) -> None:
    directory = checkpoint(name)
    for tensor, pipeline in LAYOUTS:
        plan = plan_weights(directory, tensor, pipeline)
        copies = {1, tensor}
        for held, count in holders(directory, plan).items():
            if held.startswith(("text_", "logit_", "visual_projection")):
                assert not count.any()
                continue
            tied = name in ("qwen2", "gpt2", "mimo") and held.endswith(
                ("embed_tokens.weight", "wte.weight")
            )
            assert count.min() == count.max(), held
            assert count.max() in ({2} if tied and pipeline > 1 else copies), held


@rows("name", *WHOLE)
def test_every_entry_is_held_once_or_by_all_ranks_of_a_stage(name: str) -> None:
    check_entries(name)


def test_a_row_that_no_rank_holds_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = TensorShard._spans

    def short(shard: TensorShard, dimension: int) -> Any:
        return [(start, stop - 1, local) for start, stop, local in right(shard, dimension)]

    monkeypatch.setattr(TensorShard, "_spans", short)
    with pytest.raises(AssertionError):
        check_entries("gpt2")


def test_gate_and_up_and_the_groups_are_cut_where_megatron_cuts_them() -> None:
    """Llama with 8 heads of width 4 in 4 groups, feed-forward width 48, on TP 2."""
    rank = plan_weights(checkpoint("llama"), 2).ranks[1]
    layer = "decoder.layers.3."
    fc1 = rank.parameters[f"{layer}mlp.linear_fc1.weight"]
    assert fc1.shape == (48, 32)
    assert [(one.tensor.split(".")[-2], one.rows, one.at) for one in fc1.pieces] == [
        ("gate_proj", (24, 48), (0, 0)), ("up_proj", (24, 48), (24, 0))
    ]  # fmt: skip
    qkv = rank.parameters[f"{layer}self_attention.linear_qkv.weight"]
    assert [(one.tensor.split(".")[-2], one.rows, one.at[0]) for one in qkv.pieces] == [
        ("q_proj", (16, 24), 0), ("k_proj", (8, 12), 8), ("v_proj", (8, 12), 12),
        ("q_proj", (24, 32), 16), ("k_proj", (12, 16), 24), ("v_proj", (12, 16), 28),
    ]  # fmt: skip
    proj = rank.parameters[f"{layer}self_attention.linear_proj.weight"].pieces[0]
    assert (proj.rows, proj.columns) == ((0, 32), (16, 32))
    assert (rank.query_heads, rank.query_groups, rank.vocab) == ((4, 8), (2, 4), (51, 102))


def test_fewer_groups_than_ranks_cut_rows_and_share_groups() -> None:
    """Qwen2 with 8 heads of width 4 in 2 groups on TP 4: Megatron cuts 48 rows into 12 each."""
    ranks = plan_weights(checkpoint("qwen2"), 4).ranks
    assert [rank.query_groups for rank in ranks] == [(0, 1), (0, 1), (1, 2), (1, 2)]
    qkv = ranks[1].parameters["decoder.layers.0.self_attention.linear_qkv.bias"]
    assert qkv.shape == (12,)
    assert [(one.tensor.split(".")[-2], one.rows, one.at[0]) for one in qkv.pieces] == [
        ("q_proj", (12, 16), 0), ("k_proj", (0, 4), 4), ("v_proj", (0, 4), 8)
    ]  # fmt: skip


def test_bytes_are_counted_in_the_dtype_of_loading_and_touched_in_that_of_the_files() -> None:
    directory = checkpoint("mistral")
    stored, loaded = plan_weights(directory, 4), plan_weights(directory, 4, dtype="float32")
    assert [2 * rank.bytes for rank in stored.ranks] == [rank.bytes for rank in loaded.ranks]
    assert stored.ranks[0].bytes_touched == loaded.ranks[0].bytes_touched
    whole = sum(one.bytes for one in read_directory(directory).tensors.values())
    assert plan_weights(directory).ranks[0].bytes_touched == whole
    cut_by_columns = 4 * (32 * 64 + 32 * 48) * 2  # o_proj and down_proj: every rank reads all rows
    norms = 9 * 32 * 2
    quarters = (whole - cut_by_columns - norms - 2 * 101 * 32 * 2) // 4 + 2 * 26 * 32 * 2
    assert stored.ranks[0].bytes_touched == cut_by_columns + norms + quarters


@settings(max_examples=25)
@given(
    groups=st.sampled_from([1, 2, 3, 4, 8]),
    per_group=st.integers(1, 4),
    width=st.integers(1, 5),
    tensor=st.sampled_from([1, 2, 3, 4, 8]),
    pipeline=st.integers(1, 4),
    vocab=st.integers(1, 20),
)
def test_any_llama_that_a_layout_can_cut_is_held_once(
    tmp_path_factory: pytest.TempPathFactory,
    groups: int, per_group: int, width: int, tensor: int, pipeline: int, vocab: int,
) -> None:  # fmt: skip
    config = {
        **LLAMA_70B, "hidden_size": 6, "intermediate_size": 24, "num_hidden_layers": 4,
        "num_attention_heads": groups * per_group, "num_key_value_heads": groups,
        "head_dim": width, "vocab_size": vocab,
    }  # fmt: skip
    directory = sparse_checkpoint(tmp_path_factory.mktemp("llama"), config)
    try:
        plan = plan_weights(directory, tensor, pipeline)
    except ValueError as error:
        assert groups * per_group % tensor or groups % tensor or pipeline == 3
        assert "tensor_parallel" in str(error) or "pipeline_parallel" in str(error)  # noqa: PT017
        return
    for count in holders(directory, plan).values():
        assert count.min() == count.max()
        assert count.max() in (1, tensor)


def test_the_command_prints_json_alone_and_ranks_as_the_rank_map_numbers_them() -> None:
    directory = str(checkpoint("llama"))
    command = ["weights", directory, "--tp", "2", "--pp", "2", "--json"]
    done = call(*command)
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert list(found) == [
        "model_type", "tensor_parallel", "pipeline_parallel", "vocab_size", "padded_vocab_size",
        "ranks",
    ]  # fmt: skip
    assert [(rank["tp"], rank["pp"]) for rank in found["ranks"].values()] == [
        (0, 0), (1, 0), (0, 1), (1, 1)
    ]  # fmt: skip
    assert (found["vocab_size"], found["padded_vocab_size"]) == (101, 102)
    rank = found["ranks"]["3"]
    assert list(rank) == [
        "tp", "pp", "query_heads", "query_groups", "vocab", "bytes", "bytes_touched", "parameters"
    ]  # fmt: skip
    parameter = rank["parameters"]["output_layer.weight"]
    assert parameter == {
        "shape": [51, 32], "dtype": "float32",
        "pieces": [{
            "file": "model.safetensors", "tensor": "lm_head.weight", "rows": [51, 101],
            "columns": None, "transposed": False, "at": [0, 0],
        }],
    }  # fmt: skip
    layers = {name.split(".")[2] for name in rank["parameters"] if "layers" in name}
    assert layers == {"2", "3"}


def test_the_table_names_what_every_rank_holds_whole() -> None:
    done = call("weights", checkpoint("gpt2"), "--tp", "4")
    rows: dict[str, str] = defaultdict(str)
    for line in done.stdout.splitlines():
        cells = line.split()
        if len(cells) > 1:
            rows[cells[1]] = line
    assert "whole on every rank" in rows["decoder.layers.N.mlp.linear_fc2.bias"]
    assert "columns" in rows["decoder.layers.N.mlp.linear_fc2.weight"]
    assert "h.N.attn.c_attn.weight" in rows["decoder.layers.N.self_attention.linear_qkv.weight"]
