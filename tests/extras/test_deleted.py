"""The core works where rooms beside it are deleted."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mimokit.config import StrategyConfig
from mimokit.extra_rooms import FOLDER
from tests.layouts import digits_config

ROOMS = sorted(file.parent.name for file in FOLDER.glob("*/__init__.py"))
NAMES = """
import mimokit, mimokit_widgets
from mimokit import analysis, charts, cluster, engine, experiment
for face in (mimokit, mimokit_widgets, analysis, charts, cluster, engine, experiment):
    for name in face.__all__:
        getattr(face, name)
try:
    mimokit.watch
except ImportError as error:
    print(error)
"""


def without(rooms: list[str], folder: Path) -> Path:
    """Copy the packages without some rooms beside the core."""
    for package in (FOLDER.parent, FOLDER.parents[1] / "widgets" / "mimokit_widgets"):
        unwanted = shutil.ignore_patterns("__pycache__")
        shutil.copytree(package, folder / package.name, ignore=unwanted)
    for room in rooms:
        shutil.rmtree(folder / "mimokit" / "extras" / room)
    return folder


def run(folder: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, *words]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("rooms", [ROOMS, *([room] for room in ROOMS)], ids=" ".join)
def test_the_core_plans_and_proves_without(rooms: list[str], tmp_path: Path) -> None:
    folder = without(rooms, tmp_path)
    config = digits_config((1, 2), (2, 1), num_iterations=3).save(tmp_path / "small.yaml")
    mimokit = "-m", "mimokit"
    assert ("compare" in run(folder, *mimokit, "--help")) == ("foreign_loops" not in rooms)
    assert json.loads(run(folder, *mimokit, "plan", str(config), "--json"))
    proved = json.loads(run(folder, *mimokit, "verify", str(config), "--steps", "1", "--json"))
    assert proved["passed"]
    told = run(folder, "-c", NAMES)
    sentence = "mimokit.watch needs the folder mimokit/extras/foreign_loops, which is not there"
    assert told.startswith(sentence) == ("foreign_loops" in rooms)


@pytest.mark.parametrize(
    ("room", "words", "sentence"),
    [
        ("shrinking", ["verify", "preset:llava_7b_colocated", "--shrink"], "--shrink needs"),
        ("strategies", ["plan", "replicas.yaml"], "Section 'strategy' needs"),
    ],
)
def test_what_needs_a_room_says_so(
    tmp_path: Path, room: str, words: list[str], sentence: str
) -> None:
    folder = without([room], tmp_path)
    config = digits_config((1, 2), (2, 1))
    config.strategy = StrategyConfig(name="diloco", replicas=2)
    config.save(tmp_path / "replicas.yaml")
    command = [sys.executable, "-m", "mimokit", *words]
    environment = {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert f"{sentence} the folder mimokit/extras/{room}" in done.stderr
