"""Layouts that are pinned: each follows the model and the batch that are edited later."""

from __future__ import annotations

from dataclasses import dataclass

from mimokit_widgets.planner.draft import Draft
from mimokit_widgets.planner.edits import with_value
from mimokit_widgets.planner.hold import BATCH, COUNT, samples_of
from mimokit_widgets.planner.paths import NETWORKS, PREDICTION, Path, differences, value_at

SHARED: tuple[Path, ...] = (("data",), NETWORKS, PREDICTION)
"""What is edited for all layouts alike."""


@dataclass(frozen=True)
class Pin:
    """A layout that others are compared with.

    Attributes:
        layout: as it was pinned.
        fields: what stood in the fields then.
    """

    layout: Draft
    fields: Draft

    def followed_by(self, draft: Draft) -> Draft:
        """Return the layout with the edits of model and batch that led to what stands there now."""
        layout = self.layout
        for section in SHARED:
            before, now = (value_at(each.content, section) for each in (self.fields, draft))
            for path, _, value in differences(before, now, section):
                layout = with_value(layout, path, value)
        return self._with_samples(layout, draft)

    def _with_samples(self, layout: Draft, draft: Draft) -> Draft:
        was, then, now = (samples_of(each) for each in (self.layout, self.fields, draft))
        if was is None or then is None or now is None or was * now % then:
            return layout
        wanted = was * now // then
        if samples_of(layout) == wanted and wanted != was:
            return layout
        batch, count = (value_at(self.layout.content, path) for path in (BATCH, COUNT))
        if count * wanted % was:
            return layout
        return with_value(with_value(layout, BATCH, batch), COUNT, count * wanted // was)
