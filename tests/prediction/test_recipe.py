"""How a stack runs a model decides its step, and what nobody states widens the band."""

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from mimokit.architecture import load_model
from mimokit.config import ExperimentConfig
from mimokit.config.errors import ConfigError
from mimokit.config.recipe import Dispatcher, Graphs, RecipeConfig
from mimokit.config.sizes import ParallelSizes
from mimokit.config_files import load_experiment_config
from mimokit.prediction import Layout, Prediction, Workload, predict
from mimokit.prediction.band import UNKNOWN_RECIPE
from mimokit.prediction.hardware import load_hardware
from mimokit.prediction.step_time import System, load_software
from mimokit.prediction.step_time.collectives import dispatch
from mimokit.prediction.step_time.host import launch_seconds
from mimokit.prediction.step_time.recipe import recipe_of
from mimokit.prediction.verdict import verdict_lines
from tests.prediction.shipped import language_model
from tests.rows import rows

KNOWN = {"graphs": "none", "dispatcher": "hybridep"}


def predicted(name: str = "qwen3-30b-a3b", gpu: str = "gb200", **facts: Any) -> Prediction:
    sizes = ParallelSizes(data=8, expert=8 if "a3b" in name else 1)
    recipe = RecipeConfig(**facts) if facts else None
    work = Workload(4096, 64, "mxfp8" if gpu == "gb200" else "fp8", recipe=recipe)
    return predict(load_model(name), Layout("homogeneous", {name: sizes}), work, gpu=gpu)


def test_graphs_leave_the_host_less_to_launch() -> None:
    seconds = [
        predicted(**{**KNOWN, "graphs": graphs}).parts["host"]
        for graphs in ("none", "part", "part+attention", "full")
    ]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[0] > 0 == seconds[-1]


def test_the_law_of_launches_is_that_of_the_published_passes() -> None:
    """4.4 ms with partial graphs, 2.2 with attention, 4.8 without, 0 in full, in 8 bits."""
    model = language_model("qwen3-30b-a3b")
    system = System(load_hardware("b200"), load_software("megatron-bridge"), "mxfp8")
    law: dict[Graphs, float] = {"part": 4.4, "part+attention": 2.2, "none": 4.8, "full": 0.0}
    for graphs, expected in law.items():
        recipe = replace(system.recipe, graphs=graphs)
        found = launch_seconds(
            model.net, model.net.moe, ParallelSizes(), replace(system, recipe=recipe)
        )
        assert 1e3 * float(found) == pytest.approx(expected, abs=0.1)


def _dispatching(system: System, kind: Dispatcher) -> System:
    return replace(system, recipe=replace(system.recipe, dispatcher=kind))


def test_an_all_to_all_sends_every_copy_and_deepep_one_per_rank_and_domain() -> None:
    system = System(load_hardware("h100"), load_software("megatron-bridge"))
    kinds: tuple[Dispatcher, Dispatcher] = ("alltoall", "deepep")
    for ranks, copies in ((8, 8), (64, 8)):
        plain, once = (
            float(dispatch(_dispatching(system, kind), 1e9, ranks, 1, copies).seconds)
            for kind in kinds
        )
        assert plain > 1.3 * once
    rack = System(load_hardware("gb200"), load_software("megatron-bridge"))
    near, far = (float(dispatch(each, 1e9, 64, 1, 8).seconds) for each in (rack, system))
    assert near < far / 4


def test_dispatch_beside_another_micro_batch_is_hidden_in_part() -> None:
    apart, beside = (
        predicted(**KNOWN, dispatch_overlap=overlap).parts["expert"] for overlap in (False, True)
    )
    assert 0.16 * apart <= beside <= 0.65 * apart


def test_what_is_unknown_widens_the_band_and_says_so() -> None:
    unknown, known = predicted(), predicted(**KNOWN)
    wide, narrow = ((one.high - one.low) / one.seconds for one in (unknown, known))
    assert wide == pytest.approx(UNKNOWN_RECIPE * narrow)
    assert unknown.supposed == (
        "Assumed, since runtime.recipe does not say: dispatcher hybridep, CUDA graphs "
        "part+attention.",
    )
    assert known.supposed == ()
    assert unknown.to_json()["supposed"] == list(unknown.supposed)


def test_a_model_unlike_those_fitted_widens_the_band_and_says_so() -> None:
    known, other = (
        predicted(name, "h100", graphs="none") for name in ("llama-3-8b", "llama-3.2-1b")
    )
    assert known.supposed == ()
    assert other.supposed == ("No dense model of width 2,048 on this GPU was fitted.",)
    assert (other.high - other.low) / other.seconds > (known.high - known.low) / known.seconds


@rows(
    "name, gpu, precision, sentence",
    ("mixtral-8x7b", "h100", "fp8", "No model with 8 experts on this GPU was fitted."),
    ("mixtral-8x7b", "h100", "bf16", "No model with 8 experts in bf16 on this GPU was fitted."),
    ("llama-3-8b", "h100", "bf16", "No dense model in bf16 on this GPU was fitted."),
    ("llama-3-8b", "a6000", "bf16", "No dense model on NVIDIA RTX A6000 48GB was fitted."),
)
def test_every_reader_is_told_what_was_never_fitted(
    name: str, gpu: str, precision: str, sentence: str
) -> None:
    layout = Layout("homogeneous", {name: ParallelSizes(data=8)})
    work = Workload(2048, 64, precision, recipe=RecipeConfig(graphs="none"))
    unlike = predict(load_model(name), layout, work, gpu=gpu)
    assert sentence in unlike.supposed
    assert sentence in str(unlike).splitlines()
    printed = io.StringIO()
    Console(file=printed, width=300).print(unlike)
    assert sentence in printed.getvalue()
    seconds, *others = verdict_lines(unlike.verdict)
    assert sentence in seconds.why
    assert not any(line.why for line in others)


def test_a_fact_of_experts_that_a_model_has_not_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="dispatcher is deepep, but the language model has no exp"
    ):
        recipe_of(RecipeConfig(dispatcher="deepep"), "NVIDIA H100", "megatron-bridge", False)


def test_an_experiment_states_its_recipe() -> None:
    config: ExperimentConfig = load_experiment_config("preset:llava_7b_colocated")
    runtime = config.runtime.model_copy(update={"recipe": RecipeConfig(graphs="full")})
    captured = config.model_copy(update={"runtime": runtime})
    plain, full = (
        predict(one, gpu="h100", software="megatron-bridge") for one in (config, captured)
    )
    assert full.seconds < plain.seconds
