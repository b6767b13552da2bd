"""Collecting the tests of a room that plans and predicts imports nothing heavy."""

import os
import sys
from pathlib import Path

from tests.commands import run_to_end

ROOT = Path(__file__).parents[1]
PURE = (
    "config",
    "config_files",
    "architecture",
    "planning",
    "prediction",
    "layout_search",
    "interop",
    "cli",
)
"""Rooms whose tests start at once: import what is heavy in the function that needs it."""

COLLECT = """
import pathlib, sys
import pytest

HEAVY = ("torch", "pandas", "altair", "transformers")

class Blame:
    def __init__(self):
        self.collected, self.heavy = "conftest.py", {}

    def pytest_make_collect_report(self, collector):
        self.collected = collector.path.relative_to(pathlib.Path.cwd())

    # Asked before the finders of files.
    def find_spec(self, name, path=None, target=None):
        if name in HEAVY:
            self.heavy.setdefault(name, self.collected)

blame = Blame()
sys.meta_path.insert(0, blame)
status = pytest.main(
    ["--collect-only", "-qq", "-p", "no:cacheprovider", *sys.argv[1:]], plugins=[blame]
)
for name, file in blame.heavy.items():
    print(f"HEAVY: {file} imports {name}")
sys.exit(status)
"""


def heavy_in(folder: Path, *places: str) -> list[str]:
    """Collect tests in a fresh process; return which files import something heavy first."""
    done = run_to_end(
        [sys.executable, "-c", COLLECT, *places],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "widgets")])},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("HEAVY: ")]


def test_no_test_of_a_pure_room_imports_what_is_heavy() -> None:
    assert heavy_in(ROOT, *(f"tests/{room}" for room in PURE)) == []


def test_a_file_that_imports_something_heavy_is_named(tmp_path: Path) -> None:
    """Through a module that it shares with others, which a look at its text would miss."""
    tmp_path.joinpath("shared.py").write_text("import pandas")
    tmp_path.joinpath("test_light.py").write_text("def test(): import pandas")
    tmp_path.joinpath("test_planted.py").write_text("import shared\ndef test(): ...")
    assert heavy_in(tmp_path, ".") == ["HEAVY: test_planted.py imports pandas"]
