"""The samples of each module in a batch that a rank has read once for all of them."""

from collections.abc import Iterable, Mapping

import torch
import torch.distributed as dist

from mimokit.config.graph import upstream
from mimokit.engine.data.batch import ITEMS, Batch, rows_per_sample, slice_modality, slice_text
from mimokit.engine.models.encoder import Encoder
from mimokit.engine.parallel.data_parallel import ModuleDataParallel
from mimokit.planning.types import LayoutPlan


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
