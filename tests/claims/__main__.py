"""Write what is claimed into the pages: `python -m tests.claims`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

from mimokit.axes import CONFIG_FIELDS, SPELLINGS, Axis
from mimokit.config import ExperimentConfig
from tests.claims import CLAIMS
from tests.claims.layouts import COLOCATED, HETEROGENEOUS, HOMOGENEOUS

ROOT = Path(__file__).parents[2]
MODES = HOMOGENEOUS, COLOCATED, HETEROGENEOUS
MARKS = re.compile(r"(?<=<!-- claims -->\n).*?(?=<!-- /claims -->)", re.DOTALL)


def table_of_limits() -> Iterator[str]:
    """Yield the rows of docs/limits.md: a claim, and the sizes of its run in each mode."""
    yield f"| | {' | '.join(MODES)} |"
    yield "|---|---|---|---|"
    for area, claims in groupby(CLAIMS, key=lambda claim: claim.area):
        yield f"| **{area}** | | | |"
        of_area: dict[str, dict[str, str]] = {}
        for claim in claims:
            mode = str(claim.config.model.deployment_mode)
            of_area.setdefault(claim.title, {})[mode] = sizes_of(claim.config)
        for title, runs in of_area.items():
            yield f"| {title} | {' | '.join(runs.get(mode, '') for mode in MODES)} |"


def rows_of_readme() -> Iterator[str]:
    """Yield the rows of the README: an area, and what is claimed of it."""
    yield "| | |"
    yield "|---|---|"
    for area, claims in groupby(CLAIMS, key=lambda claim: claim.area):
        yield f"| {area} | {'; '.join(dict.fromkeys(claim.title for claim in claims))} |"


def sizes_of(config: ExperimentConfig) -> str:
    """Return the axes along which modules are cut, and the replicas of a strategy."""
    words = []
    for name, module in config.model.module_parallelisms.items():
        sizes = {axis: getattr(module, field) or 1 for axis, field in CONFIG_FIELDS.items()}
        cut = [
            f"{SPELLINGS[axis].label}{size}"
            for axis, size in sizes.items()
            if isinstance(axis, Axis) and size > 1
        ]
        words.append(f"{name} {' '.join(cut) or 'one rank'}")
    if config.strategy is not None:
        words.append(f"{config.strategy.replicas} replicas")
    return ", ".join(words).replace("language_module", "language")


def written(text: str, rows: Iterator[str]) -> str:
    """Return a page with these rows between its marks."""
    assert MARKS.search(text), "the page has marks for claims"
    return MARKS.sub(lambda _: "\n".join(rows) + "\n", text)


PAGES: dict[str, tuple[Path, Callable[[], Iterator[str]]]] = {
    "limits": (ROOT / "docs" / "limits.md", table_of_limits),
    "README": (ROOT / "README.md", rows_of_readme),
}


def main() -> None:
    """Write the pages."""
    for path, rows in PAGES.values():
        path.write_text(written(path.read_text(encoding="utf-8"), rows()), encoding="utf-8")


if __name__ == "__main__":
    main()
