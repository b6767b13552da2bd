"""Which Pythons are supported, and which one `make` takes."""

import os
import re
import shutil
import sys
import tomllib
from pathlib import Path

import pytest

from mimokit.engine.megatron.versions import NEWEST, OLDEST
from tests.commands import run_to_end
from tests.rows import rows
from tests.test_rooms import pins_of

ROOT = Path(__file__).parents[1]
SUPPORTED = ["3.13", "3.12", "3.11"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def stub(folder: Path, version: str, name: str = "", **pip: str) -> Path:
    """Write an interpreter that answers as a Python of a version does; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / (name or f"python{version}")
    links = pip.get("find_links", "")
    file.write_text(
        f'#!/bin/sh\nif [ "$1" = -m ]; then echo "global.find-links=\'{links}\'"; '
        f"else echo {version}; fi\n"
    )
    file.chmod(0o755)
    return file


def broken(folder: Path, version: str) -> None:
    """Write a shim of a version that is not selected: it fails."""
    stub(folder, version).write_text("#!/bin/sh\necho 'command not found' >&2\nexit 127\n")


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder with the programs that the script calls, and no Python."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in ("sh", "ls", "sed", "sort", "tail", "head", "tr", "grep", "basename", "dirname"):
        (folder / name).symlink_to(shutil.which(name) or name)
    return folder


def asked(tools: Path, *question: str, python: str = "") -> str:
    """Ask the script with only the Pythons of the test; return its answer."""
    home = tools.parent
    environment = {"PATH": f"{tools}:{home / 'bin'}", "PYTHON": python, "HOME": str(home)}
    command = [str(tools / "sh"), str(ROOT / "make" / "pythons.sh"), *question]
    done = run_to_end(command, env=environment)
    assert not done.stderr
    return done.stdout.strip()


def test_one_range_of_pythons_is_said_everywhere(tools: Path) -> None:
    assert asked(tools, "supported").split() == SUPPORTED
    assert PROJECT["requires-python"] == ">=3.11,<3.14"
    code = (ROOT / "mimokit" / "__init__.py").read_text()
    assert re.findall(r"\(3, (\d+)\)", code) == ["11", "14"]


def test_the_constraints_name_the_ends_of_the_tested_megatron_cores() -> None:
    pinned = {
        pin.partition("==")[2]
        for version in SUPPORTED
        for pin in pins_of(f"py{version.replace('.', '')}.txt")
        if pin.startswith("megatron-core==")
    }
    assert pinned == {OLDEST, NEWEST}
    wanted = {
        entry
        for entry in PROJECT["optional-dependencies"]["run"]
        if entry.startswith("megatron-core")
    }
    assert wanted == {
        f"megatron-core=={OLDEST}; python_version < '3.12'",
        f"megatron-core=={NEWEST}; python_version >= '3.12'",
    }


def test_the_newest_is_taken_that_runs(tools: Path, tmp_path: Path) -> None:
    stub(tmp_path / "bin", "3.11")
    stub(tmp_path / "bin", "3.12")
    stub(tmp_path / "bin", "3.14")
    broken(tmp_path / "bin", "3.13")
    assert asked(tools, "there").split() == ["3.12", "3.11"]
    assert asked(tools, "choose") == "3.12"


def test_pythons_of_pyenv_are_found_though_they_are_not_selected(
    tools: Path, tmp_path: Path
) -> None:
    broken(tmp_path / "bin", "3.13")
    versions = tmp_path / ".pyenv" / "versions"
    for patch in ("3.13.2", "3.13.10"):
        stub(versions / patch / "bin", "3.13")
    newest = versions / "3.13.10" / "bin" / "python3.13"
    assert asked(tools, "path", "3.13") == str(newest)
    assert asked(tools, "choose", python="python3.13") == "3.13"


def test_a_torch_without_cuda_at_hand_is_taken_first(tools: Path, tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (pinned,) = (pin[7:] for pin in pins_of("shared.txt") if pin.startswith("torch=="))
    for version in SUPPORTED:
        stub(tmp_path / "bin", version, find_links=str(wheels))
    (wheels / "torch-2.5.0+cpu-cp312-cp312-linux_x86_64.whl").touch()  # not the pinned one
    assert asked(tools, "choose") == "3.13"
    (wheels / f"torch-{pinned}+cpu-cp311-cp311-manylinux_2_28_x86_64.whl").touch()
    assert asked(tools, "choose") == "3.11"
    assert asked(tools, "choose", python="python3.12") == "3.12"


@pytest.mark.parametrize("version", ["3.10", "3.14"])
def test_an_unsupported_python_is_refused_by_make(
    version: str, tools: Path, tmp_path: Path
) -> None:
    told = f"mimokit needs Python 3.11 to 3.13, but PYTHON=python{version} is Python {version}"
    assert asked(tools, "choose", python=f"python{version}") == f"error: {told}"
    environment = {**os.environ, "PYTHON": f"python{version}"}
    environment.pop("MAKEFLAGS", None)  # `make test PYTHON=…` hands its Python down in it
    done = run_to_end(["make", "--dry-run", "demo"], cwd=ROOT, env=environment)
    assert done.returncode == 2
    assert done.stderr.strip().endswith(f"*** {told}.  Stop.")


def test_a_machine_without_a_python_is_told_what_is_missing(tools: Path, tmp_path: Path) -> None:
    stub(tmp_path / "bin", "3.10")
    assert asked(tools, "choose").startswith(
        "error: mimokit needs Python 3.11 to 3.13, and none of them runs here; install one"
    )
    assert asked(tools, "choose", python=str(tmp_path / "missing")).startswith(
        f"error: PYTHON={tmp_path / 'missing'} does not run here"
    )


@rows("version", (3, 10, 13), (3, 14, 0))
def test_an_unsupported_python_is_refused_by_import(version: tuple[int, int, int]) -> None:
    code = f"import sys; sys.version_info = {version}; import mimokit"
    done = run_to_end([sys.executable, "-c", code], cwd=ROOT)
    named = ".".join(map(str, version))
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: mimokit needs Python 3.11 to 3.13, but this is Python {named}."
    )


def test_other_pythons_are_tested_or_named_as_absent(tmp_path: Path, tools: Path) -> None:
    """Run the script of `make test-versions` where 3.13 passes, 3.12 fails and 3.11 is chosen."""
    for name in ("cat", "tee", "mkdir"):
        (tools / name).symlink_to(shutil.which(name) or name)
    for folder in ("make", "constraints"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    stub(tmp_path / "bin", "3.11")
    stub(tmp_path / "bin", "3.12")
    pytest_stub = stub(tmp_path / ".venv-3.12" / "bin", "3.12", "python")
    last = "=== 1 failed, 2 passed in 3.00s ==="
    pytest_stub.write_text(f'#!/bin/sh\necho "$*"\necho "{last}"\nexit 1')
    environment = {"PATH": f"{tools}:{tmp_path / 'bin'}", "HOME": str(tmp_path)}
    command = [str(tools / "sh"), "make/test_versions.sh", "3.11"]
    done = run_to_end(command, cwd=tmp_path, env=environment)
    assert done.returncode == 1
    named = re.findall(r"tests/[\w/.]+", done.stdout)
    assert {"tests/test_claims.py", "tests/cluster/test_running.py"} < set(named)
    assert all((ROOT / name).exists() for name in named)
    assert done.stdout.splitlines()[-3:] == [
        "Python 3.13, megatron-core 0.19.2: absent",
        "Python 3.12, megatron-core 0.19.2:",
        last,
    ]
