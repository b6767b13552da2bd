"""Why the best layout of a search is the best, in a few sentences."""

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import replace

from mimokit.axes import SIZE_FIELDS, Axis
from mimokit.config.rules.facts import PairFacts
from mimokit.config.rules.pair_rules import SAMPLES
from mimokit.config.sizes import (
    RECOMPUTE_FULL,
    RECOMPUTE_NAMES,
    RECOMPUTE_NONE,
    ParallelSizes,
)
from mimokit.layout_search.task import SearchTask
from mimokit.layout_search.why_not import broken_sentences, differences_text
from mimokit.prediction import PART_WORDS, Layout, Prediction
from mimokit.prediction.band import TIE, is_tie
from mimokit.prediction.layout import micro_batches
from mimokit.units import GIB, counted, gib_text, seconds_text

STEPS_SHOWN = 4
WIDTH = 80
"""Of a line; a notebook breaks longer ones inside words and numbers."""


def explain_choice(
    task: SearchTask,
    best: Prediction,
    per_mode: Mapping[str, Prediction],
    evaluated: int,
    ties: int = 0,
) -> str:
    """Return why a layout was chosen: its cost, what it beats, and what limits it.

    Args:
        ties: other layouts that tie with it.
    """
    sentences = (
        _what(task, best, evaluated),
        *_ties(best, ties),
        _goes_into(best),
        *_modes(best, per_mode),
        *one_step_away(task, best),
        *best.supposed,
    )
    return "\n".join(map(_wrapped, sentences))


def _wrapped(sentence: str) -> str:
    return textwrap.fill(
        sentence,
        WIDTH,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _what(task: SearchTask, best: Prediction, evaluated: int) -> str:
    return (
        f"{best.layout} on {best.layout.gpus:,} of {counted(task.gpus, 'GPU')} takes "
        f"{seconds_text(best.seconds)} per step ({seconds_text(best.low)} to "
        f"{seconds_text(best.high)}), {best.tflops_per_gpu:.0f} TFLOP/s per GPU "
        f"({best.utilisation:.1%} of peak), and {gib_text(best.peak_memory)} on its fullest "
        f"rank of {task.memory_limit / GIB:.1f} that may be planned: the best of {evaluated:,} "
        f"layouts by {task.objective.replace('_', ' ')}."
    )


def _ties(best: Prediction, ties: int) -> Iterator[str]:
    if ties:
        yield (
            f"{counted(ties, 'other layout')} that {'was' if ties == 1 else 'were'} simulated "
            f"{'ties' if ties == 1 else 'tie'} with it: up to {TIE:.0%} apart predictions do not "
            "say which is faster."
        )


def _goes_into(best: Prediction) -> str:
    parts = sorted(best.parts.items(), key=lambda item: -item[1])[:4]
    shown = ", ".join(
        f"{PART_WORDS.get(name, name)} {value / best.seconds:.0%}"
        for name, value in parts
        if value >= 0.01 * best.seconds
    )
    return f"Its time goes into {shown}."


def _modes(best: Prediction, per_mode: Mapping[str, Prediction]) -> Iterator[str]:
    for mode, other in per_mode.items():
        if mode == best.layout.mode:
            continue
        lost = other.seconds - best.seconds
        more = "more" if lost >= 0 else "less"
        if is_tie(other.seconds, best.seconds):
            yield (
                f"The best {mode} layout ({counted(other.layout.gpus, 'GPU')}) ties with it: "
                f"{seconds_text(other.seconds)}, {abs(lost) / best.seconds:.1%} {more}."
            )
            continue
        yield (
            f"The best {mode} layout ({counted(other.layout.gpus, 'GPU')}) takes "
            f"{seconds_text(other.seconds)}, {abs(lost) / best.seconds:.1%} {more}: "
            f"{differences_text(other, best)}."
        )


def one_step_away(task: SearchTask, best: Prediction) -> Iterator[str]:
    """Yield what layouts cost that differ in one size, in a sentence for each kind of outcome.

    Args:
        best: where none of them is faster, else any layout.
    """
    faster: list[tuple[float, str]] = []
    slower: list[tuple[float, str]] = []
    tied: list[str] = []
    too_large: list[str] = []
    for change, layout in neighbours(best.layout):
        if any(True for _ in broken_sentences(task, layout)):
            continue
        prediction = task.predict(layout)
        lost = (prediction.seconds - best.seconds) / best.seconds
        where = differences_text(prediction, best, 2)
        count = micro_batches(prediction.layout, task.workload)
        if count != micro_batches(best.layout, task.workload):
            change += f" with {counted(count, 'micro-batch')}"
        if prediction.peak_memory > task.memory_limit:
            too_large.append(f"{change} would need {gib_text(prediction.peak_memory)}")
        elif is_tie(prediction.seconds, best.seconds):
            tied.append(change)
        elif lost >= 0:
            slower.append((lost, f"{change} would cost {lost:.1%} ({where})"))
        else:
            faster.append((lost, f"{change} would save {-lost:.1%} ({where})"))
    for kind, layouts in (("and faster", faster), ("and slower", slower)):
        if layouts:
            nearest = [text for _, text in sorted(layouts)[:STEPS_SHOWN]]
            yield f"One step away {kind}: {'; '.join(nearest)}."
    if tied:
        yield f"One step away and a tie: {'; '.join(tied)}."
    if too_large:
        yield f"Not enough memory: {'; '.join(too_large[:STEPS_SHOWN])}."


def neighbours(layout: Layout) -> Iterator[tuple[str, Layout]]:
    """Yield layouts that differ in one size of the language model, on as many ranks.

    Replicas make up for what tensor, pipeline or context parallelism takes more or less; encoders
    keep their sizes and follow with their micro-batch.
    """
    language = layout.modules[layout.language]
    for change, sizes in _changes(language):
        changed = _with_language(layout, sizes)
        if changed is not None:
            yield change, changed


def _changes(language: ParallelSizes) -> Iterator[tuple[str, ParallelSizes]]:
    for axis in (Axis.TENSOR, Axis.PIPELINE, Axis.CONTEXT):
        field, word, value = SIZE_FIELDS[axis], axis.label, language.size(axis)
        if language.data % 2 == 0:
            changed = {field: value * 2, "data": language.data // 2}
            yield f"{word}{value * 2} instead of {word}{value}", replace(language, **changed)
        if value % 2 == 0:
            changed = {field: value // 2, "data": language.data * 2}
            yield f"{word}{value // 2} instead of {word}{value}", replace(language, **changed)
    for micro_batch in (language.micro_batch * 2, language.micro_batch // 2):
        if micro_batch:
            yield f"micro-batch {micro_batch}", replace(language, micro_batch=micro_batch)
    other = RECOMPUTE_NONE if language.recompute else RECOMPUTE_FULL
    yield f"recompute {RECOMPUTE_NAMES[other]}", replace(language, recompute=other)
    if language.virtual > 1:
        yield "a plain pipeline", replace(language, virtual=1)


def _with_language(layout: Layout, sizes: ParallelSizes) -> Layout | None:
    modules: dict[str, ParallelSizes] = {}
    samples = sizes.micro_batch * sizes.data
    for name, encoder in layout.modules.items():
        if name == layout.language:
            modules[name] = sizes
        elif layout.mode == "homogeneous":
            modules[name] = sizes.in_first_stage
        elif not SAMPLES.holds(encoder, sizes, PairFacts(layout.mode, name, layout.language)):
            return None
        else:
            modules[name] = replace(encoder, micro_batch=samples // encoder.data)
    return replace(layout, modules=modules)
