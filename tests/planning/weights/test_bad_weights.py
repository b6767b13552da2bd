"""What is wrong with a checkpoint is one sentence that names it, before a tensor is read."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from mimokit.config.errors import ConfigError
from mimokit.planning.weights import plan_weights
from tests.cli.call import call
from tests.hugging_face_weights import checkpoint
from tests.sparse_weights import LLAMA_70B, sparse_checkpoint, write_file, write_header

TINY = {**LLAMA_70B, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 6}  # fmt: skip
FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
Break = Callable[[Path], object]


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return sparse_checkpoint(tmp_path / "tiny", TINY)


def header(path: Path) -> dict[str, Any]:
    content = (path / FILE).read_bytes()
    return dict(json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")]))


def rewrite(change: Callable[[dict[str, Any]], object]) -> Break:
    """Return what changes the header and leaves as many bytes of data."""

    def do(path: Path) -> None:
        entries = header(path)
        size = max(one["data_offsets"][1] for one in entries.values())
        change(entries)
        write_header(path / FILE, entries, size)

    return do


def with_tensors(change: Callable[[dict[str, tuple[int, ...]]], object]) -> Break:
    """Return what changes names and shapes, and writes a right file of them."""

    def do(path: Path) -> None:
        shapes = {name: tuple(one["shape"]) for name, one in header(path).items()}
        change(shapes)
        write_file(path / FILE, shapes)

    return do


def with_config(**changed: object) -> Break:
    def do(path: Path) -> None:
        path.joinpath("config.json").write_text(json.dumps({**TINY, **changed}))

    return do


def into_pickle(path: Path) -> None:
    path.joinpath(FILE).rename(path / "pytorch_model.bin")


def into_pipe(path: Path) -> None:
    path.joinpath(FILE).unlink()
    os.mkfifo(path / FILE)


def indexed(weight_map: object) -> Break:
    def do(path: Path) -> None:
        path.joinpath(FILE).rename(path / "a.safetensors")
        path.joinpath(INDEX).write_text(json.dumps({"weight_map": weight_map}))

    return do


def twice(path: Path) -> None:
    indexed({"x": "a.safetensors", "y": "b.safetensors"})(path)
    shutil.copy(path / "a.safetensors", path / "b.safetensors")


Q = "model.layers.0.self_attn.q_proj.weight"
BROKEN: Mapping[str, tuple[Break, str]] = {
    "no directory": (shutil.rmtree, "it does not exist"),
    "no config": (lambda path: (path / "config.json").unlink(), r"config.json.* cannot be read"),
    "config is a list": (lambda path: (path / "config.json").write_text("[1]"), "mapping in JSON"),
    "no weights": (lambda path: (path / FILE).unlink(), "it has no weights; put"),
    "pickle": (into_pickle, "'pytorch_model.bin', a pickle, which can run code and is not opened"),
    "no index": (lambda path: (path / FILE).rename(path / "model-1.safetensors"),
                 "it has model-1.safetensors, but neither"),
    "index without map": (indexed([]), "it has no weight_map"),
    "index names a missing file": (
        indexed({"x": "b.safetensors"}), "it names 'b.safetensors', which does not exist"
    ),
    "index names a pickle": (indexed({"x": "b.bin"}), "'b.bin', which is no .safetensors file"),
    "index leaves the directory": (
        indexed({"x": "../b.safetensors"}), "into '../b.safetensors'; name a file of this directory"
    ),
    "two files have a tensor": (twice, "lies in a.safetensors and in b.safetensors"),
    "empty file": (lambda path: (path / FILE).write_bytes(b""), "truncated .* it has 0 bytes"),
    "header longer than the file": (
        lambda path: (path / FILE).write_bytes(b"\xff" * 9), "truncated .* header of 18,446"
    ),
    "header is not JSON": (
        lambda path: (path / FILE).write_bytes(b"\x02" + bytes(7) + b"no"), "not a mapping in JSON"
    ),
    "metadata are no texts": (
        rewrite(lambda one: one.update(__metadata__={"format": 1})), "mapping from text to text"
    ),
    "half a character in a name": (
        rewrite(lambda one: one.update({"\ud800": one.pop(Q)})), "not a mapping in JSON"
    ),
    "weights are a pipe": (into_pipe, "it is a pipe"),
    "index names a file with a zero byte": (
        indexed({"x": "\0.safetensors"}), "name a file of this directory"
    ),
    "index names a file too long": (
        indexed({"x": "x" * 255 + ".safetensors"}), "name a file of this directory"
    ),
    "truncated data": (lambda path: (path / FILE).write_bytes((path / FILE).read_bytes()[:-1]),
        r"it is truncated: 'lm_head.weight' ends|it is truncated: 'model.norm.weight' ends"),
    "data behind the end": (
        lambda path: (path / FILE).write_bytes((path / FILE).read_bytes() + b"x"),
        "its header accounts for",
    ),
    "offsets of another size": (rewrite(lambda one: one[Q].update(data_offsets=[0, 4])),
        rf"offsets 0 to 4 for '{Q}', but BF16 of shape \[8, 8\] has 128 bytes"),
    "offsets that overlap": (
        rewrite(lambda one: one[Q].update(data_offsets=[8, 136])), "begins at byte"
    ),
    "offsets that are words": (
        rewrite(lambda one: one[Q].update(data_offsets="ab")), "no dtype, shape and data_offsets"
    ),
    "negative shape": (rewrite(lambda one: one[Q].update(shape=[-8, -8])), "no dtype, shape"),
    "unknown dtype": (rewrite(lambda one: one[Q].update(dtype="F3")), "no dtype, shape"),
    "quantized": (
        rewrite(lambda one: one[Q].update(dtype="I16")), f"{Q} is stored as I16; only F64, F32"
    ),
    "dtypes differ within a parameter": (rewrite(lambda one: one[Q].update(dtype="F16")),
        "is stored as .*; they form decoder.layers.0.self_attention.linear_qkv.weight"),
    "missing tensor": (with_tensors(lambda one: one.pop(Q)), f"{Q} is in none of its files"),
    "no embedding": (with_tensors(lambda one: one.pop("model.embed_tokens.weight")),
                     "one tensor whose name ends in embed_tokens.weight, and there is none"),
    "two embeddings": (with_tensors(lambda one: one.update({"x.embed_tokens.weight": (6, 8)})),
                       "there are 2 of them"),
    "unexpected tensor": (
        with_tensors(lambda one: one.update(extra=(2,))), "extra is in model.safetensors, but no"
    ),
    "wrong shape": (with_tensors(lambda one: one.update({Q: (4, 8)})),
                    rf"{Q} has the shape \[4, 8\], and config.json makes it \[8, 8\]"),
    "config of more layers": (
        with_config(num_hidden_layers=3), r"layers.2\..* and 8 others are in none of its files"
    ),
    "config of fewer layers": (with_config(num_hidden_layers=1), "layers.1.* and 8 others are in"),
    "config ties what the file does not": (with_config(attention_bias=True), "proj.bias and"),
    "unknown family": (with_config(model_type="lama"), "'lama'.* did you mean llama"),
    "family without weights": (with_config(model_type="gemma2"),
        r"'gemma2' cannot be read \(missing: sliding.*capped logits.*\); those of .*qwen3.* can"),
    "family of a later day": (with_config(model_type="qwen4"), "'qwen4' cannot be read; those of"),
    "no model_type": (with_config(model_type=None), "model_type is missing"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_checkpoint_is_rejected_in_a_sentence(tiny: Path, case: str) -> None:
    do, sentence = BROKEN[case]
    do(tiny)
    with pytest.raises(ConfigError, match=sentence) as caught:
        plan_weights(tiny)
    for line in str(caught.value).splitlines():
        assert line.endswith((".", "?"))
        assert len(line) < 400


@pytest.mark.parametrize(
    ("tensor", "pipeline", "sentence"),
    [
        (3, 1, "tensor_parallel 3 does not divide the attention heads of the model, 8"),
        (16, 1, "tensor_parallel 16 does not divide the attention heads"),
        (0, 1, "tensor_parallel is 0; it must be at least 1"),
        (1, 3, "pipeline_parallel is 3, and the model has 2 layers"),
        (8, 4096, "are 32,768 ranks; at most 16,384"),
    ],
)
def test_a_layout_that_cannot_cut_the_model_is_rejected(
    tiny: Path, tensor: int, pipeline: int, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        plan_weights(tiny, tensor, pipeline)


def test_ends_that_do_not_fit_in_the_last_stage_are_rejected() -> None:
    """Of 8 layers, an embedding, a loss and 2 layers of further tokens 6 stages have 2 each."""
    what = "and 2 layers of further tokens counted as layers, 12, or the last stage has no room"
    with pytest.raises(ConfigError, match=what):
        plan_weights(checkpoint("mimo"), 1, 6)


def test_a_size_that_neither_divides_the_groups_nor_is_a_multiple_is_rejected(
    tmp_path: Path,
) -> None:
    config = {**TINY, "num_attention_heads": 24, "num_key_value_heads": 6, "head_dim": 2}
    directory = sparse_checkpoint(tmp_path, config)
    with pytest.raises(ConfigError, match="4 neither divides the 6 key and value groups"):
        plan_weights(directory, 4)


def test_layers_that_no_split_deals_out_are_rejected(tmp_path: Path) -> None:
    directory = sparse_checkpoint(tmp_path, {**TINY, "num_hidden_layers": 5})
    with pytest.raises(ConfigError, match="3 divides neither the 5 layers nor"):
        plan_weights(directory, 1, 3)
    assert [rank.layers for rank in plan_weights(directory, 1, 5).ranks][1:3] == [(1, 2), (2, 3)]


def test_an_unknown_dtype_is_rejected_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"did you mean .*float16"):
        plan_weights(checkpoint("llama"), dtype="float61")


def test_the_command_exits_with_2_and_a_sentence(tiny: Path) -> None:
    into_pickle(tiny)
    for arguments in ([str(tiny)], [str(checkpoint("llama")), "--tp", "3", "--json"]):
        done = call("weights", *arguments)
        assert done.exit_code == 2
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) == 1
