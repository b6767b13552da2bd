"""Faults of losses, samples and dropout."""

from functools import partial
from typing import Any

from tests import seams
from tests.experiment.culprit.faults.fault import BACKWARD, FORWARD, IMAGES, LANGUAGE, Fault, scaled
from tests.experiment.culprit.faults.layouts import dropping, parts, replicas
from tests.planted import replacing


@replacing
def _samples_shifted(original: Any, batch: Any, start: int, stop: int) -> Any:
    """Cut the words out one sample too late."""
    rolled = {
        name: value.roll(-1, 0) if name in ("labels", "loss_mask") else value
        for name, value in batch.items()
    }
    return original(rolled, start, stop)


@replacing
def _gathered_logits(original: Any, logits: Any, labels: Any, group: Any) -> Any:
    """Give a loss of shards of the vocabulary the whole of it.

    Finding 2 of Megatron-LM 7452.
    """
    from mimokit.engine.megatron import tensor_parallel

    whole = tensor_parallel.gather_from_tensor_model_parallel_region(logits, group=group)
    return original(whole, labels, group)


@replacing
def _masks_of_first_samples(original: Any, self: Any, computed: Any) -> Any:
    """Drop in each replica what the first one drops."""
    from dataclasses import replace

    first = min(sample for sample, _ in computed.pairs)
    pairs = [(sample - first, item) for sample, item in computed.pairs]
    return original(self, replace(computed, pairs=pairs))


@replacing
def _masks_of_ranks(original: Any, self: Any, computed: Any) -> Any:
    """Drop something else on every rank."""
    import torch.distributed as dist

    return original(self, computed) + dist.get_rank()


@replacing
def _left_out(samples: slice, tokens: slice, original: Any, batch: Any, *span: int) -> Any:
    """Leave the last tokens of samples out of the loss, or the last sample of a micro-batch."""
    mask = batch["loss_mask"].clone()
    mask[samples, tokens] = 0
    return original({**batch, "loss_mask": mask}, *span)


ALL = slice(None)
FAULTS = (
    Fault("losses of a wrong scale", parts, seams.CROSS_ENTROPY,
          partial(scaled, 0.5), LANGUAGE, "loss", BACKWARD, "1 / tensor_parallel"),
    Fault("tokens left out of the loss", parts,
          seams.SLICE_TEXT, partial(_left_out, ALL, slice(-8, None)),
          LANGUAGE, "loss", BACKWARD),
    Fault("labels of the next sample", replicas, seams.SLICE_TEXT, _samples_shifted,
          LANGUAGE, "loss", BACKWARD),
    Fault("logits gathered before a loss of shards", parts, seams.CROSS_ENTROPY,
          _gathered_logits, LANGUAGE, "loss", BACKWARD),
    Fault("a sample left out", replicas,
          seams.SLICE_TEXT, partial(_left_out, slice(-1, None), ALL),
          LANGUAGE, "loss", BACKWARD, "rows differ, of sample"),
    Fault("replicas that drop the same", lambda: dropping(replicas()),
          seams.DROPOUT_ROWS, _masks_of_first_samples,
          IMAGES, "pre_mlp_layernorm", FORWARD, "rows differ, of sample"),
    Fault("ranks of a matrix that drop something else", lambda: dropping(parts()),
          seams.DROPOUT_ROWS, _masks_of_ranks,
          IMAGES, "pre_mlp_layernorm", FORWARD, "should hold the same"),
)  # fmt: skip
