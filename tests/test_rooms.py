"""The rooms stay apart, the plan half stays light, and the pins agree."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import grimp
import networkx
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[1]


def test_nothing_imports_upward() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_files_import_each_other_in_a_circle() -> None:
    """Imports inside functions count; those for type checking alone do not."""
    graph = grimp.build_graph(
        "mimokit", "mimokit_widgets", exclude_type_checking_imports=True, cache_dir=None
    )
    arrows = networkx.DiGraph(
        (importer, imported)
        for importer in graph.modules
        for imported in graph.find_modules_directly_imported_by(importer)
    )
    circles = {
        frozenset(circle)
        for circle in networkx.strongly_connected_components(arrows)
        if len(circle) > 1
    }
    assert not circles


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
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {line.strip() for line in lines if line.strip() and not line.startswith("#")}
    wanted = YAML(typ="safe", pure=True).load(ROOT / "environment.yml")["dependencies"]
    through_pip = next(entry["pip"] for entry in wanted if isinstance(entry, dict))
    assert {entry for entry in through_pip if "==" in entry} == pins
    assert "python=3.11" in wanted
    assert "--editable .[lab,test]" in through_pip
