"""What is installed from a wheel is complete and works without the source tree."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from setuptools import find_packages

ROOT = Path(__file__).parents[1]
PACKAGES = {"mimokit": ROOT / "mimokit", "mimokit_widgets": ROOT / "widgets" / "mimokit_widgets"}
BUILD_FILES = ("pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that a wheel of a copy of the sources was installed into."""
    folder = tmp_path_factory.mktemp("wheel")
    source, site = folder / "source", folder / "site"
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("mimokit", "widgets"):
        shutil.copytree(ROOT / name, source / name, ignore=unwanted)
    for name in BUILD_FILES:
        shutil.copy(ROOT / name, source)
    _pip("wheel", "--no-build-isolation", "--wheel-dir", str(folder), str(source))
    (wheel,) = folder.glob("mimokit-*.whl")
    _pip("install", "--target", str(site), str(wheel))
    return site


def _pip(command: str, *arguments: str) -> None:
    options = ["--no-deps", "--no-index", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", command, *options, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _run(installed: Path, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(
        command, cwd=installed.parent, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _files(folder: Path) -> set[str]:
    return {
        file.relative_to(folder).as_posix()
        for file in folder.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }


def test_tests_and_benchmarks_are_not_installed() -> None:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    finds = told["packages"]["find"]
    assert installed_packages(finds["where"], finds["include"]) == set(PACKAGES)
    assert {"tests", "benchmarks"} < installed_packages(finds["where"], ["*"])


def installed_packages(folders: list[str], include: list[str]) -> set[str]:
    """Return the outermost packages that setuptools finds."""
    return {
        name.partition(".")[0]
        for folder in folders
        for name in find_packages(ROOT / folder, include=include)
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_every_file_of_the_tree_is_installed(installed: Path, package: str) -> None:
    expected = _files(PACKAGES[package])
    assert _files(installed / package) == expected
    kinds = {Path(file).suffix for file in expected}
    assert kinds >= {".py", ".typed", ".json" if package == "mimokit" else ".js"}


def test_a_fresh_process_finds_presets_models_and_gpus(installed: Path) -> None:
    code = (
        "import json, mimokit; "
        "print(json.dumps([mimokit.__file__, sorted(mimokit.preset_names()), "
        "mimokit.load_hardware('h100').name, "
        "mimokit.plan('preset:llava_7b_colocated').world_size]))"
    )
    file, presets, gpu, ranks = json.loads(_run(installed, sys.executable, "-c", code))
    assert Path(file).is_relative_to(installed)
    assert "llava_7b_colocated" in presets
    assert "H100" in gpu
    assert ranks > 1


def test_the_installed_command_plans(installed: Path) -> None:
    command = [str(installed / "bin" / "mimokit"), "plan", "preset:llava_7b_colocated", "--json"]
    plan = json.loads(_run(installed, sys.executable, *command))
    assert set(plan["modules"]) == {"images", "language_module"}
