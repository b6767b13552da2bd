"""A prediction as tables for a terminal."""

from rich.console import Group
from rich.text import Text

from mimokit.config.errors import ConfigError
from mimokit.planning.layout import ConfigSource
from mimokit.planning.report.rows import module_hues
from mimokit.prediction import PART_WORDS, Prediction
from mimokit.prediction.prediction import predict_task
from mimokit.prediction.result import chance_text
from mimokit.prediction.task import task_of
from mimokit.prediction.verdict import Verdict, verdict_lines, verdict_of, verdict_sentence
from mimokit.tables import Section, rich_table
from mimokit.units import GIB, counted, gib_text, seconds_text

BAR = 40
"""Characters of a GPU's memory."""


def prediction_to_rich(prediction: Prediction) -> Group:
    """Return what `rich` prints for a prediction: totals, parts of the step, memory by module."""
    return Group(
        Text(str(prediction.layout), style="bold"),
        Text(prediction.conditions(), style="dim"),
        _verdict(prediction),
        _totals(prediction),
        *(Text(sentence, style="yellow") for sentence in prediction.supposed),
        _parts(prediction),
        _memory(prediction),
    )


def predicted_line(source: ConfigSource, world_size: int | None) -> str:
    """Return what is predicted for an experiment in one line, or why nothing is."""
    try:
        task = task_of(source, world_size=world_size)
        verdict = verdict_of(predict_task(task))
    except ConfigError as error:
        return f"Nothing is predicted: {error}"
    return f"Predicted on {task.system.hardware.name}: {verdict_sentence(verdict)}."


def _verdict(prediction: Prediction) -> Group:
    verdict = verdict_of(prediction)
    lines = verdict_lines(verdict)
    table = rich_table("", [line.label for line in lines])
    table.add_row(*(Text(line.value, style="bold") for line in lines))
    table.add_row(*(Text(line.note, style="dim") for line in lines))
    return Group(table, memory_bar(verdict))


def memory_bar(verdict: Verdict) -> Text:
    """Return the fullest GPU as a bar of the modules on it, each in its colour, and their names."""
    hues = module_hues(verdict.memory)
    bar, names, filled = Text("│"), Text(), 0
    for name, held in verdict.memory.items():
        wide = min(BAR - filled, max(1, round(BAR * held / verdict.capacity)))
        bar.append("█" * wide, style=hues[name])
        names.append(f"  {name} {gib_text(held)}")
        filled += wide
    return bar + Text("·" * (BAR - filled) + "│") + names


def _totals(prediction: Prediction) -> Text:
    room = "fits" if prediction.fits else "does NOT fit"
    room += chance_text(prediction.fit_chance)
    cost = prediction.dollars_per_million_tokens
    price = "" if cost is None else f", {cost:.3g} dollars per million tokens"
    exchange = prediction.exchange_text()
    return Text(
        f"{counted(prediction.layout.gpus, 'GPU')}, {seconds_text(prediction.seconds)} per step "
        f"({seconds_text(prediction.low)} to {seconds_text(prediction.high)}), "
        f"{prediction.tokens_per_second:,.0f} tokens/s, {prediction.tflops_per_gpu:.0f} TFLOP/s "
        f"per GPU ({prediction.utilisation:.1%} of peak){price}; fullest rank "
        f"{prediction.peak_memory / GIB:.1f} of {gib_text(prediction.capacity)}: {room}"
        + (f"; {exchange}" if exchange else "")
    )


def _parts(prediction: Prediction) -> Section:
    rows = [
        (PART_WORDS.get(name, name), f"{seconds:.4f}", f"{seconds / prediction.seconds:.1%}")
        for name, seconds in sorted(prediction.parts.items(), key=lambda item: -item[1])
        if seconds > 0
    ]
    return Section("Step time", ("part", "seconds", "share"), rows)


def _memory(prediction: Prediction) -> Section:
    rows = [
        (module, name, f"{amount / GIB:.2f}")
        for module, parts in prediction.memory.items()
        for name, amount in parts.items()
    ]
    heading = "Memory of the fullest rank of each module"
    return Section(heading, ("module", "part", "GiB"), rows)
