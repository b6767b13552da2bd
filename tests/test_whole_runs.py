"""The list of whole runs has one for every parallelism that runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mimokit.axes import CONFIG_FIELDS, Axis, Choice
from mimokit.config import ConfigError, ExperimentConfig, check_runnable
from tests.layouts import digits_config
from tests.layouts_apart import decoded_config
from tests.layouts_multimodal import LANGUAGE
from tests.whole_runs import WHOLE_RUNS, WholeRun, parallel_fields

ON = {
    **{axis: 2 if isinstance(axis, Axis) else True for axis in CONFIG_FIELDS},
    Choice.RECOMPUTE: "full",
    Choice.OPTIMIZER_INSTANCES: 2,
}
FROM_FILES = ("modules that start from weights", "a whole LLaVA")
"""Runs whose weights are written first; others have the same sizes."""


def missing(runs: Iterable[WholeRun]) -> set[tuple[str, str, str]]:
    """Return (mode, part of the model, field) of the parallelism that runs, and that no run has."""
    covered = {row for run in runs for row in parallel_fields(run.make())}
    return {row for config in _of_one_field() for row in parallel_fields(config)} - covered


def _of_one_field() -> Iterator[ExperimentConfig]:
    """Yield layouts that run and use one field of a module."""
    shared = digits_config((1, 1), (1, 1))
    for network in shared.model.module_architectures.values():
        network.num_layers = 2
    one = dict.fromkeys(("images", LANGUAGE, "writer"), (1, 1, 1))
    decoded = decoded_config(one)
    for config in (shared, decoded):  # two chunks for each of two ranks
        config.data.seq_length = config.model.module_architectures[LANGUAGE].seq_length = 44
    for axis, field in CONFIG_FIELDS.items():
        of_several = {"tensor_parallel": 2, "data_parallel": 2}
        used = {"data_parallel": 1} if isinstance(axis, Axis) else of_several
        if axis is Axis.EXPERT:
            used = {"data_parallel": 2}
            shared, decoded = _with_experts(shared), _with_experts(decoded)
        used = {**used, field: ON[axis]}
        alone = {name: {"data_parallel": 1} for name in one}
        for config, mode, modules in (
            (shared, "homogeneous", {"images": used, LANGUAGE: used}),
            (shared, "colocated", {"images": used, LANGUAGE: {"data_parallel": 2}}),
            (shared, "colocated", {"images": {"data_parallel": 2}, LANGUAGE: used}),
            *((decoded, "heterogeneous", {**alone, name: used}) for name in one),
        ):
            try:
                layout = config.with_layout(mode, **modules)
                check_runnable(layout)
            except ConfigError:
                continue
            yield layout


def _with_experts(config: ExperimentConfig) -> ExperimentConfig:
    """Return a config whose modules without images have experts."""
    changed = config.model_copy(deep=True)
    for name, network in changed.model.module_architectures.items():
        if name != "images":
            network.num_moe_experts, network.add_bias_linear = 2, False
    return changed


def test_whatever_runs_is_compared_with_one_process() -> None:
    runs = [run for run in WHOLE_RUNS if run.proves not in FROM_FILES]
    assert missing(runs) == set()
    shared = [run for run in runs if run.proves != "sizes on shared ranks"]
    assert not missing(shared), "other runs on shared ranks have all sizes, too"
    without = [run for run in runs if not run.make().model.decoder_module_names]
    found = missing(without)
    assert {(mode, part) for mode, part, _ in found} == {("heterogeneous", "decoder")}
    fields = {field for _, _, field in found}
    assert fields >= {"tensor_parallel", "pipeline_parallel", "data_parallel", "expert_parallel"}


def test_a_run_is_found_by_what_it_proves_and_its_name() -> None:
    names = [(run.proves, run.name) for run in WHOLE_RUNS]
    assert len(names) == len(set(names))
