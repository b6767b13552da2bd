"""A pipeline of the language model on the ranks of its encoders."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mimokit
from mimokit.config import ConfigError, ExperimentConfig
from mimokit.planning import LayoutPlan, ModuleRanks
from mimokit.planning.bridges.plan import plan_first_stage_bridge
from mimokit.planning.bridges.routes import Route
from mimokit.planning.ranks import SampleRange
from mimokit.planning.schedule import unit_timeline
from mimokit.prediction.traffic import traffic_of_plan
from tests.layouts_pipelines import shared_pipeline
from tests.planning.layouts import Sizes, layout, sizes


def three_phase(language: Sizes, base: int, count: int = 2, **encoders: Sizes) -> ExperimentConfig:
    """Return a colocated config in which the language model may have a pipeline."""
    return layout("colocated", language, base, count, schedule="three_phase", **encoders)


def row_of_the_paper() -> ExperimentConfig:
    """Return arXiv 2605.27678, table A2, 1B with 14B, colocated, 50 %: 72 GPUs, 288 samples."""
    return three_phase(sizes(tp=2, pp=2, dp=18), 2, 8, images=sizes(tp=2, dp=36))


def missing(plan: LayoutPlan, route: Route, source: ModuleRanks, taking: range, module: str) -> int:
    """Return how many samples do not arrive as they should on the ranks that take them.

    A transfer counts only if its sender has computed what it sends. Ranks of a group hand on what
    any of them has received.
    """
    computed = plan.batch.modules[source.module].samples
    held: dict[int, list[int]] = {rank: [] for rank in taking}
    for transfer in route.transfers:
        start, stop = computed[transfer.source_rank]
        if start <= transfer.start and transfer.stop <= stop:
            held[transfer.destination_rank] += range(transfer.start, transfer.stop)
    for group in route.groups:
        together = sorted(sample for rank in group for sample in held[rank])
        held |= dict.fromkeys(group, together)
    wanted = plan.batch.modules[module].samples

    def wrong(rank: int, span: SampleRange) -> int:
        return len(set(range(*span)).symmetric_difference(held[rank])) + (
            len(held[rank]) - len(set(held[rank]))
        )

    return sum(wrong(rank, wanted[rank]) for rank in taking)


@st.composite
def shared(draw: st.DrawFn) -> ExperimentConfig:
    """Return an encoder and a language model with a pipeline on as many ranks."""
    tp, cp, pp = (draw(st.sampled_from(choice)) for choice in ([1, 2, 4], [1, 2], [2, 3, 4]))
    dp = draw(st.sampled_from([1, 2, 4]))
    world = tp * cp * pp * dp
    fitting = [t for t in (1, 2, 3, 4, 6, 8) if world % t == 0]
    fitting = [t for t in fitting if max(world // t, dp) % min(world // t, dp) == 0]
    tensor = draw(st.sampled_from(fitting))
    replicas = world // tensor
    least = max(1, replicas // dp)
    base = least * draw(st.sampled_from([1, 2]))
    return three_phase(sizes(tp, dp, cp, pp), base, images=sizes(tensor, replicas))


@settings(max_examples=80)
@given(shared())
def test_every_sample_reaches_the_first_stage_and_its_gradient_the_encoder(
    config: ExperimentConfig,
) -> None:
    plan = mimokit.plan(config)
    (bridge,) = plan.disjoint_bridges
    images, language = plan.modules["images"], plan.modules["language"]
    first = language.stage(0)
    assert missing(plan, bridge.forward, images, first, "language") == 0
    assert missing(plan, bridge.backward, language, images.ranks, "images") == 0
    for route in (bridge.forward, bridge.backward):
        sent = [t for t in route.transfers if t.source_rank != t.destination_rank]
        assert route.messages == len(sent)
        whole = sum(t.stop - t.start for t in sent)
        per_sample = config.data.image_seq_length * 5040 * 4
        assert route.bytes_between == whole * per_sample
    flows = traffic_of_plan(config, plan).flows
    crossing = flows["bridge"].sent[flows["bridge"].sources == flows["bridge"].destinations]
    assert not crossing.any(), "what a rank keeps is no traffic"


def test_the_check_sees_a_message_that_is_left_out_or_of_the_wrong_rank() -> None:
    plan = mimokit.plan(row_of_the_paper())
    route = plan.disjoint_bridges[0].forward
    images, first = plan.modules["images"], plan.modules["language"].stage(0)
    assert missing(plan, route, images, first, "language") == 0
    fewer = replace(route, transfers=route.transfers[:-1])
    assert missing(plan, fewer, images, first, "language") > 0
    turned = (replace(route.transfers[-1], source_rank=0), *route.transfers[:-1])
    assert missing(plan, replace(route, transfers=turned), images, first, "language") > 0


def test_a_layout_of_the_paper() -> None:
    plan = mimokit.plan(row_of_the_paper())
    assert plan.world_size == 72
    assert plan.batch.global_batch_size == 288
    assert plan.pipeline is not None
    assert plan.pipeline.around == ("images",)
    assert [list(ranks) for ranks in plan.pipeline.ranks] == [list(range(36)), list(range(36, 72))]
    assert unit_timeline(plan.pipeline.schedule).in_flight == (2, 1)
    for module in plan.batch.modules.values():  # each reads what it computes
        assert all(module.loaded[rank] == module.samples[rank] for rank in module.loaded)
    words = " ".join(str(plan).split())
    assert "images run forward before it and backward after it" in words


def test_encoders_run_for_some_or_all_micro_batches_at_once() -> None:
    for stages, replicas in ((1, 4), (2, 2)):
        for each, wanted in ((None, 5), (2, 2), (1, 1)):
            config = three_phase(sizes(pp=stages, dp=replicas), 2, 5, images=sizes(dp=4))
            config.runtime.encoder_microbatches = each
            program = mimokit.plan(config).program
            for worker, stages_of in enumerate(program.graph.workers):
                steps = program.schedule.ordered(worker)
                encoder, held, most = stages_of[0], 0, 0
                for kind, stage, _ in steps:
                    if stage == encoder and kind in ("forward", "backward"):
                        held += 1 if kind == "forward" else -1
                        most = max(most, held)
                assert (held, most) == (0, wanted)
                assert program.schedule.in_flight(encoder) == wanted


def test_the_model_alone_asks_for_no_phases() -> None:
    with pytest.raises(ConfigError, match="without a pipeline"):
        row_of_the_paper().model.finalize(72)
    config = row_of_the_paper()
    config.model.module_parallelisms["images"].data_parallel = None
    assert config.finalize(72).model.get_parallelism("images").data_parallel == 36


def test_other_ranks_have_another_bridge() -> None:
    plan = mimokit.plan(row_of_the_paper())
    images, language = plan.modules["images"], plan.modules["language"]
    with pytest.raises(ValueError, match="not on the same ranks"):
        plan_first_stage_bridge(
            ("images", images), ("language", replace(language, rank_offset=1)), 36, 4
        )


def test_chunks_of_the_language_model_and_their_order() -> None:
    config = shared_pipeline("colocated", (1, 2, 1), {"clip": (2, 1)}, 4, layers=4, chunks=2)
    plan = mimokit.plan(config)
    assert plan.pipeline is not None
    assert plan.pipeline.graph.workers == ((0, 2), (1, 3))
    assert plan.program.graph.workers == ((0, 2, 4), (1, 3, 5))
    assert "Pipeline: interleaved 1F1B over 4 stages, 4 micro-batches" in " ".join(
        str(plan).split()
    )
    bubble = unit_timeline(plan.pipeline.schedule).bubble
    assert bubble[:2] == bubble[2:], "ranks idle, not chunks"
    assert plan.to_json()["pipeline"]["warmup"] == {"0": 5, "1": 3}
    # Ranks read once, in steps of their own.
    loads = [action for action in plan.program.actions(0) if action.kind == "load"]
    assert [(action.stage, action.microbatch) for action in loads] == [(None, m) for m in range(4)]
    config.runtime.pipeline_order = "gpipe"
    assert "Pipeline: GPipe over 4 stages" in " ".join(str(mimokit.plan(config)).split())


def test_chunks_are_of_any_module_and_take_any_number_of_micro_batches() -> None:
    options = {"layers": 4, "chunks": 2, "encoder_chunks": 2, "encoder_microbatches": 3}
    clip = {"clip": (1, 1)}
    config = shared_pipeline("colocated", (1, 2, 1), clip, 5, ("clip",), **options)
    plan = mimokit.plan(config)
    assert "rejects" not in str(plan)
    assert plan.program.graph.workers == ((0, 2, 4, 6), (1, 3, 5, 7))
    forwards = [step[1:] for step in plan.program.schedule.ordered(1) if step[0] == "forward"]
    in_turn = [(stage, number) for stage in (1, 3) for number in range(3)]
    assert forwards[:6] == in_turn, "each chunk of the encoder, all of a pass"


def test_a_pipeline_beside_encoders_numbers_its_messages() -> None:
    config = shared_pipeline("colocated", (1, 2, 1), {"clip": (2, 1)}, 1025)
    with pytest.raises(ConfigError, match="1,025 values of microbatch"):
        mimokit.plan(config)
