"""Names the first tensor of a step on which a layout and one process disagree."""

from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit.experiment.culprit.explain import STEPS as STEPS
    from mimokit.experiment.culprit.measures import TOLERANCE as TOLERANCE
    from mimokit.experiment.culprit.measures import allowed_of as allowed_of
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
