"""Go on with a run of the tests that was cut off, what failed last first: `pytest --go-on`.

`build/passed.json` has the tests that passed and failed, and the tree that they were of. What
passed is left out for as long as no file has changed.
"""

import json
import os
import tempfile
from pathlib import Path

import pytest

from tests.commands import run_to_end

ROOT = Path(__file__).parents[1]
FILE = ROOT / "build" / "passed.json"


def tree_of(root: Path = ROOT) -> str:
    """Return git's name of all files as they are, committed or not; empty without git."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "GIT_INDEX_FILE": str(Path(folder) / "index")}
        for command in (["read-tree", "HEAD"], ["add", "--all"], ["write-tree"]):
            done = run_to_end(["git", *command], cwd=root, env=environment)
            if done.returncode:
                return ""
        return done.stdout.strip()


class ResumedPlugin:
    """Orders and leaves out tests by how they ended last."""

    def __init__(self, file: Path = FILE, tree: str | None = None) -> None:
        """Take where the last run is kept, and the tree of this one."""
        self._file = file
        self._tree = tree_of() if tree is None else tree
        last = json.loads(file.read_text()) if file.is_file() else {}
        same = bool(self._tree) and last.get("tree") == self._tree
        self.passed: set[str] = set(last.get("passed", ())) if same else set()
        self.failed: set[str] = set(last.get("failed", ()))

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Leave out what passed, and begin with what failed."""
        config.hook.pytest_deselected(items=[i for i in items if i.nodeid in self.passed])
        left = [item for item in items if item.nodeid not in self.passed]
        items[:] = sorted(left, key=lambda item: item.nodeid not in self.failed)


class KeptPlugin(ResumedPlugin):
    """Keeps how tests end, too: in one process alone, since workers would write over each other."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how a test ended."""
        if report.failed:
            self.failed.add(report.nodeid)
            self.passed.discard(report.nodeid)
        elif report.when == "call" and report.passed:
            self.passed.add(report.nodeid)
            self.failed.discard(report.nodeid)
        else:
            return
        self._write()

    def _write(self) -> None:
        self._file.parent.mkdir(exist_ok=True)
        content = {"passed": sorted(self.passed), "failed": sorted(self.failed)}
        part = self._file.with_suffix(".part")
        part.write_text(json.dumps({"tree": self._tree, **content}))
        part.replace(self._file)  # whole, also where the run is killed


def plugin_of(config: pytest.Config) -> ResumedPlugin:
    """Return the plugin of this process: the outcomes of all workers reach the first process."""
    return ResumedPlugin() if hasattr(config, "workerinput") else KeptPlugin()
