"""Write the table of constants into its page: `python -m benchmarks.prediction.page`."""

from __future__ import annotations

from pathlib import Path

from mimokit.prediction.step_time.constants import CONSTANTS, SECONDS, Constant

PAGE = Path(__file__).parents[2] / "docs" / "predictor.md"
BEGIN, END = "<!-- constants -->\n", "<!-- end of constants -->"


def constants_table() -> str:
    """Return the table of all constants."""
    rows = [
        "| constant | what it is | value | bounds | fitted | source |",
        "|---|---|---|---|---|---|",
    ]
    rows += [
        f"| {one.name} | {one.meaning} | {_shown(one, one.value)} | "
        f"{_shown(one, one.low)} to {_shown(one, one.high)} | "
        f"{'yes' if one.fitted else ''} | {one.source} |"
        for one in CONSTANTS.values()
    ]
    return "\n".join(rows) + "\n"


def _shown(constant: Constant, value: float) -> str:
    if constant.unit != SECONDS:
        return f"{value:.3g}"
    if value >= 1e-4:
        return f"{1e3 * value:.3g} ms"
    return f"{1e6 * value:.3g} µs" if value >= 1e-6 else f"{1e9 * value:.3g} ns"


def with_table(text: str) -> str:
    """Return the page with the present table."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + constants_table() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
