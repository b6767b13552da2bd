"""Verbs import no more lines than their budgets, and the core reaches no room beside it."""

import functools
import json
import subprocess
import sys
from collections.abc import Mapping

from tests.budget_of_lines import PACKAGES, ROOT, VERBS, counted, over_budget
from tests.reach import Module, modules_in, reached, read_module
from tests.rows import rows

PLANNED = """
import json, sys
from mimokit.planning.layout import plan_layout
plan_layout("preset:llava_7b_colocated")
print(json.dumps([name for name in sys.modules if name.partition(".")[0] == "mimokit"]))
"""


@functools.cache
def modules() -> dict[str, Module]:
    return modules_in(*PACKAGES)


def planted(name: str, text: str) -> dict[str, Module]:
    """Return the modules with some lines at the end of one."""
    source = ROOT.joinpath(*name.split(".")).with_suffix(".py").read_text()
    return {**modules(), name: read_module(f"{source}\n{text}\n")}


def test_lines_are_within_their_budgets() -> None:
    assert over_budget(counted(modules())) == []


def test_an_import_too_many_is_over_budget() -> None:
    text = "import mimokit.experiment.verification"
    sentences = over_budget(counted(planted("mimokit.units", text)))
    assert sentences[0].startswith("plan has ")


def test_what_a_plan_loads_is_counted() -> None:
    command = [sys.executable, "-c", PLANNED]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    counted_files = reached(modules(), [VERBS["plan"]])
    assert set(json.loads(done.stdout)) <= counted_files
    assert len(counted_files) < 1.2 * len(json.loads(done.stdout))


def beside_the_core(known: Mapping[str, Module]) -> set[str]:
    """Return the rooms beside the core that anything of the core reaches."""
    core = [name for name in known if not name.startswith("mimokit.extras")]
    places = [(name, part) for name in core for part in known[name].parts]
    return {name for name in reached(known, places) if name.startswith("mimokit.extras")}


def test_the_core_uses_no_public_name_of_a_room_beside_it() -> None:
    assert beside_the_core(modules()) == set()
    text = "import mimokit\n\ndef late(): mimokit.watch"
    assert "mimokit.extras.foreign_loops.recorder" in beside_the_core(
        planted("mimokit.units", text)
    )


FILES = {
    "a": "from c import g\n\ndef f():\n    import b\n\ndef h():\n    g()\n",
    "b": "\n" * 10,
    "c": "def g():\n    from d import X\n",
    "d": "from e import y as X\n",
    "e": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import b\ny = 1\n",
}


@rows(
    "start, files", (("a", ""), "ac"), (("a", "f"), "abc"), (("a", "h"), "acde"), (("e", ""), "e")
)
def test_what_a_definition_reaches(start: tuple[str, str], files: str) -> None:
    known = {name: read_module(text) for name, text in FILES.items()}
    assert "".join(sorted(reached(known, [start]))) == files
