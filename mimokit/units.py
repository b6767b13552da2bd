"""Bytes, seconds, ranks, samples and values as text."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence

GIB = 2**30

MOST_OF_NAME = 400
"""Characters without a space in a sentence; a path may have some hundreds."""

_LONG_NAME = re.compile(rf"\S{{{MOST_OF_NAME + 1},}}")
_PREFIXES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_RATE = re.compile(r"([kKMGT]?)(bit/s|b/s|bps|B/s)")
_DURATIONS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6}

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def bytes_text(number: int) -> str:
    """Return bytes in the unit that leaves one to four digits (1 kB is 1,000 bytes)."""
    value, unit = float(number), _UNITS[0]
    for unit in _UNITS:
        if value < 1000 or unit == _UNITS[-1]:
            break
        value /= 1000
    return f"{number} B" if unit == "B" else f"{value:,.3g} {unit}"


def parts_text(parts: Mapping[str, int]) -> str:
    """Return bytes of parts, such as weights 1.2 GB, gradients 600 MB."""
    return ", ".join(f"{part} {bytes_text(size)}" for part, size in parts.items())


def gib_text(number: float, digits: int = 1) -> str:
    """Return bytes in GiB (2**30 bytes), such as 12.5 GiB."""
    return f"{number / GIB:.{digits}f} GiB"


def seconds_text(seconds: float) -> str:
    """Return seconds in the unit that suits them."""
    if abs(seconds) >= 1:
        return f"{seconds:.2f} s" if abs(seconds) < 100 else f"{seconds:,.0f} s"
    return f"{seconds * 1e3:.0f} ms" if abs(seconds) >= 0.01 else f"{seconds * 1e3:.2g} ms"


def parameters_text(count: float) -> str:
    """Return a number of parameters: "7.06 B parameters"."""
    unit = "B" if count >= 1e9 else "M"
    return f"{count / (1e9 if unit == 'B' else 1e6):.3g} {unit} parameters"


def span_text(ranks: Iterable[int]) -> str:
    """Return ascending ranks as spans: 0–3, 8–11."""
    spans: list[list[int]] = []
    if isinstance(ranks, range) and ranks.step == 1 and ranks:
        spans, ranks = [[ranks[0], ranks[-1]]], ()
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ", ".join(f"{a:,}" if a == b else f"{a:,}–{b:,}" for a, b in spans)


def samples_text(span: tuple[int, int]) -> str:
    """Return samples (first, last + 1) as the first and the last: 4–7, or 3 if there is one."""
    start, stop = span
    return f"{start}" if stop == start + 1 else f"{start}–{stop - 1}"


def counted(number: int, noun: str) -> str:
    """Return `1 replica`, `2 replicas`, `1,024 micro-batches`, `3 entries`."""
    stem, ending = (noun[:-1], "ies") if noun.endswith("y") else (noun, "s")
    plural = f"{stem}{'es' if noun.endswith('ch') else ending}"
    return f"{number:,} {noun if number == 1 else plural}"


def listed(words: Sequence[str]) -> str:
    """Return words as a list in a sentence: a, b and c."""
    return ", ".join(words[:-1]) + f" and {words[-1]}" if len(words) > 1 else "".join(words)


def short(sentence: str) -> str:
    """Return a sentence in which no name is longer than `MOST_OF_NAME`."""
    return _LONG_NAME.sub(
        lambda name: f"{name[0][:60]}... ({len(name[0]):,} characters) ...{name[0][-20:]}", sentence
    )


def shown(value: object, most: int = 60) -> str:
    """Return a value as Python writes it, shortened; a number of thousands of digits in words."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"too large to show ({type(value).__name__})"
    return text if len(text) <= most else f"{text[: most - 3]}..."


def bits_per_second(text: str) -> float:
    """Return a bandwidth in bit/s: 200 Mbit/s, 25 MB/s, 1 Gbps (k is 1,000).

    Raises:
        ValueError: the unit is missing or unknown, or the number is not above 0.
    """
    number, unit = _number_and_unit(text)
    match = _RATE.fullmatch(unit)
    if number is None or match is None or not 0 < number < math.inf:
        wrong = "it has no unit" if number is not None and not unit else "it is not a bandwidth"
        if match is not None and number is not None:
            wrong = "it must be above 0"
        raise ValueError(f"{shown(text)}: {wrong}; write 200 Mbit/s or 25 MB/s")
    return number * _PREFIXES[match[1]] * (8 if match[2] == "B/s" else 1)


def seconds_of(text: str) -> float:
    """Return a duration in seconds: 30 ms, 0.2 ms, 50 us, 1 s.

    Raises:
        ValueError: the unit is missing or unknown, or the number is negative.
    """
    number, unit = _number_and_unit(text)
    if number is None or unit not in _DURATIONS or not 0 <= number < math.inf:
        wrong = "it has no unit" if number is not None and not unit else "it is not a duration"
        if number is not None and unit in _DURATIONS:
            wrong = "it must be at least 0"
        raise ValueError(f"{shown(text)}: {wrong}; write 30 ms or 0.5 s")
    return number * _DURATIONS[unit]


def rate_text(bits: float) -> str:
    """Return a bandwidth in the unit that leaves one to four digits."""
    prefix = max((p for p in "kMGT" if bits >= _PREFIXES[p]), key=_PREFIXES.__getitem__, default="")
    return f"{bits / _PREFIXES[prefix]:,.4g} {prefix}bit/s"


def _number_and_unit(text: str) -> tuple[float | None, str]:
    match = re.fullmatch(r"\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*(\S*)\s*", str(text))
    try:
        return (None, "") if match is None else (float(match[1]), match[2])
    except ValueError:
        return None, ""
