"""Stages of several modalities without Megatron: packing waits, joins, and gives gradients back."""

from dataclasses import replace

import pytest
import torch

from mimokit.engine.pipeline.base_stage import ShapeMismatchError, hidden_of, meta_like
from mimokit.engine.pipeline.microbatches import PipelineStageMultimodality, modal_type
from mimokit.engine.pipeline.packing import assemble
from mimokit.engine.ragged import Ragged
from mimokit.planning.report.rows import pipeline_rows
from mimokit.planning.schedule import plan_slots, stage_graph
from tests.rows import rows
from tests.toy_pipeline import SPECIAL, oracle_gradients, toy_batches, toy_plan, toy_stage

ABSENT = [("audio", 1), ("vision", 2), ("audio", 2)]


def test_the_slots_of_modalities_lie_end_to_end():
    plan = toy_plan(1)
    assert [modal_type(plan, index) for index in range(5)] == [
        "text",
        "audio",
        "vision",
        "packing",
        "text",
    ]
    packing = plan.slots.stages[3]
    assert packing.counts == {"text": 3, "audio": 3, "vision": 3}
    assert packing.offsets == {"text": 0, "audio": 3, "vision": 6}
    assert [plan.slots.edges[edge.index] for edge in plan.graph.incoming[3]] == [
        range(3),
        range(3, 6),
        range(6, 9),
    ]


def test_grids_have_slots_of_their_own():
    plan = toy_plan(1, three_axes=["vision"])
    packing = plan.slots.stages[3]
    assert packing.counts == {"text": 3, "audio": 3, "vision": 5}
    assert packing.offsets == {"text": 0, "audio": 3, "vision": 6}
    assert plan.slots.edges[plan.graph.incoming[3][2].index] == range(6, 11)
    assert pipeline_rows(plan)[3][-1] == "3 text, 3 audio, 5 vision"


def test_text_alone_is_a_straight_pipe():
    graph = stage_graph({"words": ()}, {"words": 3})
    slots = plan_slots(graph, {"words": "text"})
    assert [stage.counts["text"] for stage in slots.stages] == [0, 2, 2]
    assert all(stage.counts["audio"] == stage.counts["vision"] == 0 for stage in slots.stages)


def test_several_branches_of_a_modality_follow_each_other():
    topology = {"dino": ("words",), "ear": ("words",), "clip": ("words",), "words": ()}
    graph = stage_graph(topology, dict.fromkeys(topology, 1))
    slots = plan_slots(graph, {"dino": "vision", "clip": "vision", "ear": "audio", "words": "text"})
    by_name = {edge.modality: slots.edges[edge.index] for edge in graph.edges}
    assert by_name == {"ear": range(3), "dino": range(3, 6), "clip": range(6, 9)}


def _branches(plan, microbatch):
    """Return packing, and the messages that its branches are."""
    stage = PipelineStageMultimodality(plan, 3, toy_stage(plan, 3))
    batch = list(toy_batches(plan))[microbatch]
    stage.take_batch(microbatch, batch)
    rows = {
        edge: Ragged(batch["rows"][edge.modality].clone(), [1])
        for edge in stage.expects(microbatch)
    }
    return stage, rows


def test_packing_waits_until_all_branches_are_there():
    stage, rows = _branches(toy_plan(4, ABSENT), 0)
    assert [edge.modality for edge in stage.missing(0)] == ["text", "audio", "vision"]
    for edge, message in list(rows.items())[:2]:
        stage.take(0, edge, message)
    with pytest.raises(RuntimeError, match="Micro-batch 0 still waits for 'vision'"):
        stage.forward_one_chunk(0)
    stage.take(0, *list(rows.items())[2])
    assert stage.forward_one_chunk(0).output.tensor.shape == (6, 2, 3)


@rows("microbatch, names", (1, ["text", "vision"]), (2, ["text"]))
def test_what_is_absent_is_not_waited_for(microbatch, names):
    stage, rows = _branches(toy_plan(4, ABSENT), microbatch)
    assert [edge.modality for edge in rows] == names
    for edge, message in rows.items():
        stage.take(microbatch, edge, message)
    stage.forward_one_chunk(microbatch)
    stage.take_gradient(microbatch, torch.ones(6, 2, 3))
    stage.backward_one_chunk(microbatch)
    for edge, message in rows.items():
        gradient = stage.gradient(microbatch, edge)
        assert gradient.shape == message.tensor.shape
        assert bool((gradient == 5.0).all()), "packing multiplies by 5"


def test_a_message_of_another_number_of_tensors_is_refused():
    stage, rows = _branches(toy_plan(1), 0)
    edge, message = next(iter(rows.items()))
    with pytest.raises(ShapeMismatchError, match="'text' sent 3 tensors, but the plan has 2 slots"):
        stage.take(0, edge, replace(message, items=[1]))


def test_every_branch_gets_its_own_gradient():
    ids = torch.tensor([[1, 9, 8, 9], [8, 1, 1, 1]])
    words, audio, vision = (torch.rand(n, 5, requires_grad=True) for n in (4, 2, 2))
    packed = assemble(ids, SPECIAL, words, {"audio": audio, "vision": vision})
    upstream = torch.rand(4, 2, 5)
    packed.hidden.backward(upstream)
    flat = upstream.transpose(0, 1).reshape(8, 5)
    assert torch.equal(words.grad, flat[[0, 5, 6, 7]])
    assert torch.equal(audio.grad, flat[[1, 3]])
    assert torch.equal(vision.grad, flat[[2, 4]])
    assert packed.attention_mask.shape == (1, 1, 4, 4)
    assert packed.position_ids is None


def test_a_branch_with_other_rows_than_places_is_refused():
    with pytest.raises(ValueError, match="2 places for 'audio' but the branch has 3 rows"):
        assemble(
            torch.tensor([[1, 9, 9, 1]]), SPECIAL, torch.zeros(2, 4), {"audio": torch.zeros(3, 4)}
        )


def test_another_width_or_type_is_refused_with_both_shapes():
    sent = Ragged(meta_like((4, 48), torch.float32))
    with pytest.raises(
        ShapeMismatchError, match=r"takes \(4, 64\) in float32, .* \(4, 48\) in flo"
    ):
        hidden_of(sent, 64, torch.float32, "words")
    with pytest.raises(ShapeMismatchError, match=r"in bfloat16, but .* \(4, 48\) in float32"):
        hidden_of(sent, 48, torch.bfloat16, "words")
    assert hidden_of(sent, 48, torch.float32, "words") is sent.tensor


def _run_toy(plan):
    """Run this rank's stage; return the gradient of its number and what crossed, as noted."""
    import torch
    import torch.distributed as dist

    from mimokit.engine.bridges.messages import Mailbox
    from mimokit.engine.pipeline.executor import StageExecutor
    from mimokit.engine.pipeline.steps import before_reduction
    from mimokit.engine.steps import exhaust
    from tests.toy_pipeline import Direct, ToyModel, toy_batches, toy_stage

    rank, mailbox = dist.get_rank(), Mailbox(torch.device("cpu"))
    mailbox.noted = []
    stage = toy_stage(plan, rank)
    model = ToyModel(plan, {rank: stage}, Direct(plan, rank, mailbox))
    exhaust(StageExecutor(model, toy_batches(plan)).run(before_reduction(model)))
    noted = [(what, peer, tag.encode()) for what, peer, tag in mailbox.noted]
    return None if stage.weight.grad is None else float(stage.weight.grad), noted


@pytest.mark.parametrize("three_axes", [[], ["vision"]], ids=["one size", "any size"])
@pytest.mark.parametrize("absent", [[], ABSENT], ids=["all present", "some absent"])
def test_heads_on_ranks_of_their_own(cluster, absent, three_axes):
    from mimokit.planning.message_tags import Tag

    plan = toy_plan(4, absent, three_axes=three_axes)
    found = cluster.run(_run_toy, plan, world_size=5)
    assert [gradient for gradient, _ in found] == pytest.approx(oracle_gradients(plan), rel=1e-5)
    for giver, (_, noted) in enumerate(found):
        for taker, (_, others) in enumerate(found):
            sent = [tag for what, peer, tag in noted if (what, peer) == ("sent", taker)]
            taken = [tag for what, peer, tag in others if (what, peer) == ("received", giver)]
            assert sent == taken, "both ends name (micro-batch, slot, split) alike, in one order"
            for tag in map(Tag.decode, sent):
                assert tag.slot in plan.slots.edges[tag.edge]
    seen = [Tag.decode(tag) for what, _, tag in found[2][1] if what == "sent"]
    assert {tag.slot for tag in seen} == set(range(6, 11 if three_axes else 9))
    audio = [Tag.decode(tag).microbatch for what, _, tag in found[1][1] if what == "sent"]
    assert set(audio) == {0, 1, 2, 3} - {m for name, m in absent if name == "audio"}


def test_a_frozen_head_has_no_backward(cluster):
    plan = toy_plan(2, frozen=["vision"])
    gradients = [gradient for gradient, _ in cluster.run(_run_toy, plan, world_size=5)]
    assert gradients[2] is None
    wanted = oracle_gradients(plan)
    assert [gradients[n] for n in (0, 1, 3, 4)] == pytest.approx([wanted[n] for n in (0, 1, 3, 4)])
