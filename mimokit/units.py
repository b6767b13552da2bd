"""Bytes, seconds, ranks, samples and values as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

GIB = 2**30

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def bytes_text(number: int) -> str:
    """Return bytes in the unit that leaves one to four digits (1 kB is 1,000 bytes)."""
    value, unit = float(number), _UNITS[0]
    for unit in _UNITS:
        if value < 1000 or unit == _UNITS[-1]:
            break
        value /= 1000
    return f"{number} B" if unit == "B" else f"{value:,.3g} {unit}"


def gib_text(number: float, digits: int = 1) -> str:
    """Return bytes in GiB (2**30 bytes), such as 12.5 GiB."""
    return f"{number / GIB:.{digits}f} GiB"


def seconds_text(seconds: float) -> str:
    """Return seconds in the unit that suits them."""
    if abs(seconds) >= 1:
        return f"{seconds:.2f} s" if abs(seconds) < 100 else f"{seconds:,.0f} s"
    return f"{seconds * 1e3:.0f} ms" if abs(seconds) >= 0.01 else f"{seconds * 1e3:.2g} ms"


def span_text(ranks: Iterable[int]) -> str:
    """Return ascending ranks as spans: 0–3, 8–11."""
    spans: list[list[int]] = []
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


def listed(words: Sequence[str]) -> str:
    """Return words as a list in a sentence: a, b and c."""
    return ", ".join(words[:-1]) + f" and {words[-1]}" if len(words) > 1 else "".join(words)


def shown(value: object, most: int = 60) -> str:
    """Return a value as Python writes it, shortened; a number of thousands of digits in words."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"too large to show ({type(value).__name__})"
    return text if len(text) <= most else f"{text[: most - 3]}..."
