"""Prediction over samples: steps of drawn global batches, in which each rank has its own work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit.prediction.over_samples.policy import DRAWN as DRAWN
    from mimokit.prediction.over_samples.policy import POLICIES as POLICIES
    from mimokit.prediction.over_samples.policy import Policy as Policy
    from mimokit.prediction.over_samples.predict import predict_over_samples as predict_over_samples
    from mimokit.prediction.over_samples.predict import predict_samples as predict_samples
    from mimokit.prediction.over_samples.result import PolicyPrediction as PolicyPrediction
    from mimokit.prediction.over_samples.result import SamplesPrediction as SamplesPrediction
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
