"""Through any layouts and back, a checkpoint keeps its bits; what goes wrong leaves nothing."""

import json
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from mimokit.cli.main import app
from mimokit.config.errors import ConfigError
from mimokit.engine.weights import convert_to_hf, convert_to_layout, read_shard
from tests.hugging_face_weights import WHOLE, checkpoint
from tests.qwen_vl import KINDS, qwen_checkpoint


@pytest.mark.parametrize("name", [*WHOLE, *KINDS])
def test_there_through_another_layout_and_back_every_file_is_the_same(
    name: str, tmp_path: Path
) -> None:
    source = qwen_checkpoint(name) if name in KINDS else checkpoint(name)
    convert_to_layout(source, tmp_path / "first", 2, 2)
    convert_to_layout(tmp_path / "first", tmp_path / "second", 4, 3)
    convert_to_hf(tmp_path / "second", tmp_path / "back")
    names = sorted(one.name for one in source.iterdir())
    assert sorted(one.name for one in (tmp_path / "back").iterdir()) == names
    for file in names:
        found, wanted = tmp_path / "back" / file, source / file
        if file.endswith(".index.json"):
            assert json.loads(found.read_text()) == json.loads(wanted.read_text())
        else:
            assert found.read_bytes() == wanted.read_bytes(), file


def test_the_files_of_ranks_are_the_shards_whatever_layout_they_come_from(tmp_path: Path) -> None:
    source = checkpoint("llama")
    convert_to_layout(source, tmp_path / "first", 8, 1)
    layout = convert_to_layout(tmp_path / "first", tmp_path / "second", 2, 2)
    for number, rank in enumerate(layout.plan.ranks):
        place = {
            "tensor_parallel": 2, "tensor_rank": rank.tensor_rank, "pipeline_parallel": 2,
            "pipeline_rank": rank.pipeline_rank,
        }  # fmt: skip
        written = load_file(tmp_path / "second" / layout.files[number])
        for directory in (source, tmp_path / "first"):
            wanted = read_shard(directory, **place)
            assert written.keys() == wanted.keys()
            assert all(torch.equal(written[one], wanted[one]) for one in wanted)
    stated = json.loads((tmp_path / "second" / "layout.json").read_text())
    assert stated["ranks"]["3"]["tp"] == stated["ranks"]["3"]["pp"] == 1
    assert stated["padded_vocab_size"] == 102


def test_hugging_face_reads_what_was_split_anew(tmp_path: Path) -> None:
    from transformers import Qwen2ForCausalLM

    source = checkpoint("qwen2")
    convert_to_layout(source, tmp_path / "layout", 4)
    files = convert_to_hf(tmp_path / "layout", tmp_path / "back", max_shard_size=30_000)
    count = len(files)
    assert count > 3
    assert files == tuple(
        f"model-{number + 1:05}-of-{count:05}.safetensors" for number in range(count)
    )
    assert all((tmp_path / "back" / one).stat().st_size < 32_000 for one in files)
    found = Qwen2ForCausalLM.from_pretrained(tmp_path / "back").state_dict()
    wanted = Qwen2ForCausalLM.from_pretrained(source).state_dict()
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[one], wanted[one]) for one in wanted)


def test_not_a_number_keeps_its_bits(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for file in checkpoint("mistral").iterdir():
        (source / file.name).write_bytes(file.read_bytes())
    file = next(source.glob("*-00003-*"))
    tensors = load_file(file)
    for tensor in tensors.values():  # every pattern of 16 bits, NaN with payloads among them
        tensor.view(torch.int16).copy_(torch.randint(-(2**15), 2**15, tensor.shape))
    save_file(tensors, file, {"format": "pt"})
    convert_to_layout(source, tmp_path / "layout", 2)
    convert_to_hf(tmp_path / "layout", tmp_path / "back")
    assert (tmp_path / "back" / file.name).read_bytes() == file.read_bytes()


def edited(path: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


@pytest.mark.parametrize(
    ("model", "rank", "parameter", "ranks"),
    [
        ("llama", 3, "decoder.final_layernorm.weight", "2 and 3"),
        ("gpt2", 1, "decoder.layers.0.mlp.linear_fc2.bias", "0 and 1"),
        ("qwen2", 2, "output_layer.weight", "0 and 2"),
        ("siglip_tower", 1, "patch_embedding.weight", "0 and 1"),
    ],
)
def test_a_replica_that_differs_stops_the_conversion_and_is_named(
    tmp_path: Path, model: str, rank: int, parameter: str, ranks: str
) -> None:
    layout = convert_to_layout(checkpoint(model), tmp_path / "layout", 2, 2)
    edited(
        tmp_path / "layout" / layout.files[rank], lambda one: one[parameter].view(-1)[:1].add_(1)
    )
    with pytest.raises(ConfigError, match=f"{parameter}: ranks {ranks} hold different values"):
        convert_to_hf(tmp_path / "layout", tmp_path / "back")
    with pytest.raises(ConfigError, match=f"{parameter}: ranks {ranks} hold different values"):
        convert_to_layout(tmp_path / "layout", tmp_path / "other")
    assert [one.name for one in tmp_path.iterdir()] == ["layout"]


@pytest.mark.parametrize(
    ("do", "sentence"),
    [
        (lambda one: (one / "rank_00001.safetensors").unlink(), "rank_00001.* cannot be read"),
        (
            lambda one: edited(one / "rank_00001.safetensors", lambda held: held.popitem()),
            "is not in it",
        ),
        (
            lambda one: edited(
                one / "rank_00001.safetensors",
                lambda held: held.update({"decoder.final_layernorm.weight": torch.zeros(2)}),
            ),
            r"final_layernorm.weight is F32 \[2\] in it, and the layout makes it float32 \[32\]",
        ),
        (lambda one: (one / "layout.json").write_text("{}"), "its format is None"),
        (
            lambda one: (one / "layout.json").write_text(
                (one / "layout.json").read_text().replace('"shape": [', '"shape": ["x", ', 1)
            ),
            "no file, dtype and shape of",
        ),
        (
            lambda one: (one / "layout.json").write_text(
                (one / "layout.json").read_text().replace('"file": "model', '"file": "\\u0000', 1)
            ),
            "no file, dtype and shape of",
        ),
    ],
)
def test_a_damaged_layout_is_rejected(
    tmp_path: Path, do: Callable[[Path], object], sentence: str
) -> None:
    convert_to_layout(checkpoint("llama"), tmp_path / "layout", 2)
    do(tmp_path / "layout")
    with pytest.raises(ConfigError, match=sentence):
        convert_to_hf(tmp_path / "layout", tmp_path / "back")


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let the kernel reject longer files, as it rejects writing to a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_fills_leaves_nothing(tmp_path: Path) -> None:
    source = checkpoint("llama")
    with files_of_at_most(30_000), pytest.raises(ConfigError, match="cannot be written"):
        convert_to_layout(source, tmp_path / "out", 2, 2)
    with files_of_at_most(30_000), pytest.raises(ConfigError, match="cannot be written"):
        convert_to_hf(source, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_disk_that_is_too_small_is_seen_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mimokit.engine.weights import writing

    class Full:
        free = 100

    monkeypatch.setattr(writing.shutil, "disk_usage", lambda path: Full)
    with pytest.raises(ConfigError, match="150 kB are needed, and the disk has 100 B left"):
        convert_to_layout(checkpoint("llama"), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_the_command_converts_there_and_back_and_rejects_in_a_sentence(tmp_path: Path) -> None:
    source, out, back = str(checkpoint("llama")), str(tmp_path / "out"), str(tmp_path / "back")
    run = CliRunner().invoke
    assert run(app, ["convert", source, out, "--tp", "2", "--pp", "2"]).exit_code == 0
    assert run(app, ["convert", out, back, "--to", "hf", "--max-shard-size", "50KB"]).exit_code == 0
    assert len(list(Path(back).glob("*.safetensors"))) > 2
    rejected = {
        ("--tp", "2"): "out: it exists; name a new directory",
        ("--to", "hff"): "did you mean hf",
        ("--to", "hf", "--tp", "2"): "leave out --tp and --pp",
        ("--max-shard-size", "1GB"): "belongs to --to hf",
        ("--to", "hf", "--max-shard-size", "5 apples"): "'5 apples' is not a size",
        ("--to", "hf", "--max-shard-size", "²"): "'²' is not a size",
        ("--to", "hf", "--max-shard-size", "0"): "'0' is not a size",
    }
    for options, sentence in rejected.items():
        done = run(app, ["convert", source, out, *options])
        assert done.exit_code == 2
        assert sentence in done.stderr
        assert len(done.stderr.splitlines()) == 1
