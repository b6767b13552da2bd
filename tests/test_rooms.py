"""The rooms stay apart, the plan half stays light, and the pins agree."""

import ast
import functools
import json
import math
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from mimokit.extra_rooms import FOLDER, ROOMS, room_of
from tests.commands import run_to_end
from tests.rows import rows

ROOT = Path(__file__).parents[1]


PLANTED = {
    "Imports run down only": ("analysis/findings.py", "mimokit.charts"),
    "What plans and predicts imports nothing heavy": ("planning/ranks.py", "pandas"),
    "One door to Megatron-Core": ("engine/digests.py", "megatron"),
    "Inside the engine parallelism knows no model": (
        "engine/parallel/update.py",
        "mimokit.engine.models",
    ),
    "Inside the engine models and weights know no data": (
        "engine/weights/files.py",
        "mimokit.engine.data.batch",
    ),
    "Charts draw plans and tables, nothing that runs": ("charts/_palette.py", "mimokit.cluster"),
    "Only the engine's calibration predicts": ("engine/digests.py", "mimokit.prediction"),
    "Frame parallel, strategies and sharded weights are plain torch": (
        "engine/frames/dispatch.py",
        "mimokit.engine.models",
    ),
    "A room beside the core imports no file inside a folder of a room": (
        "extras/foreign_loops/recorder.py",
        "mimokit.engine.parallel.marks",
    ),
    "No room beside the core imports another": (
        "extras/foreign_loops/places.py",
        "mimokit.extras.shrinking.kinds",
    ),
}
"""Contract of imports -> a file, and what it must not import."""
UP_TO_EXTRAS = (
    "Imports run down only",
    ("experiment/yardstick.py", "mimokit.extras.shrinking.kinds"),
)
"""The core must not import a room beside it."""


def test_nothing_imports_upward() -> None:
    status, told = imports_checked(ROOT)
    assert status == 0, told


def test_each_contract_sees_an_import_against_it(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for package in (ROOT / "mimokit", ROOT / "widgets" / "mimokit_widgets"):
        shutil.copytree(package, tmp_path / package.name, ignore=only_python)
    planted = [*PLANTED.items(), UP_TO_EXTRAS]
    for number, (_, (file, imported)) in enumerate(planted):
        with (tmp_path / "mimokit" / file).open("a") as text:
            text.write(f"\n\ndef later_{number}():\n    import {imported}\n")
    status, told = imports_checked(tmp_path)
    assert status == 1
    for contract, (file, imported) in planted:
        arrow = f"mimokit.{file.removesuffix('.py').replace('/', '.')} -> {imported} "
        assert arrow in section(told, contract), contract


def section(told: str, contract: str) -> str:
    """Return what is said of a broken contract, below its name and a line of dashes."""
    return told.split(f"\n{contract}\n{'-' * len(contract)}\n")[1].split("\n---")[0]


def test_every_contract_has_a_fault() -> None:
    assert set(PLANTED) == set(contracts())


def imports_checked(folder: Path) -> tuple[int, str]:
    """Check the imports of the packages in a folder; return the status and what is said."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = run_to_end(command, cwd=folder)
    return done.returncode, done.stdout + done.stderr


def only_python(folder: str, names: list[str]) -> list[str]:
    """Return what a copy leaves out."""
    return [name for name in names if not (name.endswith(".py") or Path(folder, name).is_dir())]


def test_no_files_import_each_other_in_a_circle() -> None:
    """Imports inside functions count; those for type checking alone do not."""
    graph = imports()
    assert not circles(graph)
    graph.add_import(importer="mimokit.units", imported="mimokit.planning.layout")
    assert any("mimokit.units" in circle for circle in circles(graph))


def test_the_core_imports_no_room_beside_it_and_these_import_none_of_another() -> None:
    """Imports inside functions count; those for type checking alone do not."""
    graph = imports()
    assert not imports_of_rooms(graph)
    planted = {
        ("mimokit.planning.ranks", "mimokit.layout_search.task"),
        ("mimokit_widgets.planner.session", "mimokit.experiment.culprit.report"),
        ("mimokit.layout_search.task", "mimokit.engine.stepper.rows"),
    }
    for importer, imported in planted:
        graph.add_import(importer=importer, imported=imported)
    assert imports_of_rooms(graph) == planted


def imports_of_rooms(graph: Any) -> set[tuple[str, str]]:
    """Return the imports of a room beside the core from outside of it."""
    return {
        (importer, imported)
        for importer in graph.modules
        for imported in graph.find_modules_directly_imported_by(importer)
        if room_of(imported) not in (None, room_of(importer))
    }


def test_the_table_of_rooms_beside_the_core_is_that_of_the_tree() -> None:
    places = {place for places in ROOMS.values() for place in places}
    for place in places:
        at = ROOT / ("widgets" if place.startswith("mimokit_widgets") else "") / place
        assert at.is_dir() or at.with_suffix(".py").is_file(), place
    extras = {f"mimokit/extras/{file.parent.name}" for file in FOLDER.glob("*/__init__.py")}
    assert extras == {place for place in places if place.startswith("mimokit/extras")}


def imports() -> Any:
    """Return which file imports which."""
    import grimp

    return grimp.build_graph(
        "mimokit", "mimokit_widgets", exclude_type_checking_imports=True, cache_dir=None
    )


def circles(graph: Any) -> set[frozenset[str]]:
    """Return the sets of files that import each other."""
    import networkx

    arrows = networkx.DiGraph(
        (importer, imported)
        for importer in graph.modules
        for imported in graph.find_modules_directly_imported_by(importer)
    )
    found = networkx.strongly_connected_components(arrows)
    return {frozenset(circle) for circle in found if len(circle) > 1}


DOTTED = re.compile(r"mimokit\w*(\.\w+)+(:\w+)?")
FIRST_ON_ENGINES = {
    ("mimokit.cluster.cluster", "mimokit.engine.preload"),
    ("mimokit.cluster.cluster", "mimokit.experiment.proofs_on_rank"),
}
"""What engines import before anything is asked of them, unless the caller names something else."""


def test_no_text_names_a_room_above() -> None:
    """A module that is named in a text and imported when it runs is an arrow that graphs miss."""
    arrows = set()
    for root in (ROOT, ROOT / "widgets"):
        for file in root.glob("mimokit*/**/*.py"):
            module = ".".join(file.relative_to(root).with_suffix("").parts)
            arrows |= {(module, named) for named in named_above(module, file.read_text())}
    assert arrows == FIRST_ON_ENGINES
    planted = 'READER = "mimokit.planning.weights.modules:module_planner"'
    assert named_above("mimokit.config_files.weights", planted)
    assert not named_above("mimokit.experiment.training", planted)


def named_above(module: str, source: str) -> set[str]:
    """Return the modules that texts of a file name and that its room must not import."""
    if not re.search("[\"']mimokit", source):
        return set()
    tree = ast.parse(source)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose
    }
    floor, room = place(module)
    return {
        text
        for text in texts
        if DOTTED.fullmatch(text) and place(text)[1] != room and place(text)[0] <= floor
    }


def place(module: str) -> tuple[float, str]:
    """Return the line on which the room of a module is, 0 at the top, and the room."""
    for number, line in enumerate(contracts()["Imports run down only"]["layers"]):
        for room in line.split(" | "):
            if re.match(rf"{re.escape(room)}(?!\w)", module):
                return number, room
    return math.inf, ""


@functools.cache
def contracts() -> dict[str, Any]:
    """Return the contracts of imports by name."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    return {contract["name"]: contract for contract in told["contracts"]}


def test_no_class_name_is_defined_twice(tmp_path: Path) -> None:
    """A name of a class says what it is without the name of its module."""
    assert defined_twice(ROOT / "mimokit", ROOT / "widgets" / "mimokit_widgets") == set()
    tmp_path.joinpath("planted.py").write_text("def later():\n    class Finding: ...\n")
    assert defined_twice(ROOT / "mimokit" / "analysis", tmp_path) == {"Finding"}


def defined_twice(*folders: Path) -> set[str]:
    """Return the names of classes that are defined more than once in the files of some folders."""
    names = Counter(
        name
        for folder in folders
        for file in folder.rglob("*.py")
        for name in re.findall(r"^ *class (\w+)", file.read_text(), re.MULTILINE)
    )
    return {name for name, times in names.items() if times > 1}


LIGHT = """
import json, sys
import mimokit, mimokit.cli.main, mimokit.engine
mimokit.plan("preset:llava_7b_colocated").to_json()
from mimokit.planning.frames import plan_frames
plan_frames(range(64), 8)
heavy = {"torch", "megatron", "pandas", "altair", "ipyparallel", "IPython", "numba"}
loaded = [sorted(heavy & set(sys.modules))]
sys.path.insert(0, sys.argv[1])
import pandas
loaded.append(sorted(heavy & set(sys.modules)))
print(json.dumps(loaded))
"""


def test_the_plan_half_is_light(tmp_path: Path) -> None:
    """One fresh process imports mimokit, plans and loads the command line.

    Then it imports an empty file named pandas, which the same check must report.
    """
    tmp_path.joinpath("pandas.py").touch()
    command = [sys.executable, "-c", LIGHT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert json.loads(done.stdout) == [[], ["pandas"]]


def test_the_pins_for_pip_and_conda_agree() -> None:
    wanted = YAML(typ="safe", pure=True).load(ROOT / "environment.yml")["dependencies"]
    through_pip = next(entry["pip"] for entry in wanted if isinstance(entry, dict))
    assert {entry for entry in through_pip if "==" in entry} == pins_of("py313.txt")
    assert "python=3.13" in wanted
    assert "--editable .[run,lab,test]" in through_pip


@rows("python", "py311.txt", "py312.txt", "py313.txt")
def test_the_pages_pin_nothing_that_is_pinned_already(python: str) -> None:
    """Pip rejects two versions of one package, and `make docs` could not begin."""
    pages, others = (
        {pin.partition("==")[0] for pin in pins_of(file)} for file in ("docs.txt", python)
    )
    assert not pages & others - {""}


def pins_of(file: str) -> set[str]:
    """Return what a file of `constraints` pins, and the files that it names."""
    pins: set[str] = set()
    for line in (ROOT / "constraints" / file).read_text().splitlines():
        pin = line.partition("#")[0].strip()
        pins |= pins_of(pin.split()[1]) if pin.startswith("--constraint") else {pin}
    return pins
