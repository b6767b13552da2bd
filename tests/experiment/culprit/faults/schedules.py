"""Faults of orders, chunks, overlapped reductions, shards, experts that spread, and rows."""

from dataclasses import replace
from typing import Any

from mimokit.config import ExperimentConfig
from mimokit.config.runtime import ZERO_BUBBLE
from mimokit.planning.seams import SeamPhase
from tests import seams
from tests.experiment.culprit.faults.fault import FORWARD, IMAGES, LANGUAGE, REDUCED, Fault
from tests.experiment.culprit.faults.layouts import replicas, stages
from tests.layouts import digits_config
from tests.layouts_apart import apart_config
from tests.layouts_experts import experts_config
from tests.planted import replacing
from tests.whole_runs import IN_FULL, OVERLAPPED, SHARDED_STATES, TWO_INSTANCES, in_rows, with_sizes

BOTH = IMAGES, LANGUAGE


def _weights_later() -> ExperimentConfig:
    config = stages()
    config.runtime.pipeline_order = ZERO_BUBBLE
    return config.finalize()


def _in_chunks() -> ExperimentConfig:
    config = apart_config((1, 1, 1), (1, 2, 1), 4)
    config.model.module_architectures[LANGUAGE].num_layers = 4
    language = config.model.module_parallelisms[LANGUAGE]
    language.virtual_pipeline_model_parallel_size = 2
    return config.finalize()


@replacing
def _twice(original: Any, self: Any) -> None:
    original(self)
    original(self)


def _nothing(original: Any) -> Any:
    return lambda self, *args, **named: None


@replacing
def _doubled_between_chunks(
    original: Any, self: Any, message: Any, edge: Any, microbatch: int, direction: int
) -> None:
    """Send twice the numbers from the last stage to the second chunk of the first."""
    stage = self.pipeline.graph.stages[edge.destination]
    if not direction and stage.module == LANGUAGE and stage.place == 2:
        message = replace(message, tensor=2 * message.tensor)
    original(self, message, edge, microbatch, direction)


@replacing
def _not_started(original: Any, self: Any, force_all_reduce: bool | None = False) -> None:
    """Let an overlapped reduction be done before it has begun."""
    from types import SimpleNamespace

    self.grad_reduce_handle = SimpleNamespace(wait=lambda: None)


@replacing
def _within_instances(original: Any, self: Any, force_all_reduce: bool | None = False) -> None:
    """Leave out the sum between instances of a distributed optimizer."""
    config = self.ddp_config
    count = config.num_distributed_optimizer_instances
    config.num_distributed_optimizer_instances = 1
    original(self, force_all_reduce)
    config.num_distributed_optimizer_instances = count


def _tokens_of_others(original: Any) -> Any:
    """Bring back from the experts the output of the token before."""
    return lambda self, *args, **named: original(self, *args, **named).roll(1, 0)


@replacing
def _one_sample_of_two(original: Any, self: Any, device: Any) -> Any:
    """Let the tokens of the second sample of a row see those of the first."""
    import torch

    packed = original(self, device)
    bounds = packed.cu_seqlens_q
    packed.cu_seqlens_q = packed.cu_seqlens_kv = torch.cat([bounds[:1], bounds[2:]])
    packed.max_seqlen_q = packed.max_seqlen_kv = int(bounds.diff().max()) * 2
    return packed


FAULTS = (
    Fault("gradients of weights added twice", _weights_later, seams.ADD_WEIGHT_PRODUCT, _twice,
          LANGUAGE, "weight", SeamPhase.ACCUMULATED, "2 times", (2,), r"gpt_model\.py:\d+$"),
    Fault("gradients of weights left out", _weights_later, seams.ADD_WEIGHT_PRODUCT, _nothing,
          LANGUAGE, "weight", SeamPhase.ACCUMULATED, "it is 0"),
    Fault("hidden states doubled between chunks", _in_chunks, seams.SEND, _doubled_between_chunks,
          LANGUAGE, "decoder.layers.2.input", FORWARD, "2 times", (1,)),
    Fault("an overlapped reduction is left out", lambda: with_sizes(replicas(), BOTH, **OVERLAPPED),
          seams.START_GRAD_SYNC, _not_started, LANGUAGE, "", REDUCED, "not added up", (0, 1)),
    Fault("gradients are summed within instances alone",
        lambda: with_sizes(digits_config((1, 4), (1, 4)), BOTH, **SHARDED_STATES, **TWO_INSTANCES),
        seams.START_GRAD_SYNC, _within_instances,
        LANGUAGE, "", REDUCED, "not added up", (0, 1, 2, 3)),
    Fault("tokens return from experts one place off",
          lambda: experts_config((1, 1, 4), (1, 1, 4), dispatcher="alltoall"),
          seams.TOKEN_COMBINE, _tokens_of_others, LANGUAGE, "mlp.combine", FORWARD),
    Fault("a sample of a row sees the one before", lambda: in_rows(replicas()),
          seams.ROW_PARAMS, _one_sample_of_two,
          LANGUAGE, "layers.0.self_attention.core_attention", FORWARD),
    Fault("full shards that are not scaled", lambda: with_sizes(replicas(), BOTH, **IN_FULL),
          seams.SCALE_SHARDS, _nothing,
          LANGUAGE, "", REDUCED),
)  # fmt: skip
