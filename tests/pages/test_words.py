"""Pages are short: words of a page and of a cell of the benchmarks, lines of a release."""

import re
from pathlib import Path

from tests.rows import rows

ROOT = Path(__file__).parents[2]
MOST_OF_ALL = 18_000
"""Words of `docs/`, without what is generated."""
MOST = {
    "architecture": 700,
    "benchmarks": 3000,
    "checkpoints": 700,
    "concepts": 770,
    "culprit": 1550,
    "experiments": 550,
    "files": 650,
    "frames": 200,
    "hosts": 450,
    "hybrid_model": 350,
    "index": 230,
    "limits": 700,
    "megatron": 700,
    "my_cluster": 600,
    "my_gpu": 270,
    "own_data": 550,
    "own_modules": 1300,
    "predictor": 1720,
    "slurm": 250,
    "start": 850,
    "stepper": 780,
    "strategies": 250,
    "vision_dp": 380,
    "weights": 500,
}
"""Page -> words at most; a page that needs more takes them from another."""
GENERATED_PAGES = {"config", "names"}
GENERATED = re.compile(r"<!-- (\w+) -->.*?<!-- (?:/|end of )\1 -->", re.DOTALL)
MOST_OF_CONTRIBUTING = 1400
MOST_OF_A_CELL = 25
MOST_OF_A_RELEASE = 10
MOST_OF_A_LINE = 50

PAGES = {page.stem: page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")}
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def words(text: str) -> int:
    """Count what has a letter or a digit, outside of generated tables."""
    return sum(bool(re.search(r"\w", word)) for word in GENERATED.sub("", text).split())


def long_cells(text: str) -> list[str]:
    rows = re.findall(r"^\|(.+)\|$", text, re.MULTILINE)
    return [cell for row in rows for cell in row.split("|") if words(cell) > MOST_OF_A_CELL]


def long_releases(text: str) -> list[str]:
    """Return the releases with too many or too long lines; of removed names there may be many."""
    long = []
    for release in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        lengths = [words(line) for line in re.findall(r"^[- ] .*", release, re.M)]
        if len(lengths) > MOST_OF_A_RELEASE or max(lengths, default=0) > MOST_OF_A_LINE:
            long.append(release.splitlines()[0])
    return long


def test_every_page_has_a_budget() -> None:
    assert PAGES.keys() - GENERATED_PAGES == MOST.keys()
    assert sum(MOST.values()) <= MOST_OF_ALL


@rows("page", *MOST)
def test_a_page_keeps_its_budget(page: str) -> None:
    assert words(PAGES[page]) <= MOST[page]


def test_other_texts_are_short() -> None:
    assert words((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")) <= MOST_OF_CONTRIBUTING
    assert long_cells(PAGES["benchmarks"]) == []
    assert long_releases(CHANGELOG) == []


def test_long_texts_are_found() -> None:
    assert words("two words | <!-- rows -->\n| a |\n<!-- /rows --> more") == 3
    assert long_cells(f"| a | {'word ' * 26}|")
    assert long_releases("# Changes\n## 9\n" + "- a line\n" * 11) == ["9"]
    assert long_releases("# Changes\n## 9\n- " + "word " * 51) == ["9"]
