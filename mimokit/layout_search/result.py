"""What a search found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mimokit.layout_search.explain import explain
from mimokit.layout_search.report import result_to_html, result_to_rich
from mimokit.layout_search.task import SearchTask
from mimokit.layout_search.why_not import WhyNot, why_not
from mimokit.prediction import Layout, Prediction
from mimokit.units import GIB

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Group


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Attributes:
        finalists: layouts whose pipelines were simulated, the best first.
        pareto: layouts that none beats in step time, memory and GPUs at once, fewest GPUs first;
            of a long front an even choice.
        dropped: reason -> how many; `module: reason` counts sizes of one module, a reason without
            a module counts layouts.
        evaluated: layouts whose time and memory were computed.
        fitting: of them, those that fit and are quick enough.
        cut: one sentence per part of the space that was too large to try.
    """

    task: SearchTask
    finalists: tuple[Prediction, ...]
    per_mode: Mapping[str, Prediction]
    pareto: tuple[Prediction, ...]
    dropped: Mapping[str, int]
    evaluated: int
    fitting: int
    cut: tuple[str, ...]
    complete: bool
    seconds: float

    @property
    def best(self) -> Prediction:
        """The best layout with what it comes to."""
        return self.finalists[0]

    def top(self, count: int = 10) -> tuple[Prediction, ...]:
        """Return the best layouts, at most as many as were simulated."""
        return self.finalists[:count]

    def explain(self) -> str:
        """Return in a few sentences why the best layout is the best."""
        return explain(self.task, self.best, self.per_mode, self.evaluated)

    def why_not(self, layout: Layout) -> WhyNot:
        """Return why a layout was not chosen: what it breaks, or what it loses and where.

        Raises:
            ConfigError: its modules are not those of the model.
        """
        return why_not(self.task, self.best, layout)

    def to_frame(self) -> pd.DataFrame:
        """Return the finalists and the front as a table, one row per layout, the best first.

        Columns: mode, gpus, layout, seconds, low, high, tokens_per_second, tflops_per_gpu,
        utilisation, memory_gib, dollars_per_million_tokens, on_front, and `module.dimension` for
        every size.
        """
        import pandas as pd

        front = set(map(id, self.pareto))
        shown = {id(prediction): prediction for prediction in (*self.finalists, *self.pareto)}
        return pd.DataFrame(
            [
                {**_row(prediction), "on_front": id(prediction) in front}
                for prediction in shown.values()
            ]
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values, without what was asked."""
        return {
            "model": self.task.model.name,
            "gpus": self.task.gpus,
            "hardware": self.task.hardware.name,
            "objective": self.task.objective,
            "finalists": [prediction.to_json() for prediction in self.finalists],
            "pareto": [prediction.to_json() for prediction in self.pareto],
            "dropped": dict(self.dropped),
            "evaluated": self.evaluated,
            "fitting": self.fitting,
            "cut": list(self.cut),
            "complete": self.complete,
            "seconds": self.seconds,
        }

    def __rich__(self) -> Group:
        return result_to_rich(self)

    def _repr_html_(self) -> str:
        return result_to_html(self)


def _row(prediction: Prediction) -> dict[str, Any]:
    layout = prediction.layout.to_json()
    sizes = {
        f"{module}.{name}": value
        for module, dimensions in layout["modules"].items()
        for name, value in dimensions.items()
    }
    return {
        "mode": prediction.layout.mode,
        "gpus": prediction.layout.gpus,
        "layout": str(prediction.layout),
        "seconds": prediction.seconds,
        "low": prediction.low,
        "high": prediction.high,
        "tokens_per_second": prediction.tokens_per_second,
        "tflops_per_gpu": prediction.tflops_per_gpu,
        "utilisation": prediction.utilisation,
        "memory_gib": prediction.peak_memory / GIB,
        "dollars_per_million_tokens": prediction.dollars_per_million_tokens,
        **sizes,
    }
