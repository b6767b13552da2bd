"""Why a search did not choose a certain layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mimokit.architecture.parameters_on_rank import Module
from mimokit.config.errors import Problem, refuse_if_any
from mimokit.layout_search.constraints import score
from mimokit.layout_search.facts import facts_of
from mimokit.layout_search.limits import broken_limits
from mimokit.layout_search.pairs import broken_pairs
from mimokit.layout_search.rules import broken_rules
from mimokit.layout_search.task import SearchTask
from mimokit.layout_search.words import GIB, differences, differences_text, seconds_text
from mimokit.prediction import Layout, Prediction
from mimokit.prediction.placement import check_sizes


@dataclass(frozen=True)
class WhyNot:
    """What speaks against a layout.

    Attributes:
        layout: the layout asked about.
        broken: a sentence per rule or constraint that it breaks; empty where it breaks none.
        prediction: what it comes to, or None where it breaks a rule of its sizes.
        lost_seconds: step time beyond the best layout's; negative where it is quicker.
        where: part of the step -> seconds of these, largest first.
        text: all of it in a few sentences.
    """

    layout: Layout
    broken: tuple[str, ...]
    prediction: Prediction | None
    lost_seconds: float
    where: Mapping[str, float]
    text: str

    def __str__(self) -> str:
        return self.text


def why_not(task: SearchTask, best: Prediction, layout: Layout) -> WhyNot:
    """Return what speaks against a layout.

    Raises:
        ConfigError: its modules are not those of the model, or a size is no count.
    """
    check_sizes(layout)
    _check_modules(task, layout)
    broken = tuple(broken_sentences(task, layout))
    if broken:
        return WhyNot(layout, broken, None, 0.0, {}, " ".join(broken))
    found = task.predict(layout)
    broken = tuple(broken_limits(task, found))
    lost = found.seconds - best.seconds
    text = " ".join(broken) if broken else _compared(task, best, found)
    return WhyNot(layout, broken, found, lost, differences(found, best), text)


def broken_sentences(task: SearchTask, layout: Layout) -> Iterator[str]:
    """Yield a sentence per rule of a module, or between modules, that a layout breaks."""
    modules: tuple[Module, ...] = (*task.branches, task.language)
    for module in modules:
        name = module.name if module.name in layout.modules else layout.language
        yield from broken_rules(facts_of(task, module), layout.modules[name])
    yield from broken_pairs(layout, task.gpus)


def _compared(task: SearchTask, best: Prediction, found: Prediction) -> str:
    if found.layout == best.layout:
        return "It is the layout that was chosen."
    own, least = _score(task, found), _score(task, best)
    lost = found.seconds - best.seconds
    more = "more" if lost >= 0 else "less"
    step = (
        f"a step takes {seconds_text(found.seconds)}, {seconds_text(abs(lost))} "
        f"({abs(lost) / best.seconds:.1%}) {more} than the best layout's "
        f"{seconds_text(best.seconds)}: {differences_text(found, best)}."
    )
    if own < least:
        return f"It is better than the best that the search reached: {step}"
    if task.objective == "step_time":
        return f"It fits, but {step}"
    what, unit, scale = {
        "cost": ("the cost of a step", "GPU-seconds", 1.0),
        "memory": ("the memory of the fullest rank", "GiB", float(GIB)),
    }[task.objective]
    return (
        f"It fits, but {what} is {own / scale:.4g} {unit}, {own / least - 1:.1%} above the best "
        f"layout's {least / scale:.4g}; {step}"
    )


def _score(task: SearchTask, one: Prediction) -> float:
    return float(score(task.objective, one.seconds, one.peak_memory, one.layout.gpus))


def _check_modules(task: SearchTask, layout: Layout) -> None:
    own = [branch.name for branch in task.branches]
    given = [name for name in layout.modules if name != layout.language]
    refuse_if_any(
        Problem(
            name,
            "layout",
            None,
            f"Module '{name}': {what}; the layout needs {', '.join([*own, 'the language model'])}, "
            "the language model last.",
        )
        for names, others, what in (
            (own, given, "the layout has no sizes for it"),
            (given, own, "the model has no such module"),
        )
        for name in names
        if name not in others
    )
