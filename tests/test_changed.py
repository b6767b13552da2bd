"""`make check` selects the tests of what has changed, and starts no engines."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.changed import OTHERS, changed_files, selected_by
from tests.commands import run_to_end

ROOT = Path(__file__).parents[1]
TREE = {
    "mimokit/engine/digests.py": "",
    "mimokit/engine/frames/dispatch.py": "",
    "mimokit/config/rules.py": "",
    "mimokit/units.py": "",
    "tests/layouts.py": "from mimokit.config import rules",
    "tests/layouts_drawn.py": "from tests.layouts import digits_config",
    "tests/test_units.py": "",
    "tests/config/test_rules.py": "",
    "tests/engine/test_digests.py": "",
    "tests/engine/frames/test_dispatch.py": "",
    "tests/charts/test_digests.py": "def test_a():\n    from mimokit.engine import digests",
    "tests/charts/test_faces.py": "from mimokit.engine import Digest",
    "tests/planning/test_drawn.py": "from tests import layouts_drawn",
    "tests/planning/test_units.py": "import mimokit.units",
    "tests/browser/test_units.py": "import mimokit.units",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for file, text in TREE.items():
        tmp_path.joinpath(file).parent.mkdir(parents=True, exist_ok=True)
        tmp_path.joinpath(file).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "selected"),
    [
        ("mimokit/engine/frames/dispatch.py", {"tests/engine/frames/test_dispatch.py"}),
        (
            "mimokit/engine/digests.py",
            {
                "tests/charts/test_digests.py",
                "tests/engine/frames/test_dispatch.py",
                "tests/engine/test_digests.py",
            },
        ),
        ("mimokit/config/rules.py", {"tests/config/test_rules.py", "tests/planning/test_drawn.py"}),
        ("mimokit/units.py", {"tests/planning/test_units.py", "tests/test_units.py"}),
        ("mimokit/config/presets/removed.yaml", {"tests/config/test_rules.py"}),
        ("mimokit/new_room/new.py", set()),
        ("tests/layouts_drawn.py", {"tests/planning/test_drawn.py"}),
        ("tests/charts/test_faces.py", {"tests/charts/test_faces.py"}),
        ("tests/config/conftest.py", {"tests/config/test_rules.py"}),
    ],
)
def test_what_a_file_selects(tree: Path, changed: str, selected: set[str]) -> None:
    assert set(selected_by([changed], tree)) == selected


def test_a_file_in_no_room_selects_what_is_there() -> None:
    assert [place for place in OTHERS.values() if not (ROOT / place).exists()] == []
    assert "tests/pages/test_links.py" in selected_by(["docs/start.md"])
    assert "tests/charts/test_pictures.py" in selected_by(["mimokit/charts/_proof.py"])


def test_what_has_changed_since_main(tree: Path) -> None:
    def git(*arguments: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *arguments], cwd=tree, check=True, capture_output=True)

    def commit(file: str) -> None:
        tree.joinpath(file).write_text("# changed")
        git("add", "--all")
        git("commit", "--message", "none")

    git("init", "--initial-branch", "main")
    commit("tests/test_units.py")
    git("switch", "--create", "branch")
    commit("mimokit/units.py")
    git("switch", "main")
    commit("mimokit/engine/digests.py")  # after the branch has left
    git("switch", "branch")
    tree.joinpath("tests/layouts.py").write_text("# changed")
    tree.joinpath("tests/new.py").touch()
    assert changed_files(tree) == ["mimokit/units.py", "tests/layouts.py", "tests/new.py"]


PLANTED = """
import subprocess, sys
import pytest

@pytest.fixture
def cluster():
    raise AssertionError("engines are started")

@pytest.fixture
def alone():
    return subprocess.Popen([sys.executable, "-m", "mimokit.cluster.local.server", "{}"])

def test_of_the_cluster(cluster): ...
def test_of_another(alone): ...
def test_without(): subprocess.run([sys.executable, "--version"], check=True)
"""


def test_no_engines_are_started(tmp_path: Path) -> None:
    tmp_path.joinpath("test_planted.py").write_text(PLANTED)
    command = [sys.executable, "-m", "pytest", "-p", "tests.engines_off", "-rs", "."]
    done = run_to_end(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert "1 passed, 1 skipped, 1 deselected" in done.stdout, done.stdout + done.stderr
    assert "starts mimokit.cluster.local.server" in done.stdout
