"""What a config leaves out because the rest of it implies the value."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from mimokit.config import ConfigError
from mimokit.config_files import load_experiment_config
from mimokit.config_files.implications import DEFAULT_IMAGE_SEQ_LENGTH, DEFAULT_SEQ_LENGTH
from tests.config.sections import load, network, only, problems, put, sections
from tests.rows import rows

LANGUAGE = "language_module"
# The source document's own pair of files: neither names the language module, a sequence length or
# a special token.
BASELINE = """
model:
  module_architectures:
    images: {num_layers: 40, hidden_size: 1408, num_attention_heads: 16, vocab_size: 0}
    language_module: {num_layers: 32, hidden_size: 4096, num_attention_heads: 32, vocab_size: 32000}
  module_parallelisms:
    images: {tensor_parallel: 4, pipeline_parallel: 1, data_parallel: 2}
    language_module: {tensor_parallel: 4, pipeline_parallel: 1, data_parallel: 2}
data: {base_batch_size: 4, num_microbatches: 8, vocab_size: 32000, persistent_workers: true}
runtime: {num_iterations: 10, warmup_iterations: 2}
"""
EXPERIMENT = """
model:
  module_parallelisms:
    images: {tensor_parallel: 1, data_parallel: 8}
    language_module: {tensor_parallel: 8, data_parallel: 1}
runtime: {pipeline_schedule: colocated, metrics_output_dir: logs/tp8_dp1}
"""


def without(content: dict[str, Any], *paths: str) -> dict[str, Any]:
    for path in paths:
        *keys, last = path.split(".")
        target = content
        for key in keys:
            target = target[key]
        del target[last]
    return content


def test_the_pair_of_the_source_document(tmp_path: Path) -> None:
    (tmp_path / "baseline.yaml").write_text(BASELINE)
    path = tmp_path / "tp8_dp1.yaml"
    path.write_text(EXPERIMENT)
    with pytest.raises(ConfigError) as refused:  # 4 samples for 8 encoder replicas
        load_experiment_config(path)
    problem = only(refused.value.problems)
    assert problem.module == "images"
    path.write_text(EXPERIMENT + "data: {base_batch_size: 8}\n")
    model, data, runtime = load_experiment_config(path)
    assert (model.deployment_mode, runtime.pipeline_schedule) == ("colocated", "colocated")
    assert (model.llm_module_name, model.encoder_module_name) == (LANGUAGE, "images")
    assert model.special_token_ids == {"images": 32000}
    assert data.image_special_token_id == 32000
    assert (data.seq_length, data.image_seq_length) == (
        DEFAULT_SEQ_LENGTH,
        DEFAULT_IMAGE_SEQ_LENGTH,
    )
    assert model.get_architecture("images").seq_length == DEFAULT_IMAGE_SEQ_LENGTH
    assert data.persistent_workers


def test_each_fact_once() -> None:
    stated = load(sections())
    content = without(
        sections(),
        "model.llm_module_name",
        "model.encoder_module_name",
        "model.special_token_ids",
        "data.seq_length",
        "data.vocab_size",
        "data.image_special_token_id",
    )
    assert load(content) == stated


def test_a_language_model_alone_needs_no_placeholder() -> None:
    content = sections()
    for section in ("module_parallelisms", "module_architectures"):
        del content["model"][section]["images"]
    found = load(
        without(
            content,
            "model.encoder_module_name",
            "model.special_token_ids",
            "data.image_special_token_id",
        )
    )
    assert found.data.image_special_token_id == found.data.vocab_size


def test_lengths_in_the_data_section_reach_the_networks() -> None:
    content = without(
        sections(),
        "model.module_architectures.images.seq_length",
        "model.module_architectures.language_module.seq_length",
    )
    model = load(content).model
    assert model.get_architecture(LANGUAGE).seq_length == 128
    assert model.get_architecture("images").seq_length == 16
    pictured = network(image_size=32, patch_size=8)
    del pictured["seq_length"]
    content["model"]["module_architectures"]["images"] = pictured
    assert load(content).model.get_architecture("images").seq_length == 16


def test_a_language_module_of_any_name() -> None:
    content = sections()
    for section in ("module_parallelisms", "module_architectures"):
        mapping = content["model"][section]
        mapping["gpt"] = mapping.pop(LANGUAGE)
    assert load(without(content, "model.llm_module_name")).model.llm_module_name == "gpt"


def test_two_possible_language_modules_are_refused() -> None:
    content = sections()
    for section in ("module_parallelisms", "module_architectures"):
        mapping = content["model"][section]
        mapping["gpt"] = mapping.pop(LANGUAGE)
        mapping["second_gpt"] = mapping["gpt"]
    found = problems(without(content, "model.llm_module_name"))
    assert any("llm_module_name is missing" in problem.sentence for problem in found)


@rows(
    "bad, path",
    *itertools.product(
        [None, [], "text", 3, {"images": []}, {"images": {"seq_length": "x"}}],
        [
            "model.module_architectures",
            "model.module_parallelisms",
            "model.special_token_ids",
            "data",
        ],
    ),
)
def test_a_wrong_source_implies_nothing(path: str, bad: object) -> None:
    content = without(put(sections(), path, bad), "model.llm_module_name")
    assert problems(content), "a wrong section is refused in sentences, not with a traceback"
