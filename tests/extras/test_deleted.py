"""The core works where rooms beside it are deleted."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from mimokit.config import StrategyConfig
from mimokit.extra_rooms import ROOMS
from tests.commands import run_to_end
from tests.layouts import digits_config
from tests.rows import rows

ROOT = Path(__file__).parents[2]
ASKED = {
    "foreign_loops": "watch",
    "generation": "experiment.ShardedModel",
    "shrinking": "experiment.explain_shrunk",
    "strategies": "experiment.Trainer",
    "search": "search",
    "samples": "predict_over_samples",
    "formats": "interop.to_slurm",
    "calibration": "calibrate",
    "resume_check": "experiment.resume_check",
    "culprit": "experiment.explain",
    "stepper": "experiment.Stepper",
}
"""Room -> a public name that it has, inside of `mimokit`."""
SAY_WHAT_THEY_NEED = {"culprit": {"ShrunkReport", "explain_shrunk"}}
"""Deleted room -> names of other rooms, which need it."""
COMMANDS = {
    "foreign_loops": "compare",
    "generation": "generate",
    "shrinking": "shrink",
    "strategies": "strategy",
    "search": "search",
    "samples": "measure",
    "formats": "import",
    "calibration": "calibrate",
}
NAMES = """
import json, os, sys
import altair, anywidget, ipyparallel, megatron.core.transformer, pandas, scipy.optimize


def names_without(folder):
    sys.path.insert(0, folder)
    import mimokit, mimokit_widgets
    from mimokit import analysis, charts, cli, cluster, engine, experiment, interop, planning
    from mimokit import prediction
    from mimokit.cli.main import app
    from typer.main import get_command

    assert mimokit.__file__.startswith(folder)
    told, needs = {}, set()
    for face in (
        mimokit, mimokit_widgets, analysis, charts, cli, cluster, engine, experiment, interop,
        planning, prediction,
    ):
        for name in face.__all__:
            try:
                getattr(face, name)
            except ImportError as error:
                assert type(error).__name__ == "MissingRoomError", repr(error)
                needs.add(name)
    for dotted in json.loads(sys.argv[1]):
        face, _, name = f"mimokit.{dotted}".rpartition(".")
        try:
            getattr(sys.modules[face], name)
        except ImportError as error:
            told[dotted] = str(error)
    print(json.dumps([sorted(needs), told, get_command(app).list_commands(None)]), flush=True)


for folder in sys.argv[2:]:
    child = os.fork()
    if not child:
        names_without(folder)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, folder
"""
"""What is imported from outside is imported once: each folder has a fork, which prints a line."""


def without(rooms: list[str], folder: Path) -> Path:
    """Copy the packages without some rooms beside the core; compiled files stay good."""
    for package in (ROOT / "mimokit", ROOT / "widgets" / "mimokit_widgets"):
        shutil.copytree(package, folder / package.name)
    for place in (folder / place for room in rooms for place in ROOMS[room]):
        shutil.rmtree(place) if place.is_dir() else place.with_suffix(".py").unlink()
    return folder


def run(folder: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, *words]
    done = run_to_end(command, cwd=folder, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def answers_without(folders: list[Path]) -> list[tuple[list[str], dict[str, str], list[str]]]:
    """Return for each folder names that say they need a room, what those asked say, commands."""
    script = "-c", NAMES, json.dumps([*ASKED.values()]), *map(str, folders)
    return [json.loads(line) for line in run(folders[0], *script).splitlines()]


def test_the_core_plans_and_proves_without_any(tmp_path: Path) -> None:
    folder = without(list(ROOMS), tmp_path)
    config = digits_config((1, 2), (2, 1), num_iterations=3).save(tmp_path / "small.yaml")
    assert json.loads(run(folder, "-m", "mimokit", "plan", str(config), "--json"))
    verify = "-m", "mimokit", "verify", str(config), "--steps", "1", "--json"
    assert json.loads(run(folder, *verify))["passed"]
    (_, told, _) = answers_without([folder])[0]
    assert told.keys() == set(ASKED.values())


def test_all_names_and_commands_but_those_of_a_room_are_there_without_it(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    answers = answers_without([without([room], tmp_path / room) for room in ROOMS])
    for room, (needs, told, commands) in zip(ROOMS, answers, strict=True):
        with subtests.test(room):
            lacking = [each for each, name in COMMANDS.items() if name not in commands]
            assert lacking == [room] * (room in COMMANDS)
            assert set(needs) == SAY_WHAT_THEY_NEED.get(room, set())
            name = ASKED[room]
            assert told[name] == (
                f"mimokit.{name} needs {ROOMS[room][0]}, which is not there; "
                "install all of mimokit."
            )
            assert {each.rpartition(".")[2] for each in told.keys() - {name}} <= set(needs)


@rows(
    "room, words, sentence",
    ("shrinking", ["verify", "preset:llava_7b_colocated", "--shrink"], "--shrink needs"),
    ("strategies", ["plan", "replicas.yaml"], "Section 'strategy' needs"),
    ("search", ["search", "preset:llava_7b_colocated", "--gpus", "8"], "mimokit search needs"),
    ("search", ["plan", "config.json", "--gpus", "8"], "Model 'config.json' needs"),
    ("formats", ["export", "small.yaml", "--to", "slurm"], "mimokit.interop.to_slurm needs"),
    ("resume_check", ["verify", "small.yaml", "--resume-check"], "resume_check needs"),
    ("culprit", ["verify", "replicas.yaml", "--explain"], "--explain needs"),
)
def test_what_needs_a_room_says_so(
    tmp_path: Path, room: str, words: list[str], sentence: str
) -> None:
    folder = without([room], tmp_path)
    config = digits_config((1, 2), (2, 1))
    config.save(tmp_path / "small.yaml")
    config.strategy = StrategyConfig(name="diloco", replicas=2)
    config.save(tmp_path / "replicas.yaml")
    command = [sys.executable, "-m", "mimokit", *words]
    environment = {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200"}
    done = run_to_end(command, cwd=folder, env=environment)
    assert done.returncode == 2
    assert f"{sentence} {ROOMS[room][0]}" in done.stderr
