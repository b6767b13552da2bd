"""Seconds of tests are kept, those of living children too, and a room that takes too many fails."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.budget import SHARES, excesses
from tests.commands import run_to_end
from tests.rows import rows
from tests.seconds import main, room_of

ROOT = Path(__file__).parents[1]

CONFTEST = """
from pathlib import Path
from tests.budget import SHARES
from tests.seconds import SecondsPlugin

SHARES.clear()
SHARES.update({shares})

def pytest_addoption(parser):
    parser.addoption("--suite", action="store_true")

def pytest_configure(config):
    config.pluginmanager.register(SecondsPlugin(config, Path(__file__).parent / "seconds.json"))
"""
BURN = "import time\nwhile time.process_time() < {seconds}: pass\n"
QUICK = "def test_quick():\n    pass\n"
SLOW = f"""
import subprocess, sys
import pytest

@pytest.fixture(scope="module")
def child():
    code = {BURN.format(seconds=0.5)!r} + "print('burnt', flush=True)\\ninput()"
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
        yield process
        process.communicate("")

def test_slow(child):
    assert child.stdout.readline() == "burnt\\n"

def test_after(child):
    assert child.poll() is None
"""


def run(folder: Path, shares: dict[str, float], *options: str) -> tuple[int, str, dict[str, Any]]:
    """Run a planted suite; return the status, what it says and what it has kept."""
    for name, text in (("quick", QUICK), ("slow", SLOW)):
        room = folder / "tests" / name
        room.mkdir(parents=True, exist_ok=True)
        room.joinpath(f"test_{name}.py").write_text(text)
    folder.joinpath("conftest.py").write_text(CONFTEST.format(shares=shares))
    folder.joinpath("pytest.ini").write_text("[pytest]\ntestpaths = tests\n")
    command = [sys.executable, "-m", "pytest", "--suite", "-q", "-p", "no:cacheprovider", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTEST_XDIST_WORKER", None)
    done = run_to_end(command, cwd=folder, env=environment)
    kept = json.loads(folder.joinpath("seconds.json").read_text())
    return done.returncode, done.stdout + done.stderr, kept


def test_a_room_that_takes_more_than_its_share_fails_the_suite(tmp_path: Path) -> None:
    """Two workers measure, one each; what one of them waits for burns in its child."""
    workers = ("--numprocesses", "2", "--dist", "loadfile")
    status, told, kept = run(tmp_path, {"quick": 90, "slow": 10}, *workers)
    assert "3 passed" in told
    assert status == 1
    assert "tests/slow takes" in told
    assert "and may take 15.0 %" in told
    assert "tests/quick takes" not in told
    assert kept["whole"]
    assert set(kept["collection"]) == {"gw0", "gw1"}
    assert all(cpu > 0 for cpu in kept["collection"].values())
    assert set(kept["rooms"]) == {"quick", "slow"}
    assert kept["files"]["tests/slow/test_slow.py"] == kept["rooms"]["slow"]
    slow, after = (
        kept["tests"][f"tests/slow/test_slow.py::test_{name}"]["cpu"] for name in ("slow", "after")
    )
    assert slow > 0.4
    assert after < 0.4, "the child's seconds count once"


def test_a_room_within_its_share_passes(tmp_path: Path) -> None:
    status, told, _ = run(tmp_path, {"quick": 20, "slow": 80})
    assert status == 0, told
    assert "| slow |" in told


@rows("selection", ["-k", "slow"], ["tests/slow"])
def test_a_part_of_the_suite_has_no_budget(tmp_path: Path, selection: list[str]) -> None:
    status, told, kept = run(tmp_path, {"quick": 90, "slow": 10}, *selection)
    assert status == 0, told
    assert "| slow |" not in told
    assert not kept["whole"]
    assert "slow" in kept["rooms"]


def test_a_room_may_exceed_its_share_by_its_margin() -> None:
    shares = {"large": 80.0, "small": 20.0}
    assert excesses({"large": 7.0, "small": 3.0}, shares) == []
    (told,) = excesses({"large": 6.9, "small": 3.1}, shares)
    assert told.startswith("tests/small takes 31.0 % of the CPU seconds and may take 30.0 %")


def test_a_room_without_a_share_may_take_little() -> None:
    assert excesses({"large": 99.1, "new": 0.9}, {"large": 100.0}) == []
    assert excesses({"large": 98, "new": 2}, {"large": 100.0})[0].startswith(
        "tests/new takes 2.0 %"
    )


def test_shares_are_of_rooms_that_exist() -> None:
    rooms = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()}
    assert set(SHARES) <= {*rooms, "tests"}
    assert not SHARES or sum(SHARES.values()) == pytest.approx(100, abs=1)
    assert room_of("tests/test_units.py::test_a[x/y]") == "tests"
    assert room_of("tests/engine/verify/test_a.py::test_a") == "engine"


def test_the_last_run_is_printed_as_a_budget(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = {"wall": 2.0, "cpu": 3.0}
    told = {"whole": True, "tests": {"tests/a/test_a.py::test_a": one}, "collection": {"gw0": 7.5}}
    file = tmp_path / "seconds.json"
    file.write_text(json.dumps(told))
    main(file)
    printed = capsys.readouterr().out
    assert "CPU seconds to collect: gw0 7.5" in printed
    assert "| a | 3 | 100.0% | 2 |" in printed
    assert 'SHARES: dict[str, float] = {\n    "a": 100.0,\n}' in printed
    with pytest.raises(SystemExit, match="is not there: run the tests first"):
        main(tmp_path / "none.json")
