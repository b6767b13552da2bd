"""Modules that share their ranks but not their DP size: the samples of each, and their bridges.

The plan says which ranks gather together and which samples a rank keeps. Embeddings are sent as
rows `[tokens, hidden]`, in sample order. Samples may have different numbers of rows. Every rank of
a gather group has the whole batch of the module with fewer replicas, so it knows the row counts of
the other ranks without communication.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from mimokit.config.graph import upstream
from mimokit.engine.collectives import gather_uneven
from mimokit.engine.colocated.checks import ReplicaCheck
from mimokit.engine.data.batch import ITEMS, Batch, rows_per_sample, slice_modality, slice_text
from mimokit.engine.device import group_timeout, rank_device
from mimokit.engine.models.encoder import Encoder
from mimokit.engine.parallel.data_parallel import ModuleDataParallel
from mimokit.engine.ragged import Ragged, items_of
from mimokit.planning.types import ColocatedBridge, LayoutPlan
from mimokit.units import counted


@dataclass(frozen=True)
class RowCuts:
    """The range of rows of each rank of a gather group, in gather order.

    Attributes:
        position: index of this rank in the gather group.
    """

    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    position: int

    @property
    def total(self) -> int:
        """Rows of the whole gather group."""
        return sum(self.sizes)


def gather_rows(piece: torch.Tensor, cuts: RowCuts, group: dist.ProcessGroup) -> torch.Tensor:
    """Concatenate the pieces of a gather group: [own rows, h] -> [all rows, h]."""
    return gather_uneven(piece, cuts.sizes, group)


def keep_rows(whole: torch.Tensor, cuts: RowCuts) -> torch.Tensor:
    """Cut this rank's rows out of the rows of its gather group."""
    return whole.narrow(0, cuts.starts[cuts.position], cuts.sizes[cuts.position]).contiguous()


class _Gather(torch.autograd.Function):
    """Fan-in: gather the outputs; every rank keeps its rows of the gradient."""

    @staticmethod
    def forward(
        ctx: Any, piece: torch.Tensor, cuts: RowCuts, group: dist.ProcessGroup
    ) -> torch.Tensor:
        ctx.cuts = cuts
        return gather_rows(piece, cuts, group)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return keep_rows(gradient, ctx.cuts), None, None


class _Keep(torch.autograd.Function):
    """Fan-out: keep own rows of the output; gather the gradient.

    The gradient is gathered, not zero-padded and summed later: DDP sums over data parallel ranks,
    never over the tensor-parallel ranks that have the pieces here.
    """

    @staticmethod
    def forward(
        ctx: Any, whole: torch.Tensor, cuts: RowCuts, group: dist.ProcessGroup
    ) -> torch.Tensor:
        ctx.cuts, ctx.group = cuts, group
        return keep_rows(whole, cuts)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return gather_rows(gradient.contiguous(), ctx.cuts, ctx.group), None, None


Listener = Callable[[torch.Tensor, Sequence[int], torch.Tensor], None]
"""Called with (embeddings, rows per sample, result) of every call of a bridge."""


class ColocatedBridgeCommunicator(ReplicaCheck):
    """Executes the bridge plan between two modules that share their ranks.

    Attributes:
        listeners: called after every call of the bridge.

    Args:
        source_tensor_group: see `ReplicaCheck`.
        kinds: number of kinds of rows that cross: those of the module, and sizes of its items.
    """

    def __init__(
        self, plan: ColocatedBridge, source_tensor_group: dist.ProcessGroup, kinds: int = 1
    ) -> None:
        """Create the gather groups. Collective over the world."""
        super().__init__(plan.source, source_tensor_group)
        self.plan, self._kinds = plan, kinds
        self.listeners: list[Listener] = []
        rank = dist.get_rank()
        self._members = next(group for group in plan.gather_groups if rank in group)
        self._group: dist.ProcessGroup | None = None
        if plan.direction != "equal":
            self._group, _ = dist.new_subgroups_by_enumeration(  # type: ignore[no-untyped-call]
                [list(group) for group in plan.gather_groups], timeout=group_timeout()
            )

    def cuts(self, rows_per_sample: Sequence[int]) -> RowCuts:
        """Return the ranges of rows of all ranks of the gather group, by those of its samples."""
        slices = [self.plan.slices[member] for member in self._members]
        bounds = [0]
        for rows in rows_per_sample:
            bounds.append(bounds[-1] + int(rows))
        return RowCuts(
            starts=tuple(bounds[start] for start, _ in slices),
            sizes=tuple(bounds[stop] - bounds[start] for start, stop in slices),
            position=self._members.index(dist.get_rank()),
        )

    def __call__(self, embeddings: torch.Tensor, rows_per_sample: Sequence[int]) -> torch.Tensor:
        """Move embeddings from the source's replicas to the destination's.

        Args:
            embeddings: [rows, hidden], the source's output on this rank.
            rows_per_sample: rows of every sample in the batch of the module with fewer replicas.

        Returns:
            [rows, hidden], the destination's input.

        Raises:
            ReplicaMismatchError: if the source's tensor-parallel ranks disagree, in a call that
                checks.
            ValueError: if the number of rows of the embeddings differs from that of the samples.
        """
        self.check_if_due(embeddings)
        cuts = self.cuts(rows_per_sample)
        expected = cuts.total if self.plan.direction == "fan_out" else cuts.sizes[cuts.position]
        if embeddings.shape[0] != expected:
            raise ValueError(
                f"Module {self.plan.source!r} gave {counted(embeddings.shape[0], 'row')} on rank "
                f"{dist.get_rank()} but its samples have {expected}."
            )
        result = self._cross(embeddings, cuts)
        for listener in self.listeners:
            listener(embeddings, rows_per_sample, result)
        return result

    def carry(self, sent: Ragged, rows_per_sample: Sequence[int]) -> Ragged:
        """Move rows of each kind, as a route does. Collective.

        Args:
            sent: of the source's samples on this rank.
            rows_per_sample: see `__call__`.

        Returns:
            The same of the destination's samples on this rank.
        """
        tensor, samples = self(sent.tensor, rows_per_sample), self.rows_kept(rows_per_sample)
        if self._kinds == 1:
            return Ragged(tensor, samples)
        assert sent.sizes is not None
        return Ragged(tensor, samples, *self._move_items(items_of(sent), sent.sizes))

    def rows_of_group(self, own: Sequence[int]) -> list[int]:
        """Return the rows of every sample of the gather group; collective where it has several.

        Args:
            own: of the source's samples on this rank.
        """
        if self.plan.direction != "fan_in":
            return list(own)
        assert self._group is not None
        counts = torch.tensor(own, device=rank_device())
        return gather_uneven(counts, [len(own)] * self._group.size(), self._group).tolist()

    def rows_kept(self, rows: Sequence[int]) -> list[int]:
        """Return the rows of the destination's samples on this rank, of those of the group."""
        if self.plan.direction != "fan_out":
            return list(rows)
        return list(rows[slice(*self.plan.slices[dist.get_rank()])])

    def _move_items(
        self, numbers: Sequence[int], grids: torch.Tensor
    ) -> tuple[list[int], torch.Tensor]:
        whole = self.rows_of_group(numbers)
        if self.plan.direction == "fan_in":
            assert self._group is not None
            each = len(numbers)
            sizes = [sum(whole[start : start + each]) for start in range(0, len(whole), each)]
            return whole, gather_uneven(grids.contiguous(), sizes, self._group)
        if self.plan.direction == "equal":
            return whole, grids
        start = sum(whole[: self.plan.slices[dist.get_rank()][0]])
        kept = self.rows_kept(whole)
        return kept, grids[start : start + sum(kept)]

    def _cross(self, embeddings: torch.Tensor, cuts: RowCuts) -> torch.Tensor:
        if self.plan.direction == "fan_in":
            return _Gather.apply(embeddings, cuts, self._group)  # type: ignore[no-any-return,no-untyped-call]
        if self.plan.direction == "fan_out":
            return _Keep.apply(embeddings, cuts, self._group)  # type: ignore[no-any-return,no-untyped-call]
        return embeddings


class LoadedBatch:
    """A batch that this rank has read, in which the modules have different samples."""

    def __init__(
        self, plan: LayoutPlan, modules: Mapping[str, ModuleDataParallel], batch: Batch
    ) -> None:
        self._plan = plan
        self._rank = dist.get_rank()
        self._read = plan.batch.read_by(self._rank)
        self.batch = batch
        self._rows: dict[str, list[int]] = {}
        self._inputs: dict[str, Batch] = dict(batch.get("modality_inputs") or {})
        for name, module in modules.items():
            reads = self._rank in plan.batch.modules[name].loads
            if reads and name not in self._inputs and shares_items(module):
                none = torch.zeros(len(batch["input_ids"]), dtype=torch.int64)
                encoders = module.module.encoders.items()
                tensors = {k: e.no_items() for k, e in encoders if isinstance(e, Encoder)}
                self._inputs[name] = {ITEMS: none, **tensors}

    def of_module(self, name: str) -> Batch | None:
        """Return the samples of a module on this rank; None if none of them were read for it.

        The language model's come with the inputs of all encoders on this rank.
        """
        if self._rank not in self._plan.batch.modules[name].loads:
            return None
        encoders = self._inputs if name == self._plan.llm_module_name else {name} & {*self._inputs}
        inputs = {
            encoder: slice_modality(self._inputs[encoder], *self._within(encoder))
            for encoder in encoders
            if self._rank in self._plan.batch.modules[encoder].loads
        }
        return {**slice_text(self.batch, *self._within(name)), "modality_inputs": inputs}

    def rows_of_group(self, name: str, tokens_per_item: Mapping[str, int]) -> list[int]:
        """Return the rows of every sample of the gather group of an encoder.

        An adapter has those of the encoders before it.

        Args:
            tokens_per_item: of encoders that read items, unless the batch contains it.
        """
        if name not in self._rows:
            samples = len(self.batch["input_ids"])
            rows = torch.zeros(samples, dtype=torch.int64)
            for encoder in {name} | upstream(self._plan.topology, name):
                if encoder in self._inputs:
                    each = tokens_per_item[encoder]
                    rows += rows_per_sample(self._inputs[encoder], samples, each)
            self._rows[name] = rows[slice(*self._within(*self._ends(name)))].tolist()
        return self._rows[name]

    def rows_of(self, module: str, name: str, rows: list[int]) -> list[int]:
        """Return the rows of the samples of a module, of those of the group of an encoder."""
        begin, _ = self._within(*self._ends(name))
        start, stop = self._within(module)
        return rows[start - begin : stop - begin]

    def _ends(self, name: str) -> tuple[str, ...]:
        return name, *self._plan.topology[name]

    def _within(self, *modules: str) -> tuple[int, int]:
        batches = [self._plan.batch.modules[module] for module in modules]
        assert self._read is not None, "this rank has read the batch"
        first = self._read[0]
        starts, stops = zip(*(batch.samples[self._rank] for batch in batches), strict=True)
        return min(starts) - first, max(stops) - first


def shares_items(module: ModuleDataParallel) -> bool:
    """Return whether an encoder shares its items with other replicas, and so always runs."""
    encoders: Iterable[Encoder] = getattr(module.module, "encoders", {}).values()
    return any(getattr(encoder, "shares_items", False) for encoder in encoders)
