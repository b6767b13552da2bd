"""What a search found, in words and as tables, for terminals and notebooks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mimokit.extra_rooms import import_extra
from mimokit.layout_search.explain import explain_choice
from mimokit.layout_search.task import SearchTask
from mimokit.layout_search.why_not import WhyNot, why_not
from mimokit.prediction import Layout, Prediction
from mimokit.prediction.band import is_tie
from mimokit.prediction.verdict import DOLLARS, MEASURES, chance_text, verdict_texts
from mimokit.tables import Report, Section
from mimokit.units import GIB, counted, parameters_text, seconds_text

if TYPE_CHECKING:
    import pandas as pd

    from mimokit.layout_search.over_samples import SearchOverSamples


SECONDS, *_OTHERS = MEASURES
BAND = "band"
_FIGURES = (SECONDS.label, BAND, *(measure.label for measure in _OTHERS), "of peak")
COLUMNS = ("mode", "GPUs", "layout", *_FIGURES)
ROWS = 10
REASONS = 8
ALIKE, ALIKE_MEMORY = 0.002, 0.02
"""Shares by which seconds and memory of layouts in one row differ: no run tells them apart."""
_WHY = ("reason", "how many")


@dataclass(frozen=True)
class SearchResult(Report):
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

    def rows(self, count: int = 10) -> tuple[tuple[Prediction, ...], ...]:
        """Return the finalists as at most `count` rows, the best first.

        Layouts that take as long and as much memory on as many GPUs are one row, the best of them
        first: between them is nothing to choose.
        """
        rows: list[list[Prediction]] = []
        for prediction in self.finalists:
            alike = next((row for row in rows if _alike(row[0], prediction)), None)
            if alike is None:
                rows.append([prediction])
            else:
                alike.append(prediction)
        return tuple(map(tuple, rows[:count]))

    @property
    def ties(self) -> tuple[Prediction, ...]:
        """Other finalists that may be as fast as the best."""
        return tuple(each for each in self.finalists[1:] if is_tie(each.seconds, self.best.seconds))

    def explain(self) -> str:
        """Return in a few sentences why the best layout is the best."""
        return explain_choice(self.task, self.best, self.per_mode, self.evaluated, len(self.ties))

    def why_not(self, layout: Layout) -> WhyNot:
        """Return why a layout was not chosen: what it breaks, or what it loses and where."""
        return why_not(self.task, self.best, layout)

    def over_samples(self) -> SearchOverSamples:
        """Return the finalists over the samples of the workload, each under its best policy.

        Raises:
            ConfigError: the workload has no mix, or it does not fit the model.
        """
        from mimokit.layout_search.over_samples import over_samples

        return over_samples(self.task, self.finalists)

    def telling(self, count: int = 3) -> tuple[Prediction, ...]:
        """Return the finalists whose runs would tell `calibrate_from` most, the first one first."""
        fit = import_extra("prediction.own_runs.fit", "What runs would tell")
        tasks = [self.task.prediction_task(each.layout) for each in self.finalists]
        return tuple(self.finalists[place] for place in fit.most_telling(tasks, count))

    def to_frame(self) -> pd.DataFrame:
        """Return the finalists and the front as a table, one row per layout, the best first.

        Columns: mode, gpus, layout, seconds, low, high, tokens_per_second, tflops_per_gpu,
        utilisation, memory_gib, dollars_per_million_tokens, on_front, ties (with the best), and
        `module.dimension` for every size.
        """
        import pandas as pd

        front, best = set(map(id, self.pareto)), self.best.seconds
        shown = {id(prediction): prediction for prediction in (*self.finalists, *self.pareto)}
        return pd.DataFrame(
            [
                {
                    **_row(prediction),
                    "on_front": id(prediction) in front,
                    "ties": is_tie(prediction.seconds, best),
                }
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
            "ties": len(self.ties),
        }

    def sections(self, rows: int = ROWS) -> tuple[Section, ...]:
        """Return the best layouts as tables, and why others were dropped."""
        shown = columns_of(self)
        figures = [COLUMNS.index(name) for name in shown if name != "layout"]
        shown_rows = self.rows(rows)
        best = [row_of(*row) for row in shown_rows]
        numbered = list(enumerate(best, start=1))
        headings = tuple(COLUMNS[index] for index in figures)
        return (
            Section(title(self), sentences=[*self.cut, *_room(self.best), *self.best.supposed]),
            # Beside the figures a layout would have the width of a word in a terminal.
            Section(
                "Best layouts",
                ("", *headings),
                [[str(number), *(row[index] for index in figures)] for number, row in numbered],
                unwrapped=headings,
            ),
            Section(
                "",
                ("", "layout"),
                [[str(number), row[COLUMNS.index("layout")]] for number, row in numbered],
            ),
            Section("Dropped", _WHY, _reasons(self)),
        )


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


def _alike(first: Prediction, other: Prediction) -> bool:
    return (
        first.layout.gpus == other.layout.gpus
        and abs(first.seconds / other.seconds - 1) <= ALIKE
        and abs(first.peak_memory / other.peak_memory - 1) <= ALIKE_MEMORY
    )


def more_alike(count: int) -> str:
    """Return how many layouts a row stands for besides its first; "" for none."""
    return f"{counted(count, 'layout')} more as fast" if count else ""


def row_of(prediction: Prediction, *alike: Prediction) -> tuple[str, ...]:
    """Return a prediction as the cells of a table with `COLUMNS`, and how many are alike."""
    more = more_alike(len(alike))
    verdict = verdict_texts(prediction.verdict)
    return (
        prediction.layout.mode,
        f"{prediction.layout.gpus:,}",
        str(prediction.layout).split(": ", 1)[1] + (f" ({more})" if more else ""),
        verdict[SECONDS.key],
        f"{seconds_text(prediction.low)} to {seconds_text(prediction.high)}",
        *(verdict.get(measure.key, "") for measure in _OTHERS),
        f"{prediction.utilisation:.0%}",
    )


def _room(best: Prediction) -> Iterator[str]:
    chance = chance_text(best.fit_chance)
    if chance:
        yield f"The best layout fits{chance}: predicted memory is not exact."


def columns_of(result: SearchResult) -> tuple[str, ...]:
    """Return the columns that say something: without a price there are no dollars."""
    priced = result.best.dollars_per_million_tokens is not None
    return tuple(name for name in COLUMNS if priced or name != DOLLARS.label)


def title(result: SearchResult) -> str:
    """Return one line that says what was searched, for what work, and what was found."""
    task, load = result.task, result.task.workload
    end = "" if result.complete else ", stopped before its end"
    return (
        f"{task.model.name}, {parameters_text(task.model.parameters)}, "
        f"{counted(load.global_batch_size, 'sample')} of {load.seq_length:,} tokens per step, on "
        f"{task.gpus:,} x {task.hardware.name}: "
        f"{counted(result.evaluated, 'layout')} evaluated in {result.seconds:.1f} s, "
        f"{result.fitting:,} fit{end}"
    )


def _reasons(result: SearchResult) -> list[tuple[str, str]]:
    return [(reason, f"{count:,}") for reason, count in list(result.dropped.items())[:REASONS]]
