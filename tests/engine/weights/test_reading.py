"""The shards of all ranks are the checkpoint, bit for bit, and nothing else is read."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from mimokit.architecture.huggingface import ENCODER, LANGUAGE, PROJECTOR
from mimokit.config.errors import ConfigError
from mimokit.engine.weights.files import FileTensors
from mimokit.engine.weights.reading import fill
from mimokit.engine.weights.shard import read_shard
from mimokit.planning.weights import WeightPlanner, read_directory
from tests.engine.weights.inverse import Tensors, fused, joined, to_hf
from tests.hugging_face_weights import WHOLE, checkpoint
from tests.rows import rows
from tests.sparse_weights import LLAMA_70B, sparse_checkpoint

SIZES = {
    "llama": (8, 4, 4), "llama_with_biases": (8, 2, 4), "mistral": (8, 4, 8), "qwen2": (8, 2, 4),
    "qwen3": (8, 2, 8), "mimo": (8, 2, 4), "phi3": (8, 4, 4), "gpt2": (8, 8, 4), "llava": (8, 4, 4),
}  # fmt: skip
"""Heads, groups and width of the language models."""


def stored(directory: Path) -> Tensors:
    return {
        name: value
        for file in directory.glob("*.safetensors")
        for name, value in load_file(file).items()
    }


def shards(directory: Path, tensor: int, pipeline: int, **more: Any) -> list[list[Tensors]]:
    return [
        [
            read_shard(
                directory, tensor_parallel=tensor, tensor_rank=rank, pipeline_parallel=pipeline,
                pipeline_rank=stage, **more,
            )
            for rank in range(tensor)
        ]
        for stage in range(pipeline)
    ]  # fmt: skip


def of_module(whole: Tensors, prefix: str) -> Tensors:
    return {
        one.removeprefix(prefix): value for one, value in whole.items() if one.startswith(prefix)
    }


def back(name: str, whole: Tensors) -> Tensors:
    """Return the tensors of the file, names without prefixes."""
    if name == "llava":
        projector = {
            one.replace("encoder.linear_fc", "linear_"): value
            for one, value in of_module(whole, PROJECTOR).items()
        }
        language = to_hf(of_module(whole, LANGUAGE), *SIZES[name], 101)
        return {**to_hf(of_module(whole, ENCODER), 8, 8, 4, None), **projector, **language}
    if name == "phi3":
        return fused(to_hf(whole, *SIZES[name], 101))
    if name in SIZES:
        return to_hf(whole, *SIZES[name], 101)
    return to_hf(whole, 8, 8, 4, None)


def assert_same(found: Tensors, wanted: Tensors) -> None:
    """Every tensor of the file is found by the end of its name, or belongs to no module read."""
    left = dict(found)
    for name, value in wanted.items():
        if name.startswith(("text_", "logit_", "visual_projection")):
            continue
        end = next(one for one in left if f".{name}".endswith(f".{one}"))
        got = left.pop(end)
        assert got.dtype == value.dtype
        assert torch.equal(got.reshape(value.shape), value), name
    assert set(left) <= {"lm_head.weight", "output_layer.weight"}  # a tied head on the last stage


def check_shards(name: str, layout: tuple[int, int]) -> None:
    directory = checkpoint(name)
    assert_same(back(name, joined(shards(directory, *layout))), stored(directory))


@rows("layout, name", *itertools.product([(1, 1), (2, 2), (4, 1), (8, 3)], WHOLE))
def test_the_shards_of_all_ranks_are_the_checkpoint(name: str, layout: tuple[int, int]) -> None:
    check_shards(name, layout)


def test_padding_is_zero_and_a_tied_head_is_on_both_ends() -> None:
    stages = shards(checkpoint("qwen2"), 4, 2)
    tables = [[one["embedding.word_embeddings.weight"] for one in stages[0]],
              [one["output_layer.weight"] for one in stages[1]]]  # fmt: skip
    first, last = map(torch.cat, tables)
    assert torch.equal(first, last)
    assert first.shape == (104, 32)
    assert not first[101:].any()
    assert first[100].any()


@rows("dtype", torch.float32, torch.float16, torch.float64)
def test_parameters_have_the_dtype_asked_for(dtype: torch.dtype) -> None:
    directory = checkpoint("mistral")  # bf16
    found = back("mistral", joined(shards(directory, 2, 1, dtype=dtype)))
    assert_same(found, {name: value.to(dtype) for name, value in stored(directory).items()})


@settings(max_examples=15)
@given(
    groups=st.sampled_from([1, 2, 4]),
    per_group=st.integers(1, 3),
    tensor=st.sampled_from([1, 2, 4]),
    pipeline=st.integers(1, 2),
    vocab=st.integers(1, 9),
)
def test_any_llama_is_cut_and_put_together(
    tmp_path_factory: pytest.TempPathFactory,
    groups: int, per_group: int, tensor: int, pipeline: int, vocab: int,
) -> None:  # fmt: skip
    heads = groups * per_group
    config = {**LLAMA_70B, "hidden_size": 6, "intermediate_size": 48, "num_hidden_layers": 2,
              "num_attention_heads": heads, "num_key_value_heads": groups, "head_dim": 4,
              "vocab_size": vocab}  # fmt: skip
    directory = sparse_checkpoint(tmp_path_factory.mktemp("llama"), config)
    wanted = {
        name: torch.randn(one.shape) for name, one in read_directory(directory).tensors.items()
    }
    save_file(wanted, directory / "model.safetensors")
    if heads % tensor:
        with pytest.raises(ConfigError, match="does not divide"):
            shards(directory, tensor, pipeline)
        return
    found = to_hf(joined(shards(directory, tensor, pipeline)), heads, groups, 4, vocab)
    assert_same(found, wanted)


def test_a_module_is_filled_in_place_and_another_network_is_named() -> None:
    directory = checkpoint("llama")
    planner = WeightPlanner(directory, 2)
    planned, tensors = planner.rank(1), planner.stored.tensors
    source = FileTensors(directory, {name: one.file for name, one in tensors.items()})
    module = {
        name: torch.nn.Parameter(torch.full(one.shape, torch.nan))
        for name, one in planned.parameters.items()
    }
    before = {name: one.data_ptr() for name, one in module.items()}
    fill(module, planned, source)
    wanted = read_shard(directory, tensor_parallel=2, tensor_rank=1)
    for name, one in module.items():
        assert torch.equal(one, wanted[name])
        assert one.data_ptr() == before[name]
    with pytest.raises(ConfigError, match=r"output_layer\.weight: the weights have it"):
        fill({name: one for name, one in module.items() if "output" not in name}, planned, source)
    module["output_layer.weight"] = torch.nn.Parameter(torch.zeros(64, 32))
    with pytest.raises(ConfigError, match=r"its shape is \[64, 32\] in the module, \[51, 32\]"):
        fill(module, planned, source)


def test_a_rank_that_the_layout_does_not_have_is_rejected() -> None:
    with pytest.raises(ConfigError, match="tensor_rank is 2, and tensor_parallel is 2"):
        read_shard(checkpoint("llama"), tensor_parallel=2, tensor_rank=2)
    with pytest.raises(ConfigError, match="pipeline_rank is -1"):
        read_shard(checkpoint("llama"), pipeline_rank=-1)


def test_a_naive_slice_of_gate_and_up_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault computes something, has the right shape, and is not the model."""
    from mimokit.architecture import feed_forward

    def naive(name: str, place: Any, shape: Any, bias: Any, parts: int = 1, of: Any = None) -> Any:
        yield from right(name, place, shape, bias, of=of)

    right = feed_forward.cut_outputs
    monkeypatch.setattr(feed_forward, "cut_outputs", naive)
    with pytest.raises(AssertionError, match=r"gate_proj|up_proj"):
        check_shards("llama", (2, 1))
