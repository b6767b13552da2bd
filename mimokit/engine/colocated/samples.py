"""The samples that a rank computes of a batch that it has read for all modules on its ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch.distributed as dist

from mimokit.engine.data.batch import ITEMS, Batch, rows_per_sample, slice_modality, slice_text
from mimokit.engine.models.encoder import Encoder
from mimokit.engine.parallel.data_parallel import ModuleDataParallel
from mimokit.planning.types import LayoutPlan


class LoadedBatch:
    """A batch that this rank has read, in which the modules have different samples.

    Args:
        plan: the layout.
        modules: the modules on this rank.
        batch: as read.

    Attributes:
        batch: as read.
    """

    def __init__(
        self, plan: LayoutPlan, modules: Mapping[str, ModuleDataParallel], batch: Batch
    ) -> None:
        self._plan = plan
        self._rank = dist.get_rank()
        self.batch = batch
        self._rows: dict[str, list[int]] = {}
        self._inputs: dict[str, Batch] = dict(batch.get("modality_inputs") or {})
        for name, module in modules.items():
            if name not in self._inputs and shares_items(module):
                ((kind, encoder),) = module.module.encoders.items()
                none = batch["input_ids"].new_zeros(len(batch["input_ids"]))
                self._inputs[name] = {ITEMS: none, kind: encoder.no_items()}

    def of_rank(self) -> Batch:
        """Return the samples that this rank computes, of every module its own."""
        inputs = {
            name: slice_modality(given, *self._within(name)) for name, given in self._inputs.items()
        }
        text = slice_text(self.batch, *self._within(self._plan.llm_module_name))
        return {**text, "modality_inputs": inputs}

    def rows_of_group(self, name: str, tokens_per_item: int) -> list[int]:
        """Return the rows of every sample of the gather group of an encoder; empty if it has none.

        Args:
            name: of the encoder.
            tokens_per_item: unless the batch contains it.
        """
        inputs = self._inputs.get(name)
        if inputs is None:
            return []
        if name not in self._rows:
            rows = rows_per_sample(inputs, len(inputs[ITEMS]), tokens_per_item)
            group = slice(*self._within(name, self._plan.llm_module_name))
            self._rows[name] = rows[group].tolist()
        return self._rows[name]

    def rows_of_language(self, name: str, rows: list[int]) -> list[int]:
        """Return the rows of the language model's samples, of those of an encoder's group."""
        language = self._plan.llm_module_name
        begin, _ = self._within(name, language)
        start, stop = self._within(language)
        return rows[start - begin : stop - begin]

    def _within(self, *modules: str) -> tuple[int, int]:
        """Return the range of modules' samples within the batch.

        Of several modules, the samples of one include those of the others.
        """
        batches = [self._plan.batch.modules[module] for module in modules]
        first = batches[0].loaded[self._rank][0]
        starts, stops = zip(*(batch.samples[self._rank] for batch in batches), strict=True)
        return min(starts) - first, max(stops) - first


def shares_items(module: ModuleDataParallel) -> bool:
    """Return whether an encoder shares its items with other replicas, and so always runs."""
    encoders: Iterable[Encoder] = getattr(module.module, "encoders", {}).values()
    return any(getattr(encoder, "shares_items", False) for encoder in encoders)
