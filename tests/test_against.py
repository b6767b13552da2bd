"""This tree against a tag: a slow-down is shown, and what cannot be measured is refused before."""

import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.against.cases import CASES
from benchmarks.against.history import record, rows
from benchmarks.against.measuring import CPU, Case, Figures, in_turn, prepare
from benchmarks.against.ratios import ratio, table
from benchmarks.against.tags import RefusedTag, check_packages, checked_out
from tests.commands import run_to_end

PINS = f"constraints/py{sys.version_info.major}{sys.version_info.minor}.txt"
SLOW = "for number in range(10_000_000):\n    pass\n"
"""Ten times the CPU of an interpreter that starts."""
COMMAND = Case("import", ("-c", "import mimokit"), 1)
PRINTED = Case("own", ("-c", "import mimokit; print(mimokit.FIGURES)"), 2, prints=True)


def git(folder: Path, *arguments: str) -> None:
    """Run git in a folder, as somebody."""
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository with a tag, and a tree that is slower."""
    root = tmp_path / "repository"
    for folder in ("mimokit", "widgets", "benchmarks", "constraints"):
        (root / folder).mkdir(parents=True)
    figures = """'{"step": {"CPU s": 2.0}}'"""
    (root / "mimokit" / "__init__.py").write_text(f"FIGURES = {figures}\n")
    (root / "pyproject.toml").write_text('[project]\ndependencies = ["pytest"]\n')
    (root / PINS).write_text(f"--constraint shared.txt\npytest=={pytest.__version__}\n")
    (root / "constraints" / "shared.txt").write_text("not-installed-here==1.0\n")
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "Begin")
    git(root, "tag", "v1")
    (root / "mimokit" / "__init__.py").write_text(SLOW + f"FIGURES = {figures.replace('2', '3')}\n")
    return root


def measured(root: Path) -> dict[str, Figures]:
    check_packages(root, "v1")
    with checked_out(root, "v1") as other:
        assert root not in other.parents
        prepare(other)
        found = in_turn((COMMAND, PRINTED), {"v1": other, "this tree": root})
    assert not other.exists()
    return found


def test_a_planted_slow_down_is_shown(repository: Path, tmp_path: Path) -> None:
    figures = measured(repository)
    step = "step", "CPU s"
    assert figures["v1"][step] == (2.0, 2.0)
    assert ratio(figures["v1"][step], figures["this tree"][step]) == 1.5
    started = "import", CPU
    assert ratio(figures["v1"][started], figures["this tree"][started]) > 2
    shown = io.StringIO()
    Console(file=shown, width=120).print(table(figures, "v1"))
    (line,) = [line for line in shown.getvalue().splitlines() if "step" in line]
    assert "1.50" in line
    assert "costs more" in line
    history = tmp_path / "history.json"
    record(history, "v1", figures["v1"])
    assert rows(history)["v1"]["figures"]["step"] == {"CPU s": 2.0}


def test_sigterm_leaves_nothing_behind(repository: Path) -> None:
    wait = "with checked_out(Path(sys.argv[1]), 'v1') as t: print(t, flush=True); time.sleep(60)"
    imports = "import sys, time; from pathlib import Path; from benchmarks.against.tags import *"
    command = [sys.executable, "-c", f"{imports}\n{wait}", str(repository)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        tree = Path(process.stdout.readline().strip())
        assert (tree / "pyproject.toml").exists()
        process.terminate()
        assert process.wait() == 143
    assert not tree.exists()
    assert not (repository / ".git" / "worktrees").exists()


def test_what_costs_the_same_is_not_called_out() -> None:
    same = {("step", CPU): (2.0, 2.0)}
    shown = io.StringIO()
    Console(file=shown).print(table({"v1": same, "this tree": {("step", CPU): (2.04, 2.04)}}, "v1"))
    assert "1.02" in shown.getvalue()
    assert "costs more" not in shown.getvalue()


def test_a_tag_that_does_not_exist_is_refused(repository: Path) -> None:
    with pytest.raises(RefusedTag, match=r"^Tag 'v2': it does not exist; choose one of v1\.$"):
        check_packages(repository, "v2")


def test_a_tag_that_needs_other_packages_is_refused(repository: Path) -> None:
    (repository / PINS).write_text("pytest==0.1\n")
    git(repository, "commit", "--quiet", "--all", "--message", "Pin another")
    git(repository, "tag", "v0")
    with pytest.raises(RefusedTag, match=r"^Tag 'v0': it needs pytest 0\.1, which this"):
        check_packages(repository, "v0")
    git(repository, "rm", "--quiet", PINS)
    git(repository, "commit", "--quiet", "--message", "Support no Python")
    git(repository, "tag", "vnone")
    with pytest.raises(RefusedTag, match="it has no constraints/py"):
        check_packages(repository, "vnone")


def test_nothing_is_measured_of_a_tag_that_is_refused() -> None:
    command = [sys.executable, "-m", "benchmarks.against", "v-no-such"]
    done = run_to_end(command, cwd=Path(__file__).parents[1])
    assert done.returncode == 1
    assert done.stderr.startswith("Tag 'v-no-such': it does not exist")
    assert done.stderr.count("\n") == 1


def test_a_row_per_tag_has_what_is_measured() -> None:
    file = Path(__file__).parents[1] / "benchmarks" / "history.json"
    commands = {case.name for case in CASES if not case.prints}
    for tag, row in rows(file).items():
        assert commands <= set(row["figures"]), tag
