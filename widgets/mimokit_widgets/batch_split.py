"""`BatchSplit`: who computes which samples, and how they change hands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import traitlets

from mimokit_widgets.modules import joined_modules
from mimokit_widgets.plan_view import PlanView
from mimokit_widgets.view_models.batch_lanes import batch_lanes
from mimokit_widgets.view_models.sample_walk import sample_walk


class BatchSplit(PlanView):
    """The micro-batch as a row of samples, below it every module's replicas with their slices.

    Attributes:
        sample: the sample that is followed from module to module, or None.
        backward: follow its gradient back instead.
    """

    _esm = joined_modules("batch_split.js")

    sample = traitlets.Int(None, allow_none=True)
    backward = traitlets.Bool(False)

    def _draw(self, _: object = None) -> None:
        samples = self.plan.batch.samples_per_microbatch
        if self.sample is not None and not 0 <= self.sample < samples:
            self.sample = None
        with self.hold_sync():
            self._picture = batch_lanes(self.plan)
            self._follow()

    @traitlets.observe("sample", "backward")  # type: ignore[untyped-decorator]
    def _follow(self, _: object = None) -> None:
        sample = self.sample
        if sample is None or not 0 <= sample < self.plan.batch.samples_per_microbatch:
            self._looked_at = {}
        else:
            self._looked_at = sample_walk(
                self.plan, sample, backward=self.backward, config=self.config
            )

    def _on_message(self, _: Any, content: Mapping[str, Any], __: Any) -> None:
        if content.get("type") == "sample":
            sample = content["sample"]
            self.backward = bool(content["backward"])
            last = self.plan.batch.samples_per_microbatch - 1
            self.sample = None if sample is None else min(max(0, int(sample)), last)
