"""Adapters on ranks that encoder and language model compute, too."""

from __future__ import annotations

from mimokit.engine.pipeline.messages import StageMessage
from mimokit.experiment import Stepper, verify
from tests import seams
from tests.experiment.own_forward_step import forward_step
from tests.planted import planted
from tests.whole_runs import (
    adapted_on_shared_ranks,
    adapter_of_replicas_without_items,
)

FAN_IN = adapted_on_shared_ranks((1, 1, 2), (2, 1, 1), (1, 1, 2))
AROUND = adapted_on_shared_ranks((4, 1, 1), (1, 1, 4), (2, 2, 1))


def _replicas_swapped(original):
    """Plant: the adapter takes the rows of two replicas of the encoder in the other order."""

    def gather_rows(piece, cuts, group):
        whole = original(piece, cuts, group)
        return whole.roll(len(whole) // 2, 0)

    return gather_rows


def test_rows_of_two_replicas_that_are_swapped_are_found(cluster):
    with planted(cluster, seams.GATHER_ROWS, _replicas_swapped, 2):
        report = verify(cluster, FAN_IN, steps=1)
    assert report.loss_differences[0] > 1e-4


def _gradients_shifted(original):
    """Plant: the gradients of rows arrive at the encoder one row too late."""

    def send(self, message, edge, microbatch, direction):
        destination = self.pipeline.graph.stages[edge.destination].module
        if direction and destination == "adapter":
            message = StageMessage([rows.roll(1, 0) for rows in message.rows], message.counts)
        original(self, message, edge, microbatch, direction)

    return send


def test_gradients_that_are_shifted_around_a_pipeline_are_found(cluster):
    config = AROUND.model_copy(deep=True)
    config.runtime.clip_grad = 0.0
    with planted(cluster, seams.SEND, _gradients_shifted, 4):
        report = verify(cluster, config, steps=1)
    assert report.gradient_differences[0]["adapter"] <= 1e-5
    assert report.gradient_differences[0]["images"] > 1e-2


def test_the_stepper_sees_messages_between_sets_of_ranks_of_a_pipeline(cluster):
    with Stepper(cluster, AROUND) as stepper:
        while not stepper.snapshots or not stepper.now.result:
            stepper.next()
        pieces = [piece for snapshot in stepper.snapshots for piece in snapshot.pieces]
        ends = {
            (each.crossing.source_rank, each.crossing.destination_rank)
            for each in pieces
            if each.crossing.destination == "adapter" and each.crossing.backward
        }
        assert ends == {(rank, 3) for rank in range(4)}
        assert not stepper.differences


def test_a_forward_step_of_ones_own_calls_adapters_of_replicas_without_items(cluster):
    config = adapter_of_replicas_without_items()
    config.runtime.encoder_microbatches = None
    report = verify(cluster, config, steps=2, forward_step=forward_step)
    assert report.passed, report.verdict
