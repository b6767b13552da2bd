"""Streaming DiLoCo: fragments of the model are exchanged one after another, while steps go on."""

from __future__ import annotations

from typing import Any

from mimokit.config.strategy import Codec, StrategyConfig
from mimokit.engine.strategies.communicate_optimize_strategy import CommunicateOptimizeStrategy
from mimokit.engine.strategies.diloco import OUTER, DiLoCoCommunicator
from mimokit.engine.strategies.optim import OptimSpec, ensure_optim_spec


class StreamingDiLoCoStrategy(CommunicateOptimizeStrategy):
    """Streaming DiLoCo (arXiv 2501.18512); `plan.rules` has a rule per fragment."""

    def __init__(
        self,
        optim_spec: str | OptimSpec | None = None,
        outer_optim_spec: str | OptimSpec | None = None,
        H: int = 100,
        fragments: int = 4,
        overlap_steps: int = 0,
        mix: float = 0.0,
        codec: Codec | None = None,
        **kwargs: Any,
    ) -> None:
        """Take both optimizers, steps between exchanges of a fragment, and the fragments.

        A result is written `overlap_steps` after its values were taken; the share `mix` of the
        weights of that moment stays.
        """
        module = DiLoCoCommunicator(ensure_optim_spec(outer_optim_spec, OUTER))
        super().__init__([module], optim_spec=optim_spec, **kwargs)
        self.config = StrategyConfig(
            name="streaming_diloco", H=H, fragments=fragments, overlap_steps=overlap_steps,
            mix=mix, codec=codec,
        )  # fmt: skip
