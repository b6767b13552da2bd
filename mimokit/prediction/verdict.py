"""What one decides between layouts by: seconds, tokens, memory, idle time and dollars of a step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mimokit.units import GIB, seconds_text

SURE = 0.98
"""Probability from which on a prediction says nothing of it."""


def chance_text(chance: float) -> str:
    """Return " in 9 of 10 runs", where it is not sure whether a layout fits; else nothing."""
    if not 1 - SURE < chance < SURE:
        return ""
    return f", in {min(9, max(1, round(10 * chance)))} of 10 runs"


@dataclass(frozen=True)
class Verdict:
    """The numbers of a predicted step that layouts are compared by.

    Attributes:
        low: lower end of the band that holds four of five measured steps, in seconds.
        tokens_per_gpu: tokens per second, divided by the GPUs.
        memory: module -> bytes on the fullest GPU; modules that share it are all listed.
        idle: share of the step for which a GPU waits in a pipeline.
        dollars: per billion tokens; None without a price.
        fit_chance: probability that it fits on the fullest GPU.
        supposed: sentences about what widens the band.
    """

    seconds: float
    low: float
    high: float
    tokens_per_gpu: float
    memory: Mapping[str, float]
    capacity: float
    idle: float
    dollars: float | None
    fit_chance: float = 1.0
    supposed: tuple[str, ...] = ()

    @property
    def peak(self) -> float:
        """Bytes on the fullest GPU."""
        return sum(self.memory.values())

    @property
    def fits(self) -> bool:
        """Whether the fullest GPU has room for it."""
        return self.peak <= self.capacity


@dataclass(frozen=True)
class VerdictLine:
    """One number of a verdict as text.

    Attributes:
        note: what goes with the value: its band, or what it is measured against.
        change: what it was before and by how much it differs; empty where it does not.
        better: whether the change is to the good; None where that is not judged: only tokens per
            GPU and what fits are.
        why: what widens the band of the value, in sentences.
    """

    key: str
    label: str
    value: str
    note: str = ""
    change: str = ""
    better: bool | None = None
    why: str = ""


@dataclass(frozen=True)
class _Measure:
    key: str
    label: str
    text: Callable[[float], str]
    number: Callable[[Verdict], float | None]


def _whole(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _gib(number: float) -> str:
    return f"{number / GIB:.3g} GiB"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _dollars(number: float) -> str:
    return f"${number:,.0f}" if number >= 100 else f"${number:.3g}"


DOLLARS = _Measure("dollars", "per billion tokens", _dollars, lambda verdict: verdict.dollars)
MEASURES = (
    _Measure("seconds", "time per step", seconds_text, lambda verdict: verdict.seconds),
    _Measure("tokens", "tokens/s per GPU", _whole, lambda verdict: verdict.tokens_per_gpu),
    _Measure("memory", "fullest GPU", _gib, lambda verdict: verdict.peak),
    _Measure("idle", "idle in pipeline", _percent, lambda verdict: verdict.idle),
    DOLLARS,
)
"""What layouts are compared by, wherever they are."""


def verdict_texts(verdict: Verdict) -> dict[str, str]:
    """Return the value of each measure as text, by its key; without a price no dollars."""
    return {line.key: line.value for line in verdict_lines(verdict)}


def verdict_sentence(verdict: Verdict) -> str:
    """Return a verdict as one line: time with its band, tokens, memory, idle time, dollars."""
    parts = [
        f"{line.label} {line.value}" + (f" ({line.note})" if line.note else "")
        for line in verdict_lines(verdict)
    ]
    return ", ".join(parts)


def gain_text(now: Verdict, before: Verdict) -> str:
    """Return how many more tokens/s a GPU does than before, "+11 %"; "" where both read alike."""
    alike = _whole(now.tokens_per_gpu) == _whole(before.tokens_per_gpu)
    return "" if alike else _signed(now.tokens_per_gpu / before.tokens_per_gpu - 1)


def memory_text(verdict: Verdict) -> str:
    """Return the memory of the fullest GPU: "31.9 GiB"."""
    return _gib(verdict.peak)


def verdict_lines(now: Verdict, before: Verdict | None = None) -> tuple[VerdictLine, ...]:
    """Return a verdict as text, with the change against another one."""
    notes = {
        "seconds": f"{seconds_text(now.low)} to {seconds_text(now.high)}",
        "memory": f"of {_gib(now.capacity)}{_room(now)}",
    }
    lines = []
    for measure in MEASURES:
        number = measure.number(now)
        if number is None:
            continue
        was = None if before is None else measure.number(before)
        change = "" if was is None else _change(measure, was, number)
        better = None if before is None or not change else _better(measure.key, now, before)
        note = notes.get(measure.key, "")
        text = measure.text(number)
        why = " ".join(now.supposed) if measure.key == "seconds" else ""
        lines.append(VerdictLine(measure.key, measure.label, text, note, change, better, why))
    return tuple(lines)


def _room(now: Verdict) -> str:
    chance = chance_text(now.fit_chance)
    if now.fits:
        return f": fits{chance}" if chance else ""
    return f": does not fit, or{chance[1:]}" if chance else ": does not fit"


def _better(key: str, now: Verdict, before: Verdict) -> bool | None:
    if key == "tokens":
        return now.tokens_per_gpu > before.tokens_per_gpu
    return now.fits if key == "memory" and now.fits != before.fits else None


def _change(measure: _Measure, was: float, number: float) -> str:
    """Return "2.36 → 2.25 s (−5 %)"; nothing for what reads alike."""
    before, after = measure.text(was), measure.text(number)
    if before == after:
        return ""
    unit = after.partition(" ")[2]
    short = before.removesuffix(f" {unit}") if unit else before
    share = "" if not was or unit == "%" else f" ({_signed(number / was - 1)})"
    return f"{short} → {after}{share}"


def _signed(share: float) -> str:
    sign, percent = "+" if share > 0 else "−", abs(100 * share)
    return f"{sign}{percent:.0f} %" if percent >= 1 else f"{sign}{percent:.1f} %"
