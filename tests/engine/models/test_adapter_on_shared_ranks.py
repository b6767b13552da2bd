"""Adapters on ranks that encoder and language model compute, too."""

from dataclasses import replace

from mimokit.experiment import verify
from tests import seams
from tests.experiment.own_forward_step import forward_step
from tests.planted import planted, replacing
from tests.whole_runs import adapted_on_shared_ranks, adapter_of_replicas_without_items

AROUND = adapted_on_shared_ranks((4, 1, 1), (1, 1, 4), (2, 2, 1))


@replacing
def _gradients_shifted(original, self, message, edge, microbatch, direction):
    """Plant: the gradients of rows arrive at the encoder one row too late."""
    destination = self.pipeline.graph.stages[edge.destination].module
    if direction and destination == "adapter":
        message = replace(message, tensor=message.tensor.roll(1, 0))
    original(self, message, edge, microbatch, direction)


def test_gradients_that_are_shifted_around_a_pipeline_are_found(cluster):
    config = AROUND.model_copy(deep=True)
    config.runtime.clip_grad = 0.0
    with planted(cluster, seams.SEND, _gradients_shifted, 4):
        report = verify(cluster, config, steps=1)
    assert report.gradient_differences[0]["adapter"] <= 1e-5
    assert report.gradient_differences[0]["images"] > 1e-2


def test_a_forward_step_of_ones_own_calls_adapters_of_replicas_without_items(cluster):
    config = adapter_of_replicas_without_items()
    config.runtime.encoder_microbatches = None
    report = verify(cluster, config, steps=2, forward_step=forward_step)
    assert report.passed, report.verdict
