"""Write what is claimed and refused into docs/limits.md: `python -m tests.claims`."""

import re
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

from mimokit.axes import CONFIG_FIELDS, SPELLINGS, Axis
from mimokit.config import ExperimentConfig
from tests.claims import CLAIMS
from tests.claims.layouts import COLOCATED, HETEROGENEOUS, HOMOGENEOUS
from tests.claims.pairs import FROZEN, frozen, table_of_refused

ROOT = Path(__file__).parents[2]
MODES = HOMOGENEOUS, COLOCATED, HETEROGENEOUS


def table_of_claims() -> Iterator[str]:
    """Yield the rows: a claim, and the sizes of its run in each mode."""
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


def written(text: str) -> str:
    """Return the page with its generated tables."""
    for name, rows in TABLES.items():
        marks = re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- /{name} -->)", re.DOTALL)
        between = marks.search(text)
        assert between is not None, f"the page has marks for {name}"
        text = text[: between.start()] + "\n".join(rows()) + "\n" + text[between.end() :]
    return text


PAGE = ROOT / "docs" / "limits.md"
TABLES: dict[str, Callable[[], Iterator[str]]] = {
    "claims": table_of_claims,
    "refused": table_of_refused,
}
"""Name of the marks in the page -> the rows between them."""


def main() -> None:
    """Write the page, and what is frozen of combinations."""
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    FROZEN.write_text(frozen(), encoding="utf-8")


if __name__ == "__main__":
    main()
