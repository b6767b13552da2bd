"""What runs here has exactly the tensors that its description says."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from mimokit.architecture.from_config import model_of_config
from mimokit.architecture.modules import LanguageModel
from mimokit.architecture.parallel_sizes import ParallelSizes
from mimokit.architecture.parameters_on_rank import rank_parameters
from mimokit.architecture.tensors import ModuleTensor, module_tensors
from mimokit.architecture.transformer import Transformer
from mimokit.config import ModuleArchitecture
from mimokit.planning import plan_layout
from tests.layouts import digits_config
from tests.layouts_multimodal import LANGUAGE, multimodal_config


def _shapes(config, layout):
    """Build the modules of a config as training does; return module -> tensor -> its shape."""
    from mimokit.engine.models.parameter_names import named_parameters
    from mimokit.engine.models.specs import multimodal_provider

    name = config.model.llm_module_name
    provider = multimodal_provider(config.model, layout, seed=7)
    built = provider.provide(layout, wrap=False).model
    modules = {name: built.language_model, **built.modality_submodules}
    return {
        module: {path: tuple(one.shape) for path, one in named_parameters(whole).items()}
        for module, whole in modules.items()
    }


def _described(config):
    """Return module -> its description."""
    model = model_of_config(config.model)
    network = config.model.get_architecture(model.language.name)
    # The engine pads a vocabulary only where the config says so.
    language = replace(model.language, vocab_multiple=network.vocabulary_multiple or 1)
    return {module.name: module for module in (*model.branches, language)}


def _planned(config):
    return {
        name: {one.name: one.shape for one in module_tensors(module, ParallelSizes(), 0)}
        for name, module in _described(config).items()
    }


@pytest.mark.parametrize(
    ("image", "merge", "ffn"), [(8, 1, None), (8, 2, 96), (16, 2, 160)], ids=str
)
def test_exactly_the_modules_of_megatron(cluster, image, merge, ffn) -> None:
    config = digits_config()
    architectures = config.model.module_architectures
    architectures["images"] = ModuleArchitecture(
        num_layers=2,
        hidden_size=32,
        num_attention_heads=8,
        seq_length=(image // 4) ** 2,
        vocab_size=0,
        image_size=image,
        patch_size=4,
        merge_size=merge,
    )
    architectures["language_module"].ffn_hidden_size = ffn
    described = model_of_config(config.model)
    tokens = (image // 4 // merge) ** 2
    config.data.image_seq_length = tokens
    config.data.seq_length = 16 + tokens
    architectures["language_module"].seq_length = 16 + tokens
    (shapes,) = cluster.run(_shapes, config, plan_layout(config), world_size=1)
    assert shapes == _planned(config)
    described = model_of_config(config.model)
    counts = {name: sum(map(math.prod, own.values())) for name, own in shapes.items()}
    assert counts["language_module"] == described.language.parameters
    assert counts["images"] == described.branches[0].parameters


def test_exactly_the_tensors_of_all_kinds_of_modules(cluster) -> None:
    """Class token, registers, norms before layers, convolutions, words, groups, gates, padding."""
    names = ("clip", "dino", "qwen", "audio", "words", LANGUAGE)
    config = multimodal_config(dict.fromkeys(names, (1, 1)), "homogeneous")
    changes = {
        "clip": {"outer_norms": 2, "patch_bias": False},
        "dino": {"post_layer_norm": False, "add_qkv_bias": False},
        "audio": {"projector": {"add_bias_linear": False, "hidden_sizes": [48]}},
        LANGUAGE: {
            "seq_length": 64,
            "num_query_groups": 2,
            "kv_channels": 8,
            "gated_linear_unit": True,
            "normalization": "RMSNorm",
            "add_bias_linear": False,
            "add_qkv_bias": True,
            "make_vocab_size_divisible_by": 24,
            "max_position_embeddings": 64,
            "position_embedding_type": "learned_absolute",
        },
    }
    config.data.seq_length = 64
    networks = config.model.module_architectures
    config.model.module_architectures = {
        name: ModuleArchitecture(**{**one.model_dump(exclude_unset=True), **changes.get(name, {})})
        for name, one in networks.items()
    }
    (shapes,) = cluster.run(_shapes, config, plan_layout(config), world_size=1)
    assert shapes == _planned(config)


BIG = LanguageModel(
    "big",
    Transformer(6, 64, 8, 4, 8, 96, norm="layer", qkv_bias=True, qk_norm=True, ffn_bias=True),
    vocab=1000,
    positions=32,
    vocab_multiple=16,
)


@pytest.mark.parametrize("model", [BIG, replace(BIG, tied=True)], ids=["apart", "tied"])
@pytest.mark.parametrize(("tensor", "pipeline"), [(1, 1), (2, 3), (4, 4), (8, 1)])
def test_the_tensors_of_a_rank_are_its_parameters(
    model: LanguageModel, tensor: int, pipeline: int
) -> None:
    sizes = ParallelSizes(tensor, pipeline)
    layers: dict[str, tuple[int, ...]] = {}
    for stage in range(pipeline):
        found = module_tensors(model, sizes, stage)
        assert sum(one.entries for one in found) == rank_parameters(model, sizes, stage).total
        layers |= {one.name: one.whole for one in found}
        for one in found:
            real = sum(one.real_entries(number) for number in range(tensor))
            assert real == math.prod(one.whole) * (tensor if one.axis is None else 1)
    assert layers == {one.name: one.whole for one in _whole(model)}


def _whole(model: LanguageModel) -> tuple[ModuleTensor, ...]:
    return module_tensors(model, ParallelSizes(), 0)
