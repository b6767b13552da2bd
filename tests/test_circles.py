"""What `make test` takes, and how `make test-all` goes on."""

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import circles
from tests.circles import ENGINE_ROOMS, LEFT_OUT, PAGE_ROOMS, TAKEN, in_the_suite, is_left_out
from tests.resumed import KeptPlugin, ResumedPlugin, plugin_of, tree_of

ROOT = Path(__file__).parents[1]
CLUSTER = frozenset({"cluster"})


def test_rooms_without_engines_and_claims_are_in_the_suite() -> None:
    assert in_the_suite("tests/planning/test_ranks.py::test_one")
    assert in_the_suite("tests/test_claims.py::test_its_fault_is_found[x]", CLUSTER)
    assert in_the_suite("tests/engine/test_sums.py::test_one")
    assert not in_the_suite("tests/engine/test_sums.py::test_one", CLUSTER)
    assert not in_the_suite("tests/browser/test_unknown.py::test_one")


def test_names_take_and_leave_out_files_tests_and_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    file = "tests/engine/test_a.py"
    monkeypatch.setattr(circles, "TAKEN", (f"{file}::test_one", f"{file}::test_some[a]"))
    monkeypatch.setattr(circles, "LEFT_OUT", ("tests/planning/test_b.py", "tests/cluster/"))
    assert in_the_suite(f"{file}::test_one[a]", CLUSTER)
    assert in_the_suite(f"{file}::test_some[a]", CLUSTER)
    assert not in_the_suite(f"{file}::test_some[b]", CLUSTER)
    assert not in_the_suite(f"{file}::test_one_more", CLUSTER)
    monkeypatch.setattr(circles, "TAKEN", (file,))
    monkeypatch.setattr(circles, "LEFT_OUT", (f"{file}::test_one",))
    assert in_the_suite(f"{file}::test_other", CLUSTER)
    assert not in_the_suite(f"{file}::test_one[a]", CLUSTER)
    monkeypatch.setattr(circles, "LEFT_OUT", ("tests/planning/test_b.py", "tests/cluster/"))
    assert not in_the_suite("tests/planning/test_b.py::test_one")
    assert not in_the_suite("tests/cluster/test_c.py::test_one")
    assert is_left_out("tests/planning/test_b.py")
    assert not is_left_out(file)


def test_what_is_named_is_there() -> None:
    for name in (*TAKEN, *LEFT_OUT):
        file, _, test = name.partition("::")
        assert (ROOT / file).exists(), name
        assert not test or f"def {test.partition('[')[0]}(" in (ROOT / file).read_text(), name


def test_what_is_taken_would_be_left_out_otherwise() -> None:
    assert all(name.startswith((*ENGINE_ROOMS, *PAGE_ROOMS)) for name in TAKEN)


class _Item:
    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid


class _Config:
    class hook:  # noqa: N801
        @staticmethod
        def pytest_deselected(items: list[_Item]) -> None:
            """Take what is left out."""


class _Report:
    def __init__(self, nodeid: str, passed: bool) -> None:
        self.nodeid, self.passed, self.failed, self.when = nodeid, passed, not passed, "call"


def _left(plugin: ResumedPlugin) -> list[str]:
    items = [_Item(name) for name in "abcd"]
    plugin.pytest_collection_modifyitems(_Config, items)  # type: ignore[arg-type]
    return [item.nodeid for item in items]


def test_a_run_goes_on_and_begins_with_what_failed(tmp_path: Path) -> None:
    file = tmp_path / "build" / "passed.json"
    first = KeptPlugin(file, "tree")
    assert _left(first) == ["a", "b", "c", "d"]
    for name, passed in (("a", True), ("b", True), ("d", False)):
        first.pytest_runtest_logreport(_Report(name, passed))  # type: ignore[arg-type]
    assert _left(ResumedPlugin(file, "tree")) == ["d", "c"]
    assert _left(ResumedPlugin(file, "another")) == ["d", "a", "b", "c"]
    assert json.loads(file.read_text())["failed"] == ["d"]


def test_one_process_alone_keeps_how_tests_end() -> None:
    workers = [SimpleNamespace(workerinput={}), SimpleNamespace(workerinput={})]
    plugins = [plugin_of(config) for config in (SimpleNamespace(), *workers)]  # type: ignore[arg-type]
    keeps = [hasattr(plugin, "pytest_runtest_logreport") for plugin in plugins]
    assert keeps == [True, False, False]


def test_every_change_is_another_tree(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    assert tree_of(tmp_path) == "", "a folder without git"
    git("init")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-m", "a")
    trees = [tree_of(tmp_path)]
    for name, text in (("a", "2"), ("b", "1")):
        (tmp_path / name).write_text(text)
        trees.append(tree_of(tmp_path))
    assert len({*trees}) == 3
