"""The list of whole runs has one for every parallelism that runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache, partial
from typing import Any

import mimokit
from mimokit.axes import CONFIG_FIELDS, Axis, Choice
from mimokit.config import ConfigError, ExperimentConfig
from tests.crossed import CROSSED
from tests.layouts import digits_config
from tests.layouts_apart import apart_config, decoded_config, with_adapter
from tests.layouts_multimodal import LANGUAGE
from tests.whole_runs import WHOLE_RUNS, WholeRun, ends_as_layers, parallel_fields, with_strategy

ON = {
    **{axis: 2 if isinstance(axis, Axis) else True for axis in CONFIG_FIELDS},
    Choice.RECOMPUTE: "full",
    Choice.OPTIMIZER_INSTANCES: 2,
}
Row = tuple[str, str, str]
"""(mode, part of the model, field)"""
FROM_FILES = ("modules that start from weights", "a whole LLaVA")
"""Runs whose weights are written first; others have the same sizes."""


def missing(held: Iterable[frozenset[Row]]) -> set[Row]:
    """Return (mode, part of the model, field) of what runs that no layout holds."""
    return set(what_runs().difference(*held))


@cache
def what_runs() -> frozenset[Row]:
    """Return (mode, part of the model, field) of all that runs."""
    layouts = (*_of_one_field(), *_of_one_choice())
    return frozenset(row for config in layouts for row in parallel_fields(config))


_held: dict[tuple[str, str], frozenset[Row]] = {}


def held_by(run: WholeRun) -> frozenset[Row]:
    """Return (mode, part of the model, field) of a run."""
    key = run.proves, run.name
    if run.proves in FROM_FILES:
        return frozenset()
    if key not in _held:
        _held[key] = frozenset(parallel_fields(run.make()))
    return _held[key]


def _of_one_field() -> Iterator[ExperimentConfig]:
    """Yield layouts that run and use one field of a module."""
    shared = digits_config((1, 1), (1, 1))
    for network in shared.model.module_architectures.values():
        network.num_layers = 2
    one = dict.fromkeys(MODULES["heterogeneous"], (1, 1, 1))
    decoded, adapted = _adapted_and_decoded(), _adapted()
    for config in (shared, decoded, adapted):  # two chunks for each of two ranks
        config.data.seq_length = config.model.module_architectures[LANGUAGE].seq_length = 44
    for axis, field in CONFIG_FIELDS.items():
        of_several = {"tensor_parallel": 2, "data_parallel": 2}
        used = {"data_parallel": 1} if isinstance(axis, Axis) else of_several
        together, behind, between = shared, decoded, adapted
        if axis is Axis.EXPERT:
            used = {"data_parallel": 2}
            together, behind, between = map(_with_experts, (shared, decoded, adapted))
        used = {**used, field: ON[axis]}
        alone = {name: {"data_parallel": 1} for name in one}
        others: dict[str, Any] = {name: {"data_parallel": 2} for name in ("images", LANGUAGE)}
        for config, mode, modules in (
            (together, "homogeneous", {"images": used, LANGUAGE: used}),
            (between, "homogeneous", dict.fromkeys(("images", "adapter", LANGUAGE), used)),
            (between, "colocated", {**others, "adapter": used}),
            (together, "colocated", {"images": used, LANGUAGE: {"data_parallel": 2}}),
            (together, "colocated", {"images": {"data_parallel": 2}, LANGUAGE: used}),
            *((behind, "heterogeneous", {**alone, name: used}) for name in one),
        ):
            try:
                layout = config.with_layout(mode, **modules)
                mimokit.plan(layout)
            except ConfigError:
                continue
            yield layout


MODULES: Mapping[str, tuple[str, ...]] = {
    "homogeneous": ("images", "adapter", LANGUAGE),
    "colocated": ("images", "adapter", LANGUAGE),
    "heterogeneous": ("images", LANGUAGE, "writer", "adapter"),
}
OF_SIZES: tuple[dict[str, Any], ...] = (
    {"overlap_grad_reduce": True},
    {"recompute_granularity": "selective"},
    {"recompute_granularity": "full"},
    {"moe_token_dispatcher_type": "alltoall"},
    {"moe_token_dispatcher_type": "allgather"},
)
OF_NETWORKS: tuple[dict[str, Any], ...] = (
    {"hidden_dropout": 0.1},
    {"attention_dropout": 0.1},
    {"mtp_num_layers": 1},
)
OF_RUNTIME: tuple[dict[str, Any], ...] = (
    {"precision": "bf16"},
    {"precision": "fp16"},
    {"precision": "fp8"},
    {"pipeline_order": "gpipe"},
    {"pipeline_order": "zb-h1"},
    {"encoder_microbatches": 2},
)


def _of_one_choice() -> Iterator[ExperimentConfig]:
    """Yield layouts that run and make one choice for a module, or for the run."""
    for mode, modules in MODULES.items():
        for fields in OF_SIZES:
            together = [modules] if mode == "homogeneous" else [(name,) for name in modules]
            yield from _if_they_run(partial(_with_sizes, mode, names, fields) for names in together)
        for fields in OF_NETWORKS:
            yield from _if_they_run(partial(_with_network, mode, name, fields) for name in modules)
        yield from _if_they_run(partial(_with_runtime, mode, fields) for fields in OF_RUNTIME)
        of_run = (_in_rows, _with_replicas, _with_ends_as_layers)
        yield from _if_they_run(partial(make, mode) for make in of_run)


def _if_they_run(
    makers: Iterable[Callable[[], ExperimentConfig]],
) -> Iterator[ExperimentConfig]:
    for make in makers:
        try:
            config = make().finalize()
            mimokit.plan(config)
        except ConfigError:
            continue
        yield config


def _simple(
    mode: str, layers: int = 2, names: Collection[str] = (), **fields: Any
) -> ExperimentConfig:
    """Return a layout of two ranks for each module, of which some have other sizes."""
    config = _adapted_and_decoded() if mode == "heterogeneous" else _adapted()
    for name, network in config.model.module_architectures.items():
        network.num_layers = layers
        if name in names and name != "images" and "moe_token_dispatcher_type" in fields:
            network.num_moe_experts, network.add_bias_linear = 2, False
    sizes: dict[str, dict[str, Any]] = {name: {"data_parallel": 2} for name in MODULES[mode]}
    for name in names:
        sizes[name] = {**sizes[name], **fields}
    return config.with_layout(mode, **sizes)


def _adapted() -> ExperimentConfig:
    """Return a layout of one rank for encoder, adapter and language model."""
    one = (1, 1, 1)
    return with_adapter(apart_config(one, one, 2), one)


def _adapted_and_decoded() -> ExperimentConfig:
    """Return a layout of one rank for each module of all kinds, on separate ranks."""
    one = (1, 1, 1)
    return with_adapter(decoded_config({"images": one, LANGUAGE: one, "writer": one}, 2), one)


STAGES = {"pipeline_parallel": 2, "data_parallel": 1}


def _with_sizes(mode: str, names: Collection[str], fields: dict[str, Any]) -> ExperimentConfig:
    return _simple(mode, 2, names, **fields)


def _with_network(mode: str, name: str, fields: dict[str, Any]) -> ExperimentConfig:
    config = _simple(mode)
    for field, value in fields.items():
        setattr(config.model.module_architectures[name], field, value)
    return config


def _with_runtime(mode: str, fields: dict[str, Any]) -> ExperimentConfig:
    names = MODULES[mode] if mode == "homogeneous" else (LANGUAGE,)
    config = _simple(mode, 2, names, **STAGES)
    for field, value in fields.items():
        setattr(config.runtime, field, value)
    return config


def _with_ends_as_layers(mode: str) -> ExperimentConfig:
    names = MODULES[mode] if mode == "homogeneous" else (LANGUAGE,)
    config = _simple(mode, 4, names, **STAGES)
    config.model.module_parallelisms[LANGUAGE].virtual_pipeline_model_parallel_size = 2
    return ends_as_layers(lambda: config)


def _in_rows(mode: str) -> ExperimentConfig:
    config = _simple(mode)
    config.data.pack_sequences_in_batch = True
    return config


def _with_replicas(mode: str) -> ExperimentConfig:
    return with_strategy(_simple(mode), name="simple_reduce", replicas=2)


def _with_experts(config: ExperimentConfig) -> ExperimentConfig:
    """Return a config whose modules without images have experts."""
    changed = config.model_copy(deep=True)
    for name, network in changed.model.module_architectures.items():
        if name != "images":
            network.num_moe_experts, network.add_bias_linear = 2, False
    return changed


DECODER = "heterogeneous", "decoder"


RUNS = (*WHOLE_RUNS, *CROSSED)


def test_whatever_runs_is_compared_with_one_process() -> None:
    assert missing(map(held_by, RUNS)) == set()


def test_a_choice_that_no_run_has_is_found() -> None:
    for field in ("precision fp16", "pipeline_order zb-h1", "experts by allgather"):
        without = [held for held in map(held_by, RUNS) if field not in {f for *_, f in held}]
        assert {f for *_, f in missing(without)} >= {field}
    decoder = [run for run in map(held_by, RUNS) if "decoder" not in {p for _, p, _ in run}]
    fields = {f for mode, part, f in missing(decoder) if (mode, part) == DECODER}
    assert fields >= {"tensor_parallel", "pipeline_parallel", "data_parallel", "expert_parallel"}


def test_a_run_is_found_by_what_it_proves_and_its_name() -> None:
    names = [(run.proves, run.name) for run in RUNS]
    assert len(names) == len(set(names))
