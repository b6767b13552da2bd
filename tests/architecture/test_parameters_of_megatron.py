"""What runs here has exactly the tensors that its description says."""

from __future__ import annotations

import ast
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import mimokit
from mimokit.architecture import load_model
from mimokit.architecture.from_config import cuts_of_config, model_of_config, modules_of_config
from mimokit.architecture.layers_on_stage import stage_layers, stage_spans, stage_tensors
from mimokit.architecture.modules import OUTPUT_LAYER, LanguageModel
from mimokit.architecture.rank_parameters import rank_parameters
from mimokit.architecture.tensor_cut import ShardPlace, TensorCut
from mimokit.architecture.tensors import module_tensors
from mimokit.config import ExperimentConfig, ModuleArchitecture
from mimokit.config.sizes import ParallelSizes
from mimokit.planning import plan_layout
from mimokit.planning.types import LayoutPlan
from mimokit.prediction.workload import branches_of
from tests.layouts import digits_config
from tests.layouts_apart import decoded_config
from tests.layouts_multimodal import LANGUAGE, multimodal_config
from tests.networks import language
from tests.rows import rows

if TYPE_CHECKING:
    from mimokit.cluster import EngineCluster

Marked = tuple[tuple[int, ...], int | None, int]
"""Shape on a rank, dimension that is cut, and into how many parts."""


def _marked(config: ExperimentConfig, layout: LayoutPlan) -> dict[str, dict[str, Marked]]:
    """Build the modules of this rank as training does; return what Megatron says of tensors."""
    from mimokit.engine.models.specs import multimodal_provider
    from mimokit.engine.models.weights import named_parameters

    def marks(parameter: Any) -> Marked:
        cut = getattr(parameter, "tensor_model_parallel", False)
        how = (parameter.partition_dim, parameter.partition_stride) if cut else (None, 1)
        return (tuple(parameter.shape), *how)

    # Without a table, as else it is compared while a module is built.
    provider = replace(multimodal_provider(config.model, layout, seed=0), cuts={})
    model = provider.provide(layout, wrap=False).model
    assert model is not None
    return {
        name: {path: marks(one) for path, one in named_parameters(module).items()}
        for name, module in model.parts()
    }


def _planned(config: ExperimentConfig, layout: LayoutPlan, rank: int) -> dict[str, Any]:
    """Return the same of a rank according to the table."""
    described = {one.name: one for one in modules_of_config(config.model)}
    found = {}
    for name, ranks in layout.modules.items():
        if rank in ranks.ranks:
            sizes = ParallelSizes(pipeline=ranks.pipeline_parallel)
            stage = ranks.coordinates(rank)["pp"]
            place = ranks.shard_place(rank)
            found[name] = {
                one.copy_of or one.name: (one.cut.at(place).shape, one.cut.dimension, one.cut.parts)
                for one in stage_tensors(described[name], sizes, stage)
                if one.cut.at(place).is_held
            }
    return found


def _compare(cluster: EngineCluster, config: ExperimentConfig) -> list[dict[str, Any]]:
    """Check that every rank has what the table says; return what the ranks have."""
    layout = plan_layout(config)
    ranks = cluster.run(_marked, config, layout, world_size=layout.world_size)
    for rank, marked in enumerate(ranks):
        assert marked == _planned(config, layout, rank)
    return ranks


@pytest.mark.parametrize(
    ("image", "merge", "ffn"), [(8, 1, None), (8, 2, 96), (16, 2, 160)], ids=str
)
def test_exactly_the_modules_of_megatron(cluster, image, merge, ffn) -> None:
    config = digits_config()
    architectures = config.model.module_architectures
    architectures["images"] = ModuleArchitecture(
        num_layers=2, hidden_size=32, num_attention_heads=8, seq_length=(image // 4) ** 2,
        vocab_size=0, image_size=image, patch_size=4, merge_size=merge,
    )  # fmt: skip
    architectures["language_module"].ffn_hidden_size = ffn
    described = model_of_config(config.model)
    tokens = (image // 4 // merge) ** 2
    config.data.image_seq_length = tokens
    config.data.seq_length = 16 + tokens
    architectures["language_module"].seq_length = 16 + tokens
    (marked,) = _compare(cluster, config)
    described = model_of_config(config.model)
    counts = {
        name: sum(math.prod(shape) for shape, *_ in tensors.values())
        for name, tensors in marked.items()
    }
    assert counts["language_module"] == described.language.parameters
    assert counts["images"] == described.branches[0].parameters


GROUPED = {
    "num_query_groups": 2,
    "kv_channels": 8,
    "gated_linear_unit": True,
    "normalization": "RMSNorm",
    "add_bias_linear": False,
}
LANGUAGES = {
    "llama": {**GROUPED, "make_vocab_size_divisible_by": 24},
    "qwen2": {**GROUPED, "add_qkv_bias": True, "tied_embeddings": True},
    "gpt2": {
        "tied_embeddings": True,
        "make_vocab_size_divisible_by": 5,
        "max_position_embeddings": 64,
        "position_embedding_type": "learned_absolute",
    },
}


def _of_all_kinds(language: str, tensor: int) -> ExperimentConfig:
    names = ("clip", "dino", "qwen", "audio", "words", LANGUAGE)
    config = multimodal_config(dict.fromkeys(names, (tensor, 1)), "homogeneous")
    changes = {
        "clip": {"outer_norms": 2, "patch_bias": False},
        "dino": {"post_layer_norm": False, "add_qkv_bias": False},
        "audio": {"projector": {"add_bias_linear": False, "hidden_sizes": [48]}},
        LANGUAGE: {"seq_length": 64, **LANGUAGES[language]},
    }
    config.data.seq_length = 64
    networks = config.model.module_architectures
    config.model.module_architectures = {
        name: ModuleArchitecture(**{**one.model_dump(exclude_unset=True), **changes.get(name, {})})
        for name, one in networks.items()
    }
    return config


@pytest.mark.parametrize("tensor", [1, 2, 4])
@pytest.mark.parametrize("language", LANGUAGES)
def test_megatron_marks_what_the_table_cuts(cluster, language, tensor) -> None:
    """All encoders; on 4 ranks fewer query groups than ranks; tables padded, tied, learned."""
    _compare(cluster, _of_all_kinds(language, tensor))


def test_stages_and_text_decoders_have_what_the_table_says(cluster) -> None:
    sizes = {"images": (2, 1, 1), LANGUAGE: (1, 2, 1), "decoder": (4, 1, 1)}
    config = decoded_config(sizes)
    language = config.model.module_architectures[LANGUAGE]
    language.tied_embeddings, language.mtp_num_layers = True, 2
    ranks = _compare(cluster, config)
    assert "embedding.word_embeddings.weight" in ranks[3][LANGUAGE]
    assert ranks[3][LANGUAGE]["mtp.layers.1.eh_proj.weight"] == ((64, 128), 0, 1)
    assert ranks[4]["decoder"]["output_layer.weight"][1:] == (0, 1)


def test_a_wrong_row_of_the_table_is_named_where_megatron_builds(cluster, monkeypatch) -> None:
    from mimokit.architecture import feed_forward
    from mimokit.cluster import RankError

    config = _of_all_kinds("llama", 2)
    layout, right = plan_layout(config), feed_forward.cut_outputs
    monkeypatch.setattr(feed_forward, "cut_outputs", lambda *row: right(*row[:4]))  # parts: 1
    rank = _planned(config, layout, 0)
    (marked, _) = cluster.run(_marked, config, layout, world_size=2)
    assert [
        (module, name)
        for module, rows in rank.items()
        for name, row in rows.items()
        if row != marked[module][name]
    ] == [(LANGUAGE, f"decoder.layers.{layer}.mlp.linear_fc1.weight") for layer in range(2)]
    with pytest.raises(RankError, match=r"fc1.weight: Megatron has rows of each of 2 parts cut, "):
        cluster.run(_built_by, config, layout, cuts_of_config(config.model), world_size=2)


def _built_by(config: ExperimentConfig, layout: LayoutPlan, cuts: Any) -> None:
    from mimokit.engine.models.specs import multimodal_provider

    replace(multimodal_provider(config.model, layout, seed=0), cuts=cuts).provide(
        layout, wrap=False
    )


MARKS = {"tensor_model_parallel", "partition_dim", "partition_stride", "shared", "allreduce"}


def _marks_read_by(source: str) -> set[str]:
    """Return the marks that code reads: as an attribute `partition_…`, or by `getattr`."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr.startswith("partition_"):
            names.add(node.attr)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
            names.add(ast.literal_eval(node.args[1]) if _is_text(node.args[1]) else "")
    return names & MARKS


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_one_file_reads_the_marks_of_megatron() -> None:
    assert _marks_read_by("a.partition_dim; getattr(a, 'shared', 0)") == {"partition_dim", "shared"}
    files = Path(mimokit.__file__).parent.rglob("*.py")
    reading = [path.name for path in files if _marks_read_by(path.read_text())]
    assert reading == ["marks.py"]


@rows(
    "written, stages",
    ("Et|tt|tt|tL", 2),
    ("Et|tt|tt|mL", 4),
    ("Ettt|tttt|tmmL", 3),
    ("Et|(tt|)*30mL", 8),
)
def test_layers_are_dealt_as_megatron_writes_them(written: str, stages: int) -> None:
    """The last is its layout of DeepSeek-V3."""
    from megatron.core.transformer.enums import LayerType
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

    of_megatron = PipelineParallelLayerLayout(written, stages)
    chunks = of_megatron.virtual_pipeline_model_parallel_size
    counts = [[one.count(LayerType.decoder) for one in row] for row in of_megatron.layout]
    layers, further = map(of_megatron.flatten_layout.count, (LayerType.decoder, LayerType.mtp))
    spans = stage_spans(layers, ParallelSizes(pipeline=stages * chunks), further)
    found = [stop - start for start, stop in spans]
    assert [found[stage::stages] for stage in range(stages)] == counts
    sizes = ParallelSizes(pipeline=stages, virtual=chunks)
    for stage, own in enumerate(counts):
        assert stage_layers(layers, layers, sizes, stage, further).total == sum(own)


WRONG_ROWS = {
    "another dimension": (TensorCut((8, 6), 1), "Megatron has rows cut, the table of tensors colu"),
    "whole": (TensorCut((4, 6)), "Megatron has rows cut, the table of tensors whole on every rank"),
    "another shape": (TensorCut((10, 6), 0), r"it is \[4, 6\] on this rank, .*\[5, 6\]"),
    "no padding": (TensorCut((6, 6), 0), r"in the table of tensors \[3, 6\]"),
    "none": (None, "the table of tensors has no row for it"),
}


@rows("row, why", *WRONG_ROWS.values())
def test_a_parameter_that_differs_from_its_row_is_refused(row: TensorCut | None, why: str) -> None:
    import torch

    from mimokit.engine.parallel.marks import set_own_shards, set_shards, shard_of

    parameter: Any = torch.nn.Parameter(torch.zeros(4, 6))
    parameter.tensor_model_parallel, parameter.partition_dim, parameter.partition_stride = (
        True,
        0,
        1,
    )
    table, place = {} if row is None else {"w": row}, ShardPlace(2, 1)
    with pytest.raises(ValueError, match=f"Module 'vision', parameter w: .*{why}"):
        set_shards("vision", {"w": parameter}, table, place)
    set_own_shards({"w": parameter}, table, place)
    assert shard_of(parameter) == TensorCut((8, 6), 0).at(place)


def big(layers: int = 6, **meant: Any) -> LanguageModel:
    known = {"norm": "LayerNorm", "qkv_bias": True, "qk_norm": True, "ffn_bias": True}
    ends = {"vocab": 1000, "vocab_multiple": 16}
    return language(layers, 64, 8, 4, 8, 96, **known | ends | meant)


EXPERTS = {"experts": 4, "top_k": 2, "expert_ffn": 48, "leading_dense": 2, "ffn_bias": False}
SHARED = {"shared_ffn": 32, "shared_gate": True}
FURTHER = {"next_token_layers": 2}
MODELS = {
    "apart": big(positions=32),
    "tied": big(positions=32, tied=True),
    "experts": big(positions=32, **EXPERTS, **SHARED),
    "further tokens": big(12, **FURTHER),
    "further tokens, tied": big(12, **FURTHER, tied=True),
    "further tokens, ends as layers": big(8, **FURTHER),  # with ends and further tokens 12
    "further tokens of experts": big(12, **FURTHER, **EXPERTS, **SHARED),
}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize(("tensor", "pipeline"), [(1, 1), (2, 3), (4, 4), (8, 1)])
def test_the_tensors_of_a_rank_are_its_parameters(
    model: LanguageModel, tensor: int, pipeline: int
) -> None:
    sizes = ParallelSizes(tensor, pipeline, expert=1 if model.net.moe is None else 2)
    place = ShardPlace(tensor, expert_parallel=int(sizes.expert))
    rows = {}
    for stage in range(pipeline):
        held = stage_tensors(model, sizes, stage)
        shards = [one.cut.at(place) for one in held]
        shapes = [shard.shape for shard in shards if shard.is_held]
        assert sum(map(math.prod, shapes)) == rank_parameters(model, sizes, stage).total
        rows |= {one.name: one for one in held}
        for one in held:
            real = sum(shard.entries for shard in one.cut.shards(tensor))
            assert real == math.prod(one.cut.whole)
    copy = {OUTPUT_LAYER} if model.tied and pipeline == 1 else set()
    assert rows.keys() == {one.name for one in module_tensors(model)} - copy


@rows("tensor", 1, 2, 8)
def test_the_tensors_of_a_rank_are_its_parameters_of_projectors_too(tensor: int) -> None:
    (branch,) = branches_of(load_model("qwen3-vl-8b"))
    assert branch.projector.copies == 3
    sizes, place = ParallelSizes(tensor), ShardPlace(tensor)
    shapes = [one.cut.at(place).shape for one in stage_tensors(branch, sizes, 0)]
    assert sum(map(math.prod, shapes)) == rank_parameters(branch, sizes, 0).total
