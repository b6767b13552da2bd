"""`mimokit check` and `generate`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mimokit.cli import shared
from tests import seams
from tests.cli.call import call
from tests.hugging_face_weights import checkpoint
from tests.planted import planted, replacing
from tests.qwen_vl import qwen_checkpoint
from tests.rows import rows

if TYPE_CHECKING:
    from mimokit.cluster import EngineCluster

ROWS = ["--tokens", "1,2,3", "--tokens", "4,5"]


@replacing
def broken(original: Any, module: Any, *others: Any) -> None:
    """Load other weights of a layer."""
    original(module, *others)
    for name, parameter in module.named_parameters():
        if name.endswith("layers.3.mlp.linear_fc1.weight"):
            parameter.data[0] += 0.1


def copied(name: str, target: Path, **changed: Any) -> Path:
    """Copy a checkpoint, with changed fields of its config."""
    for file in checkpoint(name).iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, **changed}))
    return target


@pytest.fixture
def engines(cluster: EngineCluster, monkeypatch: pytest.MonkeyPatch) -> EngineCluster:
    """The commands get the cluster of the tests."""

    @contextlib.contextmanager
    def given(ranks: int, running: str | None, progress: bool = False) -> Iterator[EngineCluster]:
        yield cluster

    monkeypatch.setattr(shared, "engines_for", given)
    return cluster


def test_check_and_generate_print_json_alone(engines: EngineCluster, tmp_path: Path) -> None:
    tower = str(checkpoint("siglip_tower"))
    done = call("check", tower, "--tp", "2", "--json")
    stated = json.loads(done.stdout)
    assert (done.exit_code, stated["passed"], stated["tolerance"]) == (0, True, 1e-5)
    assert stated["oracle"] == "transformers"
    assert stated["max_logit_difference"] < 1e-5
    with planted(engines, seams.LOAD_WEIGHTS, broken, 2):
        done = call("check", tower, "--tp", "2")
    assert done.exit_code == 1
    assert "decoder.layers.3 is the first part that differs" in " ".join(done.stdout.split())

    from tokenizers import Tokenizer, models

    directory = copied("llama", tmp_path, eos_token_id=None)
    words = {f"w{number}": number for number in range(101)}
    Tokenizer(models.WordLevel(words, unk_token="w0")).save(str(tmp_path / "tokenizer.json"))
    line = ["generate", str(directory), *ROWS, "--tp", "2", "--max-new-tokens", "5"]
    done = call(*line, "--json")
    assert done.exit_code == 0, done.output
    stated = json.loads(done.stdout)
    assert [len(row) for row in stated["tokens"]] == [5, 5]
    assert stated["text"] == [" ".join(f"w{one}" for one in row) for row in stated["tokens"]]
    assert stated["tokens_per_second"] > 0
    assert stated["bytes_per_token"] > 0
    (tmp_path / "tokenizer.json").write_text('{"a": 1}')
    again = call(*line)
    assert again.exit_code == 0, again.output
    assert again.stdout.split() == [",".join(map(str, row)) for row in stated["tokens"]]
    assert "it is not a tokenizer" in again.stderr
    assert "the tokens are given without their text." in again.stderr


@rows(
    "arguments, sentence",
    (["--tokens", ""], "prompt 0 is empty"),
    (["--tokens", "1,101"], "prompt 0 has the id 101; ids are 0 to 100"),
    (["--tokens", "1,b"], "'1,b' is not a list of token ids"),
    (["--tokens", ",".join(["1"] * 25)], "has 25 tokens, but the model has 24 positions"),
    ([*ROWS, "--temperature", "-1"], "temperature is -1.0; it must be a number of at least 0"),
    ([*ROWS, "--top-p", "0"], "top_p is 0.0; it must be above 0 and at most 1"),
    ([*ROWS, "--top-p", "1.5"], "top_p is 1.5"),
    ([*ROWS, "--top-k", "0"], "top_k is 0"),
    ([*ROWS, "--max-new-tokens", "0"], "max_new_tokens is 0"),
    ([*ROWS, "--tp", "3"], "tensor_parallel 3 does not divide the attention heads"),
    ([*ROWS, "--replicas", "0"], "replicas is 0"),
    ([*ROWS, "--stop", "999"], "stop_tokens has 999; ids are 0 to 100"),
)
def test_what_cannot_be_generated_is_rejected_in_a_sentence(
    arguments: list[str], sentence: str
) -> None:
    options = arguments if "--max-new-tokens" in arguments else [*arguments, "--max-new-tokens=8"]
    done = call("generate", checkpoint("gpt2"), *options)
    assert done.exit_code == 2
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", [["check"], ["generate", *ROWS]])
@pytest.mark.parametrize(
    ("name", "changed", "sentence"),
    [
        ("llama", {"hidden_act": "relu2"}, "its activation is 'relu2'"),
        ("llama", {"rope_scaling": {"type": "longrope"}, "rope_parameters": None}, "scaling"),
        ("llama", {"hidden_size": 64}, "config.json makes it"),
    ],
)
def test_what_cannot_run_is_rejected_before_engines_start(
    command: list[str], name: str, changed: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    directory = copied(name, tmp_path, **changed)
    done = call(command[0], directory, *command[1:])
    assert done.exit_code == 2
    assert sentence in done.stderr


def test_a_llava_is_checked_and_a_prompt_with_an_image_rejected(engines: EngineCluster) -> None:
    directory = str(checkpoint("llava", 0.2))
    done = call("check", directory, "--tp", "2", "--json")
    stated = json.loads(done.stdout)
    assert (done.exit_code, stated["passed"], stated["tolerance"]) == (0, True, 2e-3)
    names = [one["name"] for one in stated["layers"]]
    assert "language_model.decoder.layers.3" in names
    assert "modality_submodules.images.encoders.vit_encoder.decoder.layers.2" in names
    line = ["generate", directory, "--tp", "2", "--max-new-tokens", "3"]
    done = call(*line, "--tokens", "1,2,3", "--json")
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)["tokens"][0]) <= 3
    done = call(*line, "--tokens", "1,100,3")
    assert done.exit_code == 2
    assert "prompt 0 has the id 100, which represents an image" in done.stderr


def test_a_qwen_vl_is_not_checked() -> None:
    done = call("check", qwen_checkpoint("qwen2_vl"))
    assert done.exit_code == 2
    assert "its model_type is qwen2_vl, whose tower no check compares" in done.stderr


def test_rows_beyond_the_positions_are_not_checked() -> None:
    done = call("check", checkpoint("gpt2"), "--length", "25")
    assert done.exit_code == 2
    assert "length is 25, and the model has 24 positions; give at most so many" in done.stderr


def test_a_tower_makes_no_tokens() -> None:
    done = call("generate", checkpoint("clip_tower"), *ROWS)
    assert done.exit_code == 2
    assert "which makes no tokens" in done.stderr
