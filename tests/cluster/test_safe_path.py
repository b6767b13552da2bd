"""No process that mimokit starts imports what others have put into the working directory."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from mimokit.import_path import handed_on, module_command
from tests.commands import run_to_end
from tests.rows import rows

ROOT = Path(__file__).parents[2]
PLANTED = ("json", "sitecustomize", "usercustomize", "psutil", "timeit", "pdb", "mimokit")
"""Of the standard library and of what is installed; some are imported when engines are there."""
NOT_INSTALLED = ("apex", "transformer_engine", "flash_attn")
"""What Megatron uses where it is installed."""
MARK = "import pathlib\npathlib.Path(__file__).with_suffix('.ran').touch()\n"
OWN_LOSS = """
import own_helper

def loss(loss_mask, losses):
    return (losses * loss_mask).sum(), own_helper.tokens(loss_mask)
"""
OWN_HELPER = "def tokens(loss_mask):\n    return loss_mask.sum()\n"
CLIENT = """
import sys
sys.path.append("")  # as in a notebook

import own_helper
from mimokit.cluster import EngineCluster

def paths():
    import pdb, sys, timeit  # none has been imported before
    import own_loss
    return sys.path

with EngineCluster(1, launch={launch!r}, preload={preload}, progress=False) as cluster:
    for value in cluster.run(own_helper.tokens, __import__("torch").ones(3)):
        print("tokens", int(value))
    for path in cluster.run(paths):
        print("at the end", path[-1] == "")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with files of somebody else, and with modules of the user's."""
    for name in PLANTED:
        (tmp_path / f"{name}.py").write_text(MARK)
    (tmp_path / "own_loss.py").write_text(OWN_LOSS)
    (tmp_path / "own_helper.py").write_text(OWN_HELPER)
    return tmp_path


def executed_in(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.ran"))


def _called(folder: Path, *arguments: str) -> str:
    """Call a Python of the user's in a folder, which is searched for nothing."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'widgets'}"}
    ended = run_to_end([sys.executable, "-P", *arguments], cwd=folder, env=environment, timeout=600)
    assert executed_in(folder) == []
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def _config(folder: Path, **runtime: object) -> str:
    content = {
        "extends": str(ROOT / "configs" / "digits_homogeneous.yaml"),
        "model": {
            "module_parallelisms": {
                name: {"tensor_parallel": 1, "data_parallel": 2}
                for name in ("images", "language_module")
            }
        },
        "runtime": {"num_iterations": 2, "warmup_iterations": 1, **runtime},
    }
    (folder / "layout.yaml").write_text(yaml.safe_dump(content))
    return "layout.yaml"


@pytest.mark.parametrize(("launch", "preload"), [("fork", ["own_loss"]), ("plain", [])])
def test_engines_find_modules_of_the_user_alone(
    launch: str, preload: Sequence[str], folder: Path
) -> None:
    (folder / "elsewhere").mkdir()
    script = folder / "elsewhere" / "client.py"
    script.write_text(CLIENT.format(launch=launch, preload=preload))
    assert _called(folder, str(script)).split("\n")[:2] == ["tokens 3", "at the end True"]


def test_a_run_finds_the_loss_of_its_config_alone(folder: Path) -> None:
    for name in NOT_INSTALLED:
        (folder / f"{name}.py").write_text(MARK)
    file = _config(folder, loss_func="own_loss:loss")
    _called(folder, "-m", "mimokit", "run", file, "--results-dir", "results")
    assert list(folder.glob("results/*/layout/metrics.csv"))


def test_verify_searches_the_working_directory_for_nothing(folder: Path) -> None:
    for name in NOT_INSTALLED:
        (folder / f"{name}.py").write_text(MARK)
    _called(folder, "-m", "mimokit", "verify", _config(folder), "--steps", "1")


def test_a_new_process_executes_nothing_of_the_working_directory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where this one, as a notebook, searches it first."""
    monkeypatch.setattr("sys.path", ["", *sys.path])
    environment = {**os.environ, "PYTHONPATH": handed_on()}
    command = module_command("timeit", "-n", "1", "pass")
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    assert executed_in(folder) == []


STARTERS = {"Popen", "run", "call", "check_call", "check_output", "execv", "execve", "spawnv"}
STARTS = re.compile(r"sys\.executable|[\"']-[mc][\"']|subprocess|psutil|\bos\.")
"""What a file has in its text that starts a process; to look at all others takes seconds."""
GIT = ("mimokit/experiment/results/info.py", "subprocess.run(command)")
"""The one process that is no Python."""


def unsafe_starts(source: str) -> Iterator[str]:
    """Yield what starts a process, or names an interpreter, past `module_command`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and node.value in ("-m", "-c"):
            yield repr(node.value)
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.executable":
            yield "sys.executable"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            name = ast.unparse(node.func)
            module = name.partition(".")[0]
            starts = module in ("subprocess", "psutil", "os") and node.func.attr in STARTERS
            if starts and not ast.unparse(node.args[0]).startswith("module_command("):
                yield f"{name}({ast.unparse(node.args[0])})"


def test_processes_are_started_by_the_one_command_line() -> None:
    found = [
        (str(file.relative_to(ROOT)), start)
        for folder in ("mimokit", "widgets")
        for file in sorted((ROOT / folder).rglob("*.py"))
        if file != ROOT / "mimokit" / "import_path.py"
        if STARTS.search(source := file.read_text())
        for start in unsafe_starts(source)
    ]
    assert found == [GIT]


@rows(
    "source",
    "subprocess.Popen([sys.executable, '-m', 'json'])",
    "psutil.Popen(command)",
    "command = [python, '-c', 'pass']",
    "os.execv(path, arguments)",
)
def test_a_process_that_is_started_otherwise_is_seen(source: str) -> None:
    assert list(unsafe_starts(source))
