"""Stepping through training: what is done, held, checked and refused."""

import os
import signal
import time
from dataclasses import replace

import numpy as np
import pytest

from mimokit.cluster import RankDied, RankError
from mimokit.cluster.process import is_stopped
from mimokit.config import ConfigError
from mimokit.experiment import Stepper, StepperError, train
from tests import seams
from tests.evaluations import QUICK
from tests.layouts import digits_config
from tests.layouts_apart import apart_config, apart_multimodal_config
from tests.layouts_experts import experts_config
from tests.layouts_multimodal import LANGUAGE, PRESENCE, multimodal_config
from tests.layouts_pipelines import shared_pipeline
from tests.planted import planted, replacing
from tests.symptoms import acted_on_after
from tests.whole_runs import in_rows, recomputed, stages_on_contexts

LAYOUTS = {
    "homogeneous": digits_config((2, 2), (2, 2), 2),
    "fan_in": digits_config((1, 4), (2, 2)),
    "fan_out": digits_config((2, 2), (1, 4), 2),
    "apart_fan_in": apart_config((1, 1, 4), (2, 1, 2), 2),
    "absent_and_frozen": multimodal_config(
        {"clip": (1, 4), "audio": (2, 2), LANGUAGE: (4, 1)},
        "colocated",
        num_microbatches=2,
        presence=PRESENCE,
        frozen=["clip"],
    ),
    "packing": apart_multimodal_config(
        {LANGUAGE: (1, 2, 2), "clip": (2, 1, 1), "audio": (1, 1, 2)}, 2, presence=PRESENCE
    ),
    "homogeneous_pipeline": shared_pipeline(
        "homogeneous", (1, 2, 2), {"clip": (1, 1), "audio": (1, 1)}, 3, presence=PRESENCE
    ),
    "three_phase": shared_pipeline(
        "colocated",
        (1, 2, 2),
        {"clip": (4, 1), "audio": (1, 2)},
        3,
        ("audio",),
        encoder_microbatches=2,
        encoder_chunks=2,
    ),
    "any_size": apart_multimodal_config(
        {"qwen": (1, 2, 2), LANGUAGE: (2, 2, 1)}, 2, three_axes=True
    ),
    "contexts_and_rows": in_rows(stages_on_contexts()),
    "recomputed_experts": recomputed(
        experts_config((2, 1, 1), (1, 1, 2)), images="full", language_module="full"
    ),
}
INSIDE = {
    "contexts_and_rows": {"gather-keys"},
    "recomputed_experts": {"dispatch", "combine", "recompute"},
}
"""What takes place inside steps besides the reduction of gradients."""


@pytest.mark.parametrize("name", LAYOUTS)
def test_stepping_computes_what_training_does_and_nothing_differs(cluster, tmp_path, name):
    config = LAYOUTS[name]
    trained = train(cluster, config, evaluations=QUICK, directory=tmp_path).result().steps
    losses = trained[trained["rank"] == 0]["loss"].tolist()
    with Stepper(cluster, config) as stepper:
        stepped = [stepper.run_until(action="report").result["loss"] for _ in losses]
        assert stepped == losses
        assert stepper.differences == ()
        crossed = [piece for snapshot in stepper.snapshots for piece in snapshot.pieces]
        assert bool(crossed) is (name != "homogeneous")
        records = [record for snapshot in stepper.snapshots for record in snapshot.records.values()]
        assert any(record.inputs for record in records)
        inside = {kind for record in records for kind in record.inside}
        assert inside - {"all-reduce"} == INSIDE.get(name, set())
        for record in records if name == "recomputed_experts" else ():
            passes, _, module = record.did.partition(" for ")[0].partition(" of ")
            if module != LANGUAGE or passes not in ("forward", "backward"):
                continue
            told = {kind: count for kind, (count, _) in record.inside.items()}
            again = {"recompute": 2} if passes == "backward" else {}
            assert told == {"dispatch": 2, "combine": 2, **again}, "once in every layer"


def open_group_count() -> int:
    """Process groups of this rank."""
    from mimokit.engine.device import open_groups

    return len(open_groups())


def test_models_in_turn_leave_no_groups_in_their_world(cluster, tmp_path):
    config = LAYOUTS["apart_fan_in"]
    cluster.form_world(8)
    before = cluster.run(open_group_count, world_size=8)
    with Stepper(cluster, config) as stepper:
        stepper.next()
        assert cluster.run(open_group_count, world_size=8) > before
    train(cluster, config, evaluations=QUICK, directory=tmp_path).result()
    assert cluster.run(open_group_count, world_size=8) == before


def _models_in_memory():
    import gc

    from mimokit.engine.parallel.data_parallel import ModuleDataParallel

    return sum(isinstance(each, ModuleDataParallel) for each in gc.get_objects())


def test_a_step_that_is_left_in_the_middle_leaves_no_model(cluster):
    with Stepper(cluster, LAYOUTS["fan_in"]) as stepper:
        stepper.run_until(action="loss")  # its graph crosses a bridge, and has no backward
        assert cluster.run(_models_in_memory) == [2] * 4
    assert cluster.run(_models_in_memory) == [0] * 4


def test_messages_of_a_closed_stepper_are_dropped(cluster, tmp_path):
    config = LAYOUTS["apart_fan_in"]
    losses = []
    for number in range(2):
        run = train(cluster, config, evaluations=QUICK, directory=tmp_path / str(number))
        trained = run.result().steps
        losses.append(trained[trained["rank"] == 7]["loss"].tolist())
        with Stepper(cluster, config) as stepper:
            stepper.run_until(action="report")
            cluster.run(send_noise_ahead, world_size=8)
    assert losses[0] == losses[1]


def send_noise_ahead() -> None:
    """Send a message that no rank receives, with the tag of the next model's first message."""
    import torch

    from mimokit.engine.stepper.session import current
    from mimokit.planning.message_tags import Tag

    layout = current().state.model
    if 0 in layout.stages:
        peer = torch.distributed.get_rank() + 4
        layout.mailbox.send([torch.full((8, 64), 1e3)], peer, Tag(0, 0, 0))


def test_for_an_absent_modality_and_a_frozen_module_nothing_crosses(cluster):
    with Stepper(cluster, LAYOUTS["absent_and_frozen"]) as stepper:
        stepper.next(len(stepper.clock))
        crossed = {
            (p.crossing.source, p.crossing.backward, p.crossing.microbatch)
            for snapshot in stepper.snapshots
            for p in snapshot.pieces
        }
        assert crossed == {
            ("clip", False, 0),
            ("clip", False, 1),
            ("audio", False, 0),
            ("audio", True, 0),
        }
        idle = [str(snapshot) for snapshot in stepper.snapshots if not snapshot.acted]
        assert any(
            "no rank had anything to do for gather of audio for micro-batch 1" in i for i in idle
        )


def test_one_step_moves_a_consistent_set_of_ranks(cluster):
    config = LAYOUTS["apart_fan_in"]
    with Stepper(cluster, config) as stepper:
        snapshot = stepper.run_until(rank=5, action="receive-forward", microbatch=0)
        assert {snapshot.records[rank].did for rank in range(4)} == {
            "send-forward of images for micro-batch 0"
        }
        received = [p for p in snapshot.pieces if not p.sent]
        assert {(p.crossing.source_rank, p.crossing.destination_rank) for p in received}
        assert all("routes.py:" in piece.code for piece in snapshot.pieces)
        table = stepper.state()
        assert table["rank"].tolist() == list(range(8))
        assert table["samples"].tolist()[:5] == ["0–1", "2–3", "4–5", "6–7", "0–3"]
        stepper.next()
        waiting = stepper.run_until(rank=0, action="send-forward", microbatch=1)
        row = stepper.state().set_index("rank").loc[0]
        assert row["next"] == "receive-backward of images for micro-batch 0"
        assert row["at"] == waiting.number + 1


def test_the_table_says_whom_a_rank_waits_for(cluster):
    with Stepper(cluster, LAYOUTS["apart_fan_in"]) as stepper:
        stepper.run_until(rank=0, action="backward", microbatch=0)
        table = stepper.state().set_index("rank")
        assert table.loc[0, "waits_for"].startswith("rank ")
        assert table.loc[4, "waits_for"] == "no rank"


def test_tensors_are_inspected_now_and_as_they_were(cluster):
    config = LAYOUTS["fan_in"]
    with Stepper(cluster, config) as stepper:
        stepper.run_until(action="gather")
        own, gathered = "boundaries.images.encoder_output", "boundaries.images.bridge_output"
        pieces = [stepper.inspect(rank, own) for rank in range(2)]
        for rank in range(2):
            assert np.array_equal(stepper.inspect(rank, gathered), np.concatenate(pieces))
        assert gathered in stepper.tensors(0)["name"].tolist()
        parts = stepper.whole(0, gathered)
        assert [part.ranks for part in parts] == [(0, 1), (2, 3)]
        assert [part.samples for part in parts] == [(0, 4), (4, 8)]
        small = stepper.pictures(0)[gathered]
        assert small.high == np.float32(max(piece.max() for piece in pieces))
        before = stepper.run_until(rank=0, action="scatter", module="images").number
        gradient = stepper.inspect(2, "boundaries.images.bridge_input.grad")
        stepper.next(3)
        with pytest.raises(StepperError, match="had no 'boundaries"):
            stepper.inspect(2, gathered)
        assert stepper.back(3).number == before
        assert np.array_equal(stepper.inspect(2, "boundaries.images.bridge_input.grad"), gradient)
        # Forward again through what was recorded; the ranks do nothing twice.
        taken = len(stepper.snapshots)
        assert stepper.next(2).number == before + 2
        assert len(stepper.snapshots) == taken


def test_an_edit_is_what_the_next_step_reads_and_the_step_before_is_restored(cluster):
    name = "boundaries.images.language_input"
    with Stepper(cluster, LAYOUTS["fan_in"]) as stepper:
        number = stepper.run_until(action="gather").number
        before = [stepper.inspect(rank, name) for rank in range(4)]
        right = stepper.run_until(action="report")
        stepper.look_at(number)
        with pytest.raises(StepperError, match=f"restore\\({number}\\) takes them back to it"):
            stepper.edit(0, name, before[0])
        stepper.restore(number)
        for rank in range(4):
            stepper.edit(rank, name, 2 * before[rank])
        with pytest.raises(StepperError, match=r"\[3\] do not fit into 'boundaries"):
            stepper.edit(0, name, np.zeros(3))
        assert stepper.run_until(action="report").result["loss"] != right.result["loss"]
        for _ in range(4):
            again = stepper.take_back()
        assert again.result == right.result
        assert stepper.edits == ()
        stepper.restore(number)
        for rank in range(4):
            assert np.array_equal(stepper.inspect(rank, name), before[rank])
        assert stepper.run_until(action="report").result == right.result


def test_between_two_steps_the_ranks_are_idle_and_in_reach(cluster):
    with Stepper(cluster, LAYOUTS["apart_fan_in"]) as stepper:
        stepper.run_until(rank=4, action="forward", microbatch=0)
        norms = cluster.run(_live_norm, ranks=[4, 5], world_size=8)
        for rank, norm in zip((4, 5), norms, strict=True):
            held = stepper.inspect(rank, "microbatch.0.output.tensor")
            assert norm == pytest.approx(float(np.linalg.norm(held)), rel=1e-5)
        assert stepper.next(3).differences == ()


def _live_norm():
    from mimokit.engine.stepper import live

    return float(live()["microbatch.0.output.tensor"].norm())


def test_tensors_that_are_no_longer_kept_are_named_so(cluster):
    with Stepper(cluster, LAYOUTS["fan_in"], keep=2) as stepper:
        stepper.next(5)
        stepper.look_at(1)
        with pytest.raises(StepperError, match="open the stepper with a larger keep"):
            stepper.inspect(0, "loaded.input_ids")


# What differs is found as it happens.


@replacing
def _rows_reversed(original, self, message, *crossing):
    original(self, replace(message, tensor=message.tensor.flip(0)), *crossing)


def test_rows_of_the_wrong_samples_are_found(cluster):
    with (
        planted(cluster, seams.SEND, _rows_reversed, 8),
        Stepper(cluster, LAYOUTS["apart_fan_in"]) as stepper,
    ):
        snapshot = stepper.run_until(action="receive-forward", microbatch=0)
        told = str(snapshot.differences[0])
        assert "what rank 0 has for" in told
        assert "sent other rows" in told
        assert {d.crossing.source_rank for d in snapshot.differences} == {0, 1, 2, 3}
        assert "sent the output of 'images', micro-batch 0: the rows are in reverse order" in str(
            snapshot.findings[0]
        )


@replacing
def _gathered_backwards(original, whole, sizes, group):
    original(whole, sizes, group)
    whole.copy_(whole.flip(0))


def test_pieces_gathered_in_the_wrong_order_are_found(cluster):
    with (
        planted(cluster, seams.GATHER_ROWS, _gathered_backwards, 4),
        Stepper(cluster, LAYOUTS["fan_in"]) as stepper,
    ):
        snapshot = stepper.run_until(action="gather")
        assert {d.crossing.destination_rank for d in snapshot.differences} == set(range(4))
        assert "what rank 0 gave for samples 0, 1" in str(snapshot.differences[0])


# What goes wrong is one sentence, and the next cell works.


def _raising_in_backward(original):
    import torch.distributed as dist

    def backward(self, microbatch):
        if dist.get_rank() == 2:
            raise ArithmeticError("planted")
        original(self, microbatch)

    return backward


def test_a_rank_that_raises_is_named_with_its_step(cluster):
    with planted(cluster, seams.RUN_BACKWARD, _raising_in_backward, 8):
        stepper = Stepper(cluster, LAYOUTS["apart_fan_in"])
        with pytest.raises(RankError) as caught:
            stepper.next(len(stepper.clock))
    first = str(caught.value).splitlines()[0]
    assert "rank 2 raised StepFailedError: ArithmeticError in the step backward of images" in first
    assert "for micro-batch 0: planted" in first
    with pytest.raises(StepperError, match="This stepper has ended: rank 2 raised"):
        stepper.next()
    with Stepper(cluster, LAYOUTS["apart_fan_in"]) as again:
        assert again.next(5).differences == ()


def test_an_engine_that_dies_between_two_steps_ends_the_stepper(cluster):
    import os
    import signal

    stepper = Stepper(cluster, LAYOUTS["fan_in"])
    stepper.next(2)
    os.kill(cluster.pids[3], signal.SIGKILL)
    # Which of the two it is depends on whether the cluster has heard of the death yet.
    with pytest.raises((StepperError, RankDied), match=r"no longer have its model|rank 3"):
        stepper.next(3)
    with pytest.raises(StepperError, match="open a new one"):
        stepper.next()
    assert stepper.look_at(1).number == 1
    with Stepper(cluster, LAYOUTS["fan_in"]) as again:
        assert again.next(4).differences == ()


def test_a_world_formed_anew_ends_the_stepper(cluster):
    stepper = Stepper(cluster, LAYOUTS["fan_in"])
    stepper.next()
    cluster.form_world(4)
    with pytest.raises(StepperError, match="world has been formed anew; open a new one"):
        stepper.next()


def test_a_rank_that_stood_still_between_two_steps_is_named(cluster, monkeypatch):
    acted_on_after(monkeypatch, "stopped", 1.0)
    stepper = Stepper(cluster, LAYOUTS["homogeneous"])
    pid = cluster.ranks[1].pid
    os.kill(pid, signal.SIGSTOP)
    while not is_stopped(pid):
        time.sleep(0.01)
    with (
        pytest.warns(RuntimeWarning, match=f"engine 1 .process {pid}. was stopped"),
        pytest.raises(StepperError, match=f"rank 1 .process {pid}. had died, or stood still"),
    ):
        stepper.next()


def test_another_stepper_takes_the_place_of_the_one_before(cluster):
    first = Stepper(cluster, LAYOUTS["fan_in"])
    first.next()
    with Stepper(cluster, LAYOUTS["fan_in"]) as second:
        with pytest.raises(StepperError, match="another stepper was opened"):
            first.next()
        assert second.next(3).number == 2


def test_steps_that_are_not_in_the_plan_are_refused(cluster):
    with Stepper(cluster, LAYOUTS["fan_in"]) as stepper:
        with pytest.raises(StepperError, match="No step has been done yet"):
            stepper.tensors(0)
        with pytest.raises(StepperError, match="rank=1, action='send': rank 1 does load, slice"):
            stepper.run_until(rank=1, action="send")
        with pytest.raises(StepperError, match="for micro-batches 0 to 0"):
            stepper.run_until(microbatch=7)
        with pytest.raises(ValueError, match="not 0"):
            stepper.next(0)
        stepper.next(2)
        with pytest.raises(StepperError, match="going 2 back is not possible"):
            stepper.back(2)
        with pytest.raises(StepperError, match="There is no rank 4; the ranks are 0 to 3"):
            stepper.tensors(4)
    with pytest.raises(StepperError, match="it was closed"):
        stepper.next()


def test_a_refused_config_leaves_the_cluster_alone(cluster):
    wrong = LAYOUTS["fan_in"].model_copy(deep=True)
    wrong.model.get_parallelism("images").data_parallel = 3
    with pytest.raises(ConfigError, match="images"):
        Stepper(cluster, wrong)
    with Stepper(cluster, LAYOUTS["fan_in"]) as stepper:
        assert stepper.next().number == 0
