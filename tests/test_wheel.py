"""What is installed from a wheel is complete, and its core runs without torch and Megatron-Core."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from setuptools import find_packages

from mimokit.pip_extras import IMPORTED, NotInstalledError, asked_for
from tests.commands import run_to_end
from tests.rows import rows

ROOT = Path(__file__).parents[1]
PACKAGES = {"mimokit": ROOT / "mimokit", "mimokit_widgets": ROOT / "widgets" / "mimokit_widgets"}
BUILD_FILES = ("pyproject.toml", "README.md", "LICENSE")
PLANNED = """
import mimokit
from mimokit import charts
from mimokit_widgets import FrameBalance, LayoutPlanner, RankMap
config = "preset:llava_7b_colocated"
assert mimokit.plan(config).world_size == 8
assert mimokit.plan("preset:digits_videos").world_size == 2
assert mimokit.predict(config, gpu="h100").seconds > 0
found = mimokit.search(config, gpus=64, hardware="h100")
assert found.best.seconds > 0
assert len(found.to_frame())
assert charts.memory_bars(mimokit.predict(config, gpu="h100")).to_dict()
for view in (LayoutPlanner(config), RankMap(mimokit.plan(config)), FrameBalance()):
    assert view._repr_mimebundle_()
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that a wheel of a copy of the sources was installed into."""
    folder = tmp_path_factory.mktemp("wheel")
    source, site = folder / "source", folder / "site"
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("mimokit", "widgets", "configs", "notebooks"):
        shutil.copytree(ROOT / name, source / name, ignore=unwanted)
    for name in BUILD_FILES:
        shutil.copy(ROOT / name, source)
    _pip("wheel", "--no-build-isolation", "--wheel-dir", str(folder), str(source))
    (wheel,) = folder.glob("mimokit-*.whl")
    _pip("install", "--no-compile", "--target", str(site), str(wheel))
    return site


def _pip(command: str, *arguments: str) -> None:
    options = ["--no-deps", "--no-index", "--quiet", "--disable-pip-version-check"]
    done = run_to_end([sys.executable, "-m", "pip", command, *options, *arguments])
    assert done.returncode == 0, done.stdout + done.stderr


def _run(installed: Path, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = run_to_end(command, cwd=installed.parent, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _files(folder: Path) -> set[str]:
    return {
        file.relative_to(folder).as_posix()
        for place in (folder, *(folder / "shipped").glob("*"))  # which are links in the tree
        for file in place.rglob("*")
        if file.is_file() and not {"__pycache__", ".ipynb_checkpoints", "runs"} & set(file.parts)
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


@rows("package", *PACKAGES)
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


@pytest.fixture(scope="module")
def core(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with mimokit as it was installed, and with what its core requires."""
    folder = tmp_path_factory.mktemp("core")
    (wheel,) = Distribution.discover(path=[str(installed)])
    for found in {wheel, *required(wheel)}:
        link(found, folder)
    return folder


def required(wheel: Distribution) -> set[Distribution]:
    """Return the distributions that one requires without extras, and those that they require."""
    found: dict[str, Distribution] = {}
    waiting = [wheel]
    while waiting:
        for line in waiting.pop().requires or ():
            needs = Requirement(line)
            if needs.marker is not None and not needs.marker.evaluate({"extra": ""}):
                continue
            if needs.name not in found:
                try:
                    found[needs.name] = distribution(needs.name)
                except PackageNotFoundError:
                    continue
                waiting.append(found[needs.name])
    return set(found.values())


def link(found: Distribution, folder: Path) -> None:
    for name in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
        if not (folder / name).exists():
            (folder / name).symlink_to(Path(str(found.locate_file(name))))


def python(core: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a Python that sees the core alone: `-S` leaves out the site-packages of the tests."""
    environment = {**os.environ, "PYTHONPATH": str(core)}
    command = [sys.executable, "-S", "-P", *words]
    return run_to_end(command, cwd=core, env=environment)


def test_the_core_plans_predicts_searches_draws_and_shows(core: Path) -> None:
    done = python(core, "-c", PLANNED)
    assert done.returncode == 0, done.stderr


def test_what_the_core_leaves_out_is_not_there(core: Path) -> None:
    """IPython and altair bring two of them."""
    left_out = (IMPORTED["run"] | IMPORTED["lab"] | IMPORTED["data"]) - {"packaging", "psutil"}
    code = f"from importlib.util import find_spec; print(*filter(find_spec, {sorted(left_out)}))"
    assert python(core, "-c", code).stdout.strip() == ""


SAID = """
import contextlib, io, json, sys
from mimokit.cli.main import main
told = []
for words in sys.argv[1:]:
    sys.argv, said = ["mimokit", *words.split()], io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            main()
        except SystemExit as end:
            told.append((end.code, said.getvalue().splitlines()))
print(json.dumps(told))
"""
NEEDED = {
    "run preset:digits_colocated": "run",
    "verify preset:digits_colocated": "run",
    "verify preset:digits_colocated --explain": "run",
    "verify preset:digits_colocated --resume-check": "run",
    "check .": "run",
    "generate . --tokens 1": "run",
    "compare a b": "run",
    "measure counts.csv": "data",
    "tutorial": "lab",
}
"""Command -> the extra that it needs."""


def test_a_verb_says_which_extra_it_needs(core: Path) -> None:
    core.joinpath("counts.csv").touch()
    done = python(core, "-c", SAID, *NEEDED)
    for words, extra, (status, said) in zip(
        NEEDED, NEEDED.values(), json.loads(done.stdout), strict=True
    ):
        assert status == 2
        (sentence,) = said
        assert sentence.startswith(f"mimokit {words.partition(' ')[0]} needs ")
        install = f", which is not installed; run pip install 'mimokit[{extra}]'."
        assert sentence.endswith(install)


def test_a_public_name_says_which_extra_it_needs(core: Path) -> None:
    done = python(core, "-c", "from mimokit.cluster import EngineCluster")
    assert "mimokit.cluster.EngineCluster needs ipyparallel, which" in done.stderr


def test_tutorials_are_copied_and_kept(core: Path, tmp_path: Path) -> None:
    copy = ["-m", "mimokit", "tutorial", str(tmp_path), "--no-lab"]
    assert python(core, *copy).returncode == 0
    assert {file.name for file in (tmp_path / "notebooks").iterdir()} == {
        file.name for file in (ROOT / "notebooks").glob("*.ipynb")
    }
    assert (tmp_path / "configs/ablations/digits/baseline.yaml").exists()
    mine = tmp_path / "notebooks/start.ipynb"
    mine.write_text("mine")
    link, nowhere = tmp_path / "configs/ablations/digits/baseline.yaml", tmp_path / "nowhere"
    link.unlink()
    link.symlink_to(nowhere)
    again = python(core, *copy)
    assert again.stdout.startswith("0 files copied")
    assert mine.read_text() == "mine"
    assert not nowhere.exists(), "a link of others leads out of the folder"


def test_another_missing_module_is_a_fault_of_mimokit() -> None:
    with pytest.raises(ModuleNotFoundError, match="No module named 'nowhere'"), asked_for("plan"):
        import nowhere  # type: ignore[import-not-found]  # noqa: F401
    with pytest.raises(NotInstalledError, match="it needs torch"), asked_for("it"):
        raise ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn")


def test_the_extras_are_those_of_the_wheel() -> None:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core = {Requirement(line).name for line in told["dependencies"]}
    imported = {"absl-py": "absl", "scikit-learn": "sklearn", "megatron-core": "megatron"}
    imported |= {"pillow": "PIL", "vl-convert-python": "vl_convert", "pyzmq": "zmq"}
    for extra, packages in IMPORTED.items():
        there = {Requirement(line).name for line in told["optional-dependencies"][extra]}
        assert not there & core
        assert {imported.get(name, name) for name in there} == packages - {"nbformat"}
