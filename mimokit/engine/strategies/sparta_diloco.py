"""SPARTA in each step or every few, and DiLoCo every H steps."""

from __future__ import annotations

from typing import Any

from mimokit.config.strategy import StrategyConfig
from mimokit.engine.strategies.communicate_optimize_strategy import CommunicateOptimizeStrategy
from mimokit.engine.strategies.diloco import OUTER, DiLoCoCommunicator
from mimokit.engine.strategies.optim import OptimSpec, ensure_optim_spec
from mimokit.engine.strategies.sparta import (
    Selected,
    SparseCommunicator,
    selector_of,
    sparse_arguments,
)


class SPARTADiLoCoStrategy(CommunicateOptimizeStrategy):
    """In one step first SPARTA, then DiLoCo."""

    def __init__(
        self,
        optim_spec: str | OptimSpec | None = None,
        outer_optim_spec: str | OptimSpec | None = None,
        p_sparta: float = 0.005,
        sparta_interval: int = 1,
        H: int = 100,
        sync_offset: int = 0,
        index_selector: Selected = None,
        **kwargs: Any,
    ) -> None:
        """Take both optimizers, SPARTA's share and interval, and steps between outer steps."""
        StrategyConfig(name="sparta", p_sparta=p_sparta)
        selector = selector_of(index_selector, p_sparta)
        outer = ensure_optim_spec(outer_optim_spec, OUTER)
        modules = [SparseCommunicator(selector, rule=0), DiLoCoCommunicator(outer, rule=1)]
        super().__init__(modules, optim_spec=optim_spec, **kwargs)
        self.config = StrategyConfig(
            name="sparta_diloco", H=H, sync_offset=sync_offset,
            **sparse_arguments(selector, sparta_interval),
        )  # fmt: skip
