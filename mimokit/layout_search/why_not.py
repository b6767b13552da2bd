"""Why a search did not choose a certain layout."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from mimokit.architecture.modules import Module
from mimokit.config.errors import Problem, refuse_if_any
from mimokit.config.rules.module_rules import broken_rules
from mimokit.config.sizes import RECOMPUTE_NAMES
from mimokit.layout_search.candidates import SEARCH_RULES, search_facts
from mimokit.layout_search.combinations import refused_sentences
from mimokit.layout_search.constraints import DIMENSIONS, score
from mimokit.layout_search.task import SearchTask
from mimokit.prediction import PART_WORDS, Layout, Prediction
from mimokit.prediction.band import TIE, is_tie
from mimokit.prediction.validity import broken_pairs, check_counts
from mimokit.units import GIB, counted, gib_text, seconds_text


@dataclass(frozen=True)
class WhyNot:
    """What speaks against a layout.

    Attributes:
        broken: a sentence per rule or constraint that it breaks; empty where it breaks none.
        prediction: what it comes to, or None where it breaks a rule of its sizes.
        lost_seconds: step time beyond the best layout's; negative if it is quicker.
        where: part of the step -> seconds of these, largest first.
        tie: predictions do not say whether it is slower or faster than the best.
    """

    layout: Layout
    broken: tuple[str, ...]
    prediction: Prediction | None
    lost_seconds: float
    where: Mapping[str, float]
    text: str
    tie: bool = False

    def __str__(self) -> str:
        return self.text


def why_not(task: SearchTask, best: Prediction, layout: Layout) -> WhyNot:
    """Return what speaks against a layout.

    Raises:
        ConfigError: its modules are not those of the model, or a size is not a whole number of
            at least 1.
    """
    check_counts(layout)
    _check_modules(task, layout)
    broken = tuple(broken_sentences(task, layout))
    if broken:
        return WhyNot(layout, broken, None, 0.0, {}, " ".join(broken))
    prediction = task.predict(layout)
    broken = tuple(broken_limits(task, prediction))
    lost = prediction.seconds - best.seconds
    text = " ".join(broken) if broken else _compared(task, best, prediction)
    tie = not broken and is_tie(prediction.seconds, best.seconds)
    return WhyNot(layout, broken, prediction, lost, size_differences(prediction, best), text, tie)


def broken_sentences(task: SearchTask, layout: Layout) -> Iterator[str]:
    """Yield a sentence per rule of a module, or between modules, that a layout breaks."""
    modules: tuple[Module, ...] = (*task.others, task.language)
    for module in modules:
        name = module.name if module.name in layout.modules else layout.language
        facts = replace(search_facts(task, module), name=name)
        for problem in broken_rules(layout.modules[name], facts, SEARCH_RULES):
            yield problem.sentence
    yield from refused_sentences(task.parts, layout)
    broken = [problem.sentence for problem in broken_pairs(layout, task.workload)]
    yield from broken or _outside_first_stage(layout)
    if layout.gpus > task.gpus:
        yield (
            f"Layout: it takes {counted(layout.gpus, 'GPU')} and there are {task.gpus}; choose "
            "smaller sizes."
        )


def _outside_first_stage(layout: Layout) -> Iterator[str]:
    """Yield the homogeneous encoders that no search tries: those outside the first stage."""
    inside = layout.modules[layout.language].in_first_stage
    for name, sizes in layout.modules.items():
        if layout.mode == "homogeneous" and name != layout.language and sizes != inside:
            yield (
                f"Module '{name}': in homogeneous mode it has the sizes of '{layout.language}', "
                "in its first stage; give it those, or use colocated mode."
            )


def _compared(task: SearchTask, best: Prediction, prediction: Prediction) -> str:
    if prediction.layout == best.layout:
        return "It is the layout that was chosen."
    reached, least = _score(task, prediction), _score(task, best)
    lost = prediction.seconds - best.seconds
    more = "more" if lost >= 0 else "less"
    step = (
        f"a step takes {seconds_text(prediction.seconds)}, {seconds_text(abs(lost))} "
        f"({abs(lost) / best.seconds:.1%}) {more} than the best layout's "
        f"{seconds_text(best.seconds)}: {differences_text(prediction, best)}."
    )
    if task.objective == "step_time" and is_tie(prediction.seconds, best.seconds):
        return (
            f"It fits, and it is a tie with the best layout: up to {TIE:.0%} apart predictions do "
            f"not say which is faster; {step}"
        )
    if reached < least:
        return f"It is better than the best that the search reached: {step}"
    if task.objective == "step_time":
        return f"It fits, but {step}"
    what, unit, scale = {
        "cost": ("the cost of a step", "GPU-seconds", 1.0),
        "memory": ("the memory of the fullest rank", "GiB", float(GIB)),
    }[task.objective]
    return (
        f"It fits, but {what} is {reached / scale:.4g} {unit}, {reached / least - 1:.1%} above the "
        f"best layout's {least / scale:.4g}; {step}"
    )


def _score(task: SearchTask, prediction: Prediction) -> float:
    return float(
        score(task.objective, prediction.seconds, prediction.peak_memory, prediction.layout.gpus)
    )


def _check_modules(task: SearchTask, layout: Layout) -> None:
    needed = [module.name for module in task.others]
    listed = ", ".join([*needed, "the language model"])
    present = [name for name in layout.modules if name != layout.language]
    refuse_if_any(
        Problem(
            name,
            "layout",
            None,
            f"Module '{name}': {what}; the layout needs {listed}, the language model last.",
        )
        for names, others, what in (
            (needed, present, "the layout has no sizes for it"),
            (present, needed, "the model has no such module"),
        )
        for name in names
        if name not in others
    )


def broken_limits(task: SearchTask, prediction: Prediction) -> Iterator[str]:
    """Yield a sentence per constraint that a layout breaks: memory, time, GPUs, mode, values."""
    rules, layout = task.constraints, prediction.layout
    if prediction.peak_memory > task.memory_limit:
        yield _too_large(task, prediction)
    if rules.most_seconds is not None and prediction.seconds > rules.most_seconds:
        yield (
            f"A step takes {seconds_text(prediction.seconds)}, more than the "
            f"{seconds_text(rules.most_seconds)} allowed."
        )
    if len(layout.modules) > 1 and layout.mode not in rules.modes:
        yield f"Its mode {layout.mode} was left out: modes are {', '.join(rules.modes)}."
    if layout.gpus < rules.least_gpus:
        gpus = counted(layout.gpus, "GPU")
        yield f"It takes {gpus}, fewer than the {rules.least_gpus} asked for."
    yield from _values_left_out(task, prediction)


def _too_large(task: SearchTask, prediction: Prediction) -> str:
    fullest = max(prediction.memory, key=lambda name: sum(prediction.memory[name].values()))
    parts = prediction.memory[fullest]
    largest = max(parts, key=lambda name: parts[name])
    return (
        f"It does not fit: its fullest rank needs {gib_text(prediction.peak_memory)}, "
        f"{(prediction.peak_memory - task.memory_limit) / GIB:.1f} more than the "
        f"{task.memory_limit / GIB:.1f} that may be planned; most of '{fullest}' is {largest} "
        f"({gib_text(parts[largest])})."
    )


def _values_left_out(task: SearchTask, prediction: Prediction) -> Iterator[str]:
    """Yield values that the user left out; micro-batches and homogeneous encoders just follow."""
    layout = prediction.layout
    for name, sizes in layout.modules.items():
        follows = name != layout.language
        if follows and layout.mode == "homogeneous":
            continue
        for dimension, field in DIMENSIONS.items():
            values = task.constraints.values(name, dimension, is_language=not follows)
            chosen = int(getattr(sizes, field))
            if values is None or chosen in values or (follows and dimension == "micro_batch_size"):
                continue
            words = [
                RECOMPUTE_NAMES[value] if dimension == "recompute" else str(value)
                for value in (chosen, *values)
            ]
            yield (
                f"Module '{name}': {dimension} {words[0]} was left out by the constraints, which "
                f"have {', '.join(words[1:])}."
            )


def size_differences(slow: Prediction, quick: Prediction) -> dict[str, float]:
    """Return the seconds that one prediction loses to another, by part, largest first."""
    gaps = {
        name: slow.parts.get(name, 0.0) - quick.parts.get(name, 0.0)
        for name in dict.fromkeys([*slow.parts, *quick.parts])
    }
    return dict(sorted(gaps.items(), key=lambda item: -abs(item[1])))


def differences_text(slow: Prediction, quick: Prediction, most: int = 3) -> str:
    """Return the largest differences in words."""
    gaps = list(size_differences(slow, quick).items())[:most]
    shown = [
        f"{PART_WORDS.get(name, name)} {'+' if value > 0 else '−'}{seconds_text(abs(value))}"
        for name, value in gaps
        if abs(value) >= 0.001 * quick.seconds
    ]
    return ", ".join(shown) or "less than a thousandth in every part"
