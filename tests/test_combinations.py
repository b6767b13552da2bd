"""Each pair of what a network has and of how it is run is proved by a run, or refused by a word."""

from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

import pytest

from mimokit.config import ConfigError, ExperimentConfig, ModuleArchitecture
from mimokit.config.rules import combinations
from mimokit.config.rules.combinations import REFUSED, Refused
from mimokit.config.runtime import RUNNABLE_PRECISIONS, PipelineOrder
from mimokit.layout_search import search
from mimokit.layout_search.pairs import REFUSED as REFUSED_IN_SEARCH
from mimokit.prediction import Workload
from tests.claims import pairs
from tests.claims.layouts import CHUNKS, FOUR_LAYERS, HOMOGENEOUS, PP2, Sizes, run_with, two
from tests.claims.pairs import FEATURES, FROZEN, PLAIN, WAYS, frozen, proofs, runs
from tests.layout_search.small import model
from tests.layouts_multimodal import LANGUAGE
from tests.widgets.planner_sessions import Driver


@pytest.fixture(scope="module")
def proved() -> dict[pairs.Pair, str]:
    return proofs(runs())


def test_what_is_refused_and_what_is_proved_changes_on_purpose_only(proved) -> None:
    assert frozen(proved) == FROZEN.read_text(encoding="utf-8"), "write it: python -m tests.claims"


def test_every_pair_is_proved_or_refused(proved) -> None:
    assert "neither" not in frozen(proved)


def test_what_is_proved_is_not_refused(proved) -> None:
    assert not [pair for pair in proved if pairs.is_refused(pair)]


def test_a_row_that_is_planted_or_lost_is_found(proved, monkeypatch) -> None:
    right = frozen(proved)
    for rows in ((*REFUSED, Refused("tied_embeddings", ("strategy",))), REFUSED[1:]):
        monkeypatch.setattr(pairs, "REFUSED", rows)
        assert frozen(proved) != right


def test_a_run_that_is_lost_is_found(proved) -> None:
    fewer = ((name, config) for name, config in runs() if "fp8" not in name)
    assert "multi_latent_attention,precision fp8,neither,neither,neither" in frozen(proofs(fewer))


def test_experts_with_a_bias_in_full_shards_are_asked_for(proved) -> None:
    """Their first step crashed, in layouts of no list; without its runs the pair is missing."""
    pair = ("moe_router_enable_expert_bias", "use_megatron_fsdp")
    both = {
        name for name, config in runs() for found in pairs.pairs_of(config) if found[:2] == pair
    }
    assert len(both) >= 2
    fewer = frozen(proofs((name, config) for name, config in runs() if name not in both))
    assert f"{','.join(pair)},neither,neither,neither" in fewer
    assert f"{','.join(pair)},neither" not in frozen(proved)


def test_a_rule_that_refuses_too_much_is_found(monkeypatch) -> None:
    """A list that leaves out what is refused would only get shorter."""
    row = Refused("moe_router_enable_expert_bias", ("use_megatron_fsdp",))
    monkeypatch.setattr(combinations, "REFUSED", (*REFUSED, row))
    with pytest.raises(ConfigError, match="is refused with use_megatron_fsdp"):
        for _ in _made_again():
            pass


def _made_again() -> Iterator[ExperimentConfig]:
    """Yield the configs of all runs, checked by the rules of now."""
    for _, config in runs():
        yield ExperimentConfig.model_validate(config.model_dump())


def test_whatever_a_network_or_a_run_may_have_is_in_the_list() -> None:
    fields = {name.partition(" ")[0].partition(".")[0] for name in (*FEATURES, *PLAIN)}
    assert set(ModuleArchitecture.model_fields) == fields & set(ModuleArchitecture.model_fields)
    assert {f"precision {name}" for name in RUNNABLE_PRECISIONS[1:]} < set(WAYS)
    assert {f"pipeline_order {name}" for name in get_args(PipelineOrder)[1:]} < set(WAYS)


def _in_zero_bubbles(language: Sizes) -> ExperimentConfig:
    return run_with(two(HOMOGENEOUS, PP2, language, FOUR_LAYERS), pipeline_order="zb-h1")()


def test_plan_planner_and_search_say_the_same() -> None:
    with pytest.raises(ConfigError) as refused:
        _in_zero_bubbles(CHUNKS)
    (problem,) = refused.value.problems
    assert problem.sentence == (
        "Module 'language_module': virtual_pipeline_model_parallel_size 2 is refused with "
        "pipeline_order zb-h1; change one of them."
    )
    planner = Driver(_in_zero_bubbles(PP2))
    planner.type(f"model.module_parallelisms.{LANGUAGE}.{problem.field}", "2")
    assert planner.sentences == [problem.sentence]
    result = search(_in_zero_bubbles(PP2), gpus=2)
    of_language = {found.layout.modules[LANGUAGE] for found in result.top(100)}
    assert any(sizes.pipeline == 2 for sizes in of_language)
    assert all(sizes.virtual == 1 for sizes in of_language)
    assert result.dropped[REFUSED_IN_SEARCH] > 0
    layouts = [found.layout for found in result.top(100)]
    staged = next(layout for layout in layouts if layout.modules[LANGUAGE].pipeline == 2)
    sizes = replace(staged.modules[LANGUAGE], virtual=2)
    chunked = replace(staged, modules={**staged.modules, LANGUAGE: sizes})
    assert problem.sentence in result.why_not(chunked).broken


def test_a_search_reads_the_features_of_a_model(monkeypatch) -> None:
    workload, options = Workload(2048, 16), {"gpus": 8}
    free = search(model(experts=8), workload=workload, **options)
    mode = free.best.layout.mode
    row = Refused("num_moe_experts", ("data_parallel", "tensor_parallel"), (mode,))
    monkeypatch.setattr(combinations, "REFUSED", (*REFUSED, row))
    refused = search(model(experts=8), workload=workload, **options)
    others = [
        found.layout.modules["language"] for found in refused.top(100) if found.layout.mode == mode
    ]
    assert {(sizes.tensor, sizes.data) for sizes in others} <= {(1, 1)}
    (sentence,) = refused.why_not(free.best.layout).broken
    assert sentence.startswith("Module 'language': num_moe_experts 8 is refused with ")
    assert sentence.endswith(f" in {mode} mode; change one of them, or the mode.")
