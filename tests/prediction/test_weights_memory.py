"""Memory of a checkpoint's shards, and advice on the tensor parallel size."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mimokit.architecture.from_config import model_of_config
from mimokit.architecture.modules import Module, MultimodalModel
from mimokit.architecture.rank_parameters import rank_parameters
from mimokit.config.errors import ConfigError
from mimokit.config.meaning import VOCABULARY_MULTIPLE
from mimokit.config.sizes import ParallelSizes
from mimokit.interop import config_of_checkpoint
from mimokit.layout_search import resolve_source
from mimokit.planning.weights import read_directory
from mimokit.planning.weights.config_tensors import described_weights
from mimokit.prediction import Layout, Workload, predict
from mimokit.prediction.advice import advise
from mimokit.prediction.weights_memory import DESCRIBED, checkpoint_memory
from mimokit.prediction.workload import branches_of
from tests.cli.call import call
from tests.hugging_face_weights import checkpoint
from tests.llava import llava_checkpoint
from tests.qwen_vl import qwen_checkpoint
from tests.rows import rows
from tests.sparse_weights import LLAMA_70B, SMALL, small_checkpoint, sparse_checkpoint


def test_training_has_18_bytes_a_parameter_and_cuts_what_is_cut(tmp_path: Path) -> None:
    sparse_checkpoint(tmp_path, LLAMA_70B)
    found = checkpoint_memory(read_directory(tmp_path), [1, 8])
    one, eight = found.ranks
    parts = ("weights", "gradients", "optimizer")
    assert sum(one.parts[name] for name in parts) == 18 * 68_976_648_192
    assert 0.125 < eight.parts["optimizer"] / one.parts["optimizer"] < 0.1251  # norms are whole
    assert found.saved(0) is None
    assert found.saved(1) == pytest.approx(1 - eight.total / one.total)


def test_a_qwen_vl_has_the_parameters_of_its_language_model_and_of_its_tower(
    tmp_path: Path,
) -> None:
    config = json.loads((qwen_checkpoint("qwen3_vl") / "config.json").read_text())
    config["vision_config"]["image_size"] = 24
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = checkpoint_memory(described_weights(tmp_path), [1, 2], seq_length=40)
    assert "one image of 9 tokens" in found.scope
    one, two = found.ranks
    stored = read_directory(qwen_checkpoint("qwen3_vl")).tensors.values()
    assert sum(one.parameters.values()) == sum(math.prod(tensor.shape) for tensor in stored)
    assert 0.5 < sum(two.parameters.values()) / sum(one.parameters.values()) < 0.6


@rows("family", *SMALL)
def test_a_config_alone_has_the_figures_of_its_weights(tmp_path: Path, family: str) -> None:
    small_checkpoint(tmp_path / "weights", family)
    config, _ = SMALL[family]
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "config.json").write_text(json.dumps({**config, "torch_dtype": "bfloat16"}))
    if family == "clip":
        with pytest.raises(ConfigError, match="which makes no tokens"):
            checkpoint_memory(described_weights(alone))
        return
    stored = checkpoint_memory(described_weights(tmp_path / "weights"))
    described = checkpoint_memory(described_weights(alone / "config.json"))
    assert described.ranks == stored.ranks
    assert described.scope == f"{DESCRIBED} {stored.scope}".strip()
    advice = advise(described_weights(alone), "h100", 2)
    assert advice.sizes == advise(described_weights(tmp_path / "weights"), "h100", 2).sizes


def test_usual_sizes_that_cannot_cut_the_model_are_left_out(tmp_path: Path) -> None:
    config = {**SMALL["gpt2"][0], "n_embd": 36, "n_head": 12}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = checkpoint_memory(described_weights(tmp_path))
    assert [rank.tensor_parallel for rank in found.ranks] == [1, 2, 4]
    assert found.seq_length == 24
    done = call("memory", tmp_path)
    assert done.exit_code == 0, done.output
    assert "TP 8: tensor_parallel 8 does not divide the attention heads" in done.stdout
    (tmp_path / "config.json").write_text(json.dumps({**config, "dtype": "int4"}))
    with pytest.raises(ConfigError, match="its dtype is 'int4'; write float64, float32"):
        described_weights(tmp_path)


def test_advice_takes_the_fastest_size_that_fits(tmp_path: Path) -> None:
    sparse_checkpoint(tmp_path, {**LLAMA_70B, "num_hidden_layers": 6})
    found = advise(read_directory(tmp_path), "h100", 8)
    assert [one.tensor_parallel for one in found.sizes] == [1, 2, 4, 8]
    assert set(found.rejected) == {3, 5, 6, 7}
    shares = [one.communication_share for one in found.sizes]
    assert shares[0] == 0 < min(shares[1:])
    fitting = [one for one in found.sizes if one.fits]
    assert found.take == min(fitting, key=lambda one: one.seconds).tensor_parallel
    assert f"Take TP {found.take}" in found.why
    whole = advise(read_directory(tmp_path), "b200", 8)
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in whole.environment  # Blackwell has no need


def test_advice_says_that_none_fits_and_what_to_set(tmp_path: Path) -> None:
    sparse_checkpoint(tmp_path, LLAMA_70B)
    found = advise(read_directory(tmp_path), "h100", 8)
    assert found.take is None
    assert "No size fits: TP 8 needs" in found.why
    (tmp_path / "small").mkdir()
    sparse_checkpoint(tmp_path / "small", {**LLAMA_70B, "num_hidden_layers": 16})
    taken = advise(read_directory(tmp_path / "small"), "h100", 8)
    assert taken.take is not None
    assert taken.take > 1
    assert taken.environment["CUDA_DEVICE_MAX_CONNECTIONS"][0] == "1"


@rows(
    "arguments, sentence",
    (["advise", "--gpu", "h10"], "did you mean h100"),
    (["advise", "--gpu", "h100", "--gpus", "0"], "gpus is 0; it must be at least 1"),
    (["memory", "--tp", "1,3"], "tensor_parallel 3 does not divide"),
    (["memory", "--tp", "one"], "'one' is not a list of sizes"),
    (["memory", "--batch", "0"], "batch is 0"),
    (["memory", "--seq-length", "65"], "seq_length is 65, and the model has 64 positions"),
    (["advise", "--gpu", "h100", "--seq-length", "0"], "seq_length is 0; it must be at least"),
)
def test_what_cannot_be_said_is_rejected(arguments: list[str], sentence: str) -> None:
    name, *options = arguments
    done = call(name, checkpoint("llama"), *options)
    assert done.exit_code == 2
    assert sentence in done.stderr


def test_a_tower_has_no_such_memory() -> None:
    with pytest.raises(ConfigError, match="which makes no tokens"):
        checkpoint_memory(read_directory(checkpoint("clip_tower")), [1])


@rows("variant", "clip", "clip_full", "siglip")
def test_a_llava_has_the_layers_that_its_features_need(variant: str) -> None:
    """The sizes are those of its experiment, and the bytes those of the experiment's modules."""
    directory = llava_checkpoint(variant)
    model, _ = resolve_source(directory, Workload(24, 16))
    config = config_of_checkpoint(directory, seq_length=24)
    networks = model_of_config(config.model, config.name)
    assert isinstance(networks, MultimodalModel)
    modules: tuple[Module, ...] = (networks.language, *networks.branches)
    assert [one.encoder.net for one in branches_of(model)] == [
        one.encoder.net for one in networks.branches
    ]
    found = checkpoint_memory(read_directory(directory), [1, 2], seq_length=24)
    assert "same tensor parallel size, and every sample has one image of" in found.scope
    for rank in found.ranks:
        sizes = ParallelSizes(tensor=rank.tensor_parallel)
        held = {one.name: rank_parameters(one, sizes, 0).total for one in modules}
        assert rank.parameters == held
        assert rank.parts["optimizer"] == 12 * sum(held.values())
    known = json.loads((directory / "config.json").read_text())["vision_config"]
    assert (networks.branches[0].encoder.net.layers == known["num_hidden_layers"]) is (
        variant == "siglip"
    )
    advice = advise(read_directory(directory), "h100", 2, 24)
    assert advice.scope == found.scope
    layout = Layout("homogeneous", dict.fromkeys(reversed(held), ParallelSizes(data=2)))
    padded = replace(networks.language, vocab_multiple=VOCABULARY_MULTIPLE)
    trained = predict(replace(networks, language=padded), layout, Workload(24, 16), "h100")
    assert advice.sizes[0].seconds == pytest.approx(trained.seconds, rel=1e-9)
    assert advice.sizes[0].memory_bytes == trained.peak_memory
    with pytest.raises(ConfigError, match="a sample has 4 tokens, and one image becomes"):
        advise(read_directory(directory), "h100", 2, 4)


def test_the_commands_print_json() -> None:
    def stated(*arguments: str) -> Any:
        done = call(*arguments, "--json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    directory = str(checkpoint("llama"))
    sizes = stated("memory", directory, "--tp", "1,2,4,8")["sizes"]
    assert list(sizes) == ["1", "2", "4", "8"]
    assert sizes["4"]["weights"] > sizes["8"]["weights"] > sizes["4"]["weights"] / 2
    assert stated("advise", directory, "--gpu", "h100", "--gpus", "2")["take"] in (1, 2)
