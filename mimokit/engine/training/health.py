"""What a rank says about its health: digests of what it holds, and how many collectives it had."""

import contextlib
from collections.abc import Iterator

import torch
import torch.distributed as dist

from mimokit.engine.digests import digest
from mimokit.engine.models.rng import default_state, states_inside
from mimokit.engine.models.weights import named_parameters
from mimokit.engine.parallel.main_weights import is_held_in_part, on_rank, state_shard
from mimokit.engine.parallel.marks import shard_of
from mimokit.engine.pipeline.model import RankModel
from mimokit.samples import HealthSample


class CollectiveCount:
    """Collectives of this rank's tensor parallel groups in the last iteration.

    The comparisons of modules' outputs are left out, which most iterations do not have.
    Groups number their collectives, so that reading the number costs less than a microsecond.
    """

    def __init__(self, model: RankModel) -> None:
        groups: dict[dist.ProcessGroup, str] = {}
        for module in model.modules():
            group = model.pg_collections[module].tp
            if group.size() > 1:
                groups.setdefault(group, module)
        self._groups = {module: group for group, module in groups.items()}
        self._checks = {
            module: [
                check
                for check in model.replica_checks
                if model.pg_collections[check.source].tp_cp is group
            ]
            for module, group in self._groups.items()
        }
        self.last: dict[str, int] = dict.fromkeys(self._groups, 0)

    @contextlib.contextmanager
    def of_iteration(self) -> Iterator[None]:
        """Count those of this block."""
        before = self._numbers()
        yield
        self.last = {module: now - before[module] for module, now in self._numbers().items()}

    def _numbers(self) -> dict[str, int]:
        return {
            module: int(group._get_sequence_number_for_group())  # type: ignore[attr-defined]
            - sum(check.comparisons for check in self._checks[module])
            for module, group in self._groups.items()
        }


def health_sample(model: RankModel, iteration: int, collectives: CollectiveCount) -> HealthSample:
    """Return what this rank holds and had after an iteration. No communication.

    Ranks have a name in common only if they hold the same tensor or the same shard of it: data
    parallel replicas, tensor parallel ranks with a norm, both ends of a pipeline with a tied
    embedding.
    """
    names, digests, finite = [], [], []
    for name, parameter in _held(model):
        names.append(name)
        digests.append(digest(parameter))
        finite.append(torch.isfinite(parameter).all())
    values = torch.stack(digests).tolist() if names else []
    is_finite = torch.stack(finite).tolist() if names else []
    return HealthSample(
        rank=dist.get_rank(),
        iteration=iteration,
        digests=dict(zip(names, values, strict=True)),
        not_finite=[name for name, good in zip(names, is_finite, strict=True) if not good],
        random_state=int(digest(default_state())),
        states_inside={
            module: int(digest(state)) for module, state in states_inside(model.modules()).items()
        },
        collectives=collectives.last,
    )


def _held(model: RankModel) -> Iterator[tuple[str, torch.Tensor]]:
    for module, wrapped in model.modules().items():
        for path, parameter in named_parameters(wrapped.module).items():
            part, shard = "", state_shard(parameter)
            if shard is not None and is_held_in_part(parameter):
                part = f", entries {shard.start} to {shard.stop}"
            name = f"{module}.{path}{shard_of(parameter).words}{part}"
            yield name, on_rank(parameter.detach())
