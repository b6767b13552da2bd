"""Modules that start from checkpoints: their networks are those of config.json."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mimokit
from mimokit.architecture.tokens import tokens_per_item
from mimokit.config import ConfigError, ProjectorArchitecture
from mimokit.config_files import config_from_mapping
from mimokit.experiment.prepare import finalized_copy
from mimokit.planning.weights import read_directory
from mimokit.planning.weights.modules import module_planner
from mimokit.planning.weights.problems import check_saving, check_weight_files
from tests.cli.call import call
from tests.hugging_face_weights import checkpoint
from tests.layouts_weights import weights_config, weights_mapping
from tests.llava import llava_config
from tests.mimo import mimo_config
from tests.qwen_vl import qwen_config
from tests.rows import rows

DIGITS_LLAVA = Path(__file__).parents[2] / "configs" / "digits_llava.yaml"
ONE = {"data_parallel": 1}
LANGUAGE = "language_module"
PROJECTOR = "input_projections.0.encoder.linear_fc1.weight"


def _mapping(language: str = "gpt2", tower: str = "siglip_tower") -> dict[str, Any]:
    return weights_mapping(language, tower, "homogeneous", ONE, ONE)


def test_fields_that_are_left_out_are_those_of_the_checkpoint() -> None:
    config = weights_config("gpt2", "clip_tower", "homogeneous", ONE, ONE)
    words, images = (config.model.get_architecture(name) for name in (LANGUAGE, "images"))
    assert (words.vocab_size, words.max_position_embeddings, words.activation) == (
        101, 24, "gelu_tanh",
    )  # fmt: skip
    assert (images.outer_norms, images.patch_bias, images.activation) == (2, False, "quick_gelu")
    assert (images.class_token, images.num_channels, images.seq_length) == (True, 3, 4)
    assert config.data.vocab_size == 101
    again = config_from_mapping(config.to_mapping())
    assert again == config


@rows(
    "module, field, value, named",
    (LANGUAGE, "hidden_size", 64, "hidden_size is 64, but its weights"),
    (LANGUAGE, "normalization", "RMSNorm", "normalization is RMSNorm, but its weights"),
    (LANGUAGE, "gated_linear_unit", True, "gated_linear_unit is true, but its weights"),
    ("images", "image_size", 16, "image_size is 16, but its weights"),
)
def test_fields_that_contradict_the_checkpoint(
    module: str, field: str, value: Any, named: str
) -> None:
    content = _mapping()
    content["model"]["module_architectures"][module][field] = value
    with pytest.raises(ConfigError, match=named):
        finalized_copy(config_from_mapping(content))


@rows(
    "module, network, named",
    (LANGUAGE, None, "does not exist; give a directory .*, or state num_layers"),
    (LANGUAGE, "clip_tower", "does not describe a language model"),
    ("images", "llama", "does not describe a vision tower"),
)
def test_weights_that_are_not_there_or_of_another_kind(
    module: str, network: str | None, named: str
) -> None:
    content = _mapping()
    content["model"]["module_architectures"][module]["weights"] = str(
        checkpoint(network) if network else "nowhere"
    )
    content["model"]["llm_module_name"] = LANGUAGE
    with pytest.raises(ConfigError, match=named):
        config_from_mapping(content)


def test_a_file_that_states_sizes_is_planned_before_its_checkpoint_exists(tmp_path: Path) -> None:
    file = tmp_path / "layouts" / "digits_llava.yaml"
    file.parent.mkdir()
    shutil.copy(DIGITS_LLAVA, file)
    assert mimokit.plan(file).world_size == 4
    assert mimokit.predict(file, gpu="h100").seconds > 0
    for command in ("run", "verify"):
        done = call(command, file)
        assert done.exit_code == 2
        where = tmp_path / "checkpoints" / "digits_llava"
        assert done.stderr.startswith(
            f"Modules 'images' and 'language_module': weights is {where}, which does not exist; "
        )
        assert len(done.stderr.splitlines()) == 1
    content = file.read_text()
    swept = "sweep: {model.module_architectures.images.weights: [../tower]}"
    file.write_text(f"{content}\n{swept}\n")
    (one,) = mimokit.load_experiments(file)
    assert one.config is not None
    assert one.config.model.get_architecture("images").weights == str(tmp_path / "tower")
    file.write_text(content.replace("hidden_size: 32", ""))
    with pytest.raises(ConfigError, match=r"or state hidden_size to plan before it exists\.$"):
        mimokit.plan(file)
    where.mkdir(parents=True)
    file.write_text(content)
    with pytest.raises(ConfigError, match=r"config\.json"):
        mimokit.plan(file)


def _without_a_tensor(directory: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(directory / "model.safetensors")
    tensors.pop("model.norm.weight")
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})


def _truncated(directory: Path) -> None:
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def _pickled(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")


@rows(
    "do, named",
    (_without_a_tensor, "model.norm.weight is in none of its files"),
    (_truncated, "it is truncated"),
    (_pickled, "a pickle, which can run code and is not opened"),
)
def test_files_without_the_tensors_of_a_module_are_rejected_before_engines_start(
    do: Callable[[Path], None], named: str, tmp_path: Path
) -> None:
    content, directory = _mapping("llama"), tmp_path / "llama"
    shutil.copytree(checkpoint("llama"), directory)
    content["model"]["module_architectures"][LANGUAGE]["weights"] = str(directory)
    file = tmp_path / "run.yaml"
    file.write_text(json.dumps(content))
    finalized_copy(file)
    do(directory)
    done = call("run", file)
    assert done.exit_code == 2
    assert f"Module '{LANGUAGE}': " in done.stderr
    assert named in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_part_of_a_larger_checkpoint() -> None:
    content = _mapping("llava", "llava")
    network = content["model"]["module_architectures"]["images"]
    config = config_from_mapping(content).model.get_architecture("images")
    whole = read_directory(network["weights"])
    planner = module_planner(whole, config, language=False, tensor_parallel=2, pipeline_parallel=1)
    assert PROJECTOR in planner.rank(0).parameters
    config = config.model_copy(update={"weights_prefix": "vision_tower."})
    planner = module_planner(whole, config, language=False, tensor_parallel=1, pipeline_parallel=1)
    (piece,) = planner.rank(0).parameters[PROJECTOR].pieces
    assert piece.tensor == "multi_modal_projector.linear_1.weight", "it is next to the tower"
    config = config.model_copy(update={"weights_prefix": "tower."})
    with pytest.raises(ConfigError, match=r"no tensor begins with tower\. \(weights_prefix\)"):
        module_planner(whole, config, language=False, tensor_parallel=1, pipeline_parallel=1)


@rows("variant, layers, norms, kept", ("clip", 3, 2, False), ("clip_full", 2, 2, True))
def test_a_tower_in_a_llava_ends_where_its_features_are_taken(
    variant: str, layers: int, norms: int, kept: bool
) -> None:
    config = llava_config(variant, "homogeneous", ONE, ONE)
    images = config.model.get_architecture("images")
    assert (images.num_layers, images.outer_norms, images.post_layer_norm) == (layers, norms, False)
    assert images.keep_class_token is kept
    assert tokens_per_item(images) == 4 + kept
    assert images.projector == ProjectorArchitecture(hidden_sizes=[32])
    images.num_layers = 4
    with pytest.raises(ConfigError, match=f"num_layers is 4, but its weights in .* have {layers}"):
        finalized_copy(config)


def test_a_prefix_chooses_between_two_models(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    source = checkpoint("llama")
    one = load_file(source / "model.safetensors")
    both = {f"draft.{name}": value for name, value in one.items()}
    both |= {f"main.{name}": value.clone() for name, value in one.items()}
    save_file(both, tmp_path / "model.safetensors")
    shutil.copy(source / "config.json", tmp_path)
    content = _mapping("llama")
    network = content["model"]["module_architectures"][LANGUAGE]
    network |= {"weights": str(tmp_path), "weights_prefix": "main."}
    config = config_from_mapping(content).model.get_architecture(LANGUAGE)
    planner = module_planner(
        read_directory(tmp_path), config, language=True, tensor_parallel=1, pipeline_parallel=1
    )
    (piece,) = planner.rank(0).parameters["output_layer.weight"].pieces
    assert piece.tensor == "main.lm_head.weight"


def test_a_tower_of_qwen_takes_images_of_any_size() -> None:
    config = qwen_config("qwen3_vl", "homogeneous", ONE, ONE)
    words, images = (config.model.get_architecture(name) for name in (LANGUAGE, "images"))
    assert (words.mrope_section, words.mrope_interleaved) == ([3, 2, 1], True)
    assert (images.image_size, images.seq_length, images.temporal_patch_size) == (24, 36, 2)
    assert (images.position_embedding_type, images.max_position_embeddings) == ("interpolated", 9)
    assert images.inner_layers == (1, 3)
    check_weight_files(config.model)
    images.merge_size = 1
    with pytest.raises(ConfigError, match=r"merge_size is 1, but its weights in .* have 2"):
        check_weight_files(config.model)


def test_layers_of_further_tokens_are_those_of_the_weights_or_left_out() -> None:
    config = mimo_config(ONE)
    network = config.model.get_architecture(LANGUAGE)
    assert network.mtp_num_layers == 2
    check_weight_files(config.model)
    network.mtp_num_layers = 0
    check_weight_files(config.model)
    weights = read_directory(str(network.weights))
    planner = module_planner(
        weights, network, language=True, tensor_parallel=1, pipeline_parallel=1
    )
    assert planner.family.left_out == 2
    assert not any(name.startswith("mtp.") for name in planner.rank(0).parameters)
    network.mtp_num_layers = 1
    with pytest.raises(ConfigError, match=r"mtp_num_layers is 1, but its weights in .* have 2;"):
        check_weight_files(config.model)
    network.weights = str(checkpoint("mixtral"))
    with pytest.raises(ConfigError, match=r"mtp_num_layers is 1, but its weights in .* have 0;"):
        check_weight_files(config.model)


def test_a_pooling_head_that_weights_do_not_have_is_said() -> None:
    mapping = _mapping(tower="clip_tower")
    mapping["model"]["module_architectures"]["images"]["pooling_head"] = True
    config = config_from_mapping(mapping)
    with pytest.raises(ConfigError, match="but its weights have no pooling head; leave it out"):
        check_weight_files(config.model)


def test_what_cannot_be_saved_at_the_end_is_said_before(tmp_path: Path) -> None:
    config = weights_config("gpt2", "siglip_tower", "homogeneous", ONE, ONE)
    config.runtime.save_hf = str(tmp_path)
    with pytest.raises(ConfigError, match="but it exists; name a new directory"):
        check_saving(config)
    config.runtime.save_hf = str(tmp_path / "new")
    check_saving(config)
    config.model.get_architecture(LANGUAGE).weights = None
    with pytest.raises(ConfigError, match="must start from the weights of a language model"):
        check_saving(config)
    config = weights_config("llava", "clip_tower", "homogeneous", ONE, ONE)
    config.runtime.save_hf = str(tmp_path / "new")
    with pytest.raises(ConfigError, match="of which it is a part, not module 'images'"):
        check_saving(config)
