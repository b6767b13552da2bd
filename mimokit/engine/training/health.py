"""Digests of what a rank holds, so that ranks with the same tensor can be compared."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist

from mimokit.engine.models.parameter_names import named_parameters
from mimokit.engine.training.modes import RankModel
from mimokit.samples import HealthSample

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def health_sample(model: RankModel, iteration: int) -> HealthSample:
    """Return the digests of this rank's parameters after an iteration. No communication.

    Ranks have a name in common only if they hold the same tensor or the same shard of it: data
    parallel replicas, tensor parallel ranks with a norm, both ends of a pipeline with a tied
    embedding.
    """
    names, digests, finite = [], [], []
    for name, parameter in _held(model):
        names.append(name)
        digests.append(_bits(parameter))
        finite.append(torch.isfinite(parameter).all())
    found = torch.stack(digests).tolist() if names else []
    is_finite = torch.stack(finite).tolist() if names else []
    return HealthSample(
        rank=dist.get_rank(),
        iteration=iteration,
        digests=dict(zip(names, found, strict=True)),
        not_finite=[name for name, good in zip(names, is_finite, strict=True) if not good],
    )


def _held(model: RankModel) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters of this rank; the name of a shard says which one it is."""
    for module, wrapped in model.modules().items():
        group = model.pg_collections[module].tp
        for path, parameter in named_parameters(wrapped.module).items():
            cut = group.size() > 1 and getattr(parameter, "tensor_model_parallel", False)
            shard = f" (shard {group.rank()} of {group.size()})" if cut else ""
            yield f"{module}.{path}{shard}", parameter.detach()


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of the bits of a tensor, taken as integers, on its device.

    One entry with other bits changes it. No copy of the tensor is made.
    """
    flat = tensor.contiguous().view(-1)
    return flat.view(_INTEGERS[flat.element_size()]).sum(dtype=torch.int64)
