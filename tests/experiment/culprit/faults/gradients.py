"""Faults of the reduction of gradients."""

from functools import partial
from typing import Any

from tests import seams
from tests.experiment.culprit.faults.fault import IMAGES, LANGUAGE, REDUCED, Fault
from tests.experiment.culprit.faults.layouts import head_norms, replicas
from tests.layouts import digits_config
from tests.layouts_experts import experts_config
from tests.planted import replacing
from tests.whole_runs import learned_positions_in_slices, tied_on_stages


def _nothing(original: Any) -> Any:
    return lambda self, *args, **named: None


@replacing
def _not_reduced(original: Any, modules: Any) -> float:
    """Step on what this rank alone has summed."""
    import torch.distributed as dist

    from mimokit.engine.collectives import gather_json

    own = sum(m.num_tokens for m, _ in modules if m.ownership.counts_tokens())
    total = sum(gather_json(own))
    for module, _ in modules:
        module.scale_gradients(1.0 / total)
    dist.barrier()
    return float(total)


@replacing
def _of_scale(factor: float, original: Any, modules: Any) -> float:
    count: float = original(modules)
    for module, _ in modules:
        module.scale_gradients(factor)
    return count


@replacing
def _encoder_of_scale(factor: float, original: Any, modules: Any) -> float:
    count: float = original(modules)
    modules[0][0].scale_gradients(factor)
    return count


@replacing
def _unmarked(original: Any, self: Any, *args: Any, **options: Any) -> None:
    """Let weights of experts count as any others, of which all replicas have the same."""
    original(self, *args, **options)
    for parameter in self.parameters():
        parameter.allreduce = True


@replacing
def _clipped_first(original: Any, modules: Any) -> float:
    """Clip what a rank has before it is added up."""
    for module, _ in modules:
        squares = sum(float(p.main_grad.square().sum()) for p in module.parameters())
        module.scale_gradients(1 / max(1.0, squares**0.5))
    count: float = original(modules)
    return count


FAULTS = (
    Fault("gradients are not reduced", replicas, seams.FINALIZE_GRADS, _not_reduced,
          LANGUAGE, "", REDUCED, "not added up", (0, 1), r"parallel/update\.py:\d+$"),
    Fault("all gradients twice as large", replicas, seams.FINALIZE_GRADS, partial(_of_scale, 2.0),
          LANGUAGE, "", REDUCED, "which is data_parallel"),
    Fault("the gradients of the encoder half as large", replicas, seams.FINALIZE_GRADS,
          partial(_encoder_of_scale, 0.5), IMAGES, "", REDUCED, "1 / data_parallel"),
    Fault("tied embeddings are not summed", lambda: tied_on_stages(2),
          seams.SYNC_TIED_EMBEDDINGS, _nothing,
          LANGUAGE, "embedding.word_embeddings.weight", REDUCED, "not added up"),
    Fault("gradients of slices are not summed", learned_positions_in_slices,
          seams.SUM_OF_SLICES, _nothing, LANGUAGE, "", REDUCED, "not added up"),
    Fault("experts summed over the ranks of others",
          lambda: experts_config((1, 1, 2), (2, 1, 1), expert_parallel=1),
          seams.BUILD_EXPERTS, _unmarked,
          LANGUAGE, "", REDUCED),
    Fault("gradients of the norms of heads are not summed", head_norms,
          seams.SUM_OF_SLICES, _nothing, LANGUAGE, "k_layernorm.weight", REDUCED, "not added up"),
    Fault("clipped before reduction", replicas, seams.FINALIZE_GRADS, _clipped_first,
          LANGUAGE, "", REDUCED),
    Fault("divided by micro-batches as well", lambda: digits_config((1, 2), (1, 2), 3),
          seams.FINALIZE_GRADS, partial(_of_scale, 1 / 3),
          LANGUAGE, "", REDUCED, "1 / num_microbatches"),
)  # fmt: skip
