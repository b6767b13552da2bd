"""What a command does not use, it does not import."""

import json
import subprocess
import sys
from pathlib import Path

from tests.commands import run_to_end
from tests.rows import rows

ROOT = Path(__file__).parents[2]
DIGITS = "configs/digits_colocated.yaml"

ENGINES = {
    *("torch", "megatron", "pandas", "altair", "ipyparallel", "IPython", "numba", "scipy", "zmq"),
    *("mimokit.engine", "mimokit.cluster.cluster", "mimokit.analysis"),
}
"""What runs and charts need; nothing that plans imports it."""
PLANS = ENGINES | {"mimokit.layout_search", "mimokit.interop", "mimokit.cli.run_commands"}
HELP = ENGINES | {"numpy", "ruamel", "mimokit.config.base", "mimokit.result_files"}
NO_COMMAND = HELP | {"pydantic", "rich", "mimokit.cli.shared"}

RECEIVER = ENGINES - {"mimokit.engine", "mimokit.cluster.cluster", "ipyparallel", "IPython", "zmq"}
"""What the process that proves a layout, or trains it, leaves to its ranks."""

SCRIPT = """
import json, sys
from importlib import import_module
from mimokit.cli.main import main
shown, sys.stdout = sys.stdout, sys.stderr
sys.argv, planted = ["mimokit", *sys.argv[2:]], sys.argv[1]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
if planted:
    import_module(planted)
print(json.dumps(sorted(sys.modules)), file=shown)
"""


def imported_by(command: str, planted: str = "") -> set[str]:
    """Run a command in a fresh process, and return the modules that it imports.

    Args:
        planted: a module that is imported after it.
    """
    started = [sys.executable, "-c", SCRIPT, planted, *command.split()]
    done = run_to_end(started, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


@rows(
    "command, unused",
    ("--version", NO_COMMAND),
    ("--help", HELP),
    ("verify --help", HELP),
    (f"config {DIGITS}", PLANS | {"rich", "mimokit.prediction", "mimokit.planning"}),
    (f"plan {DIGITS}", PLANS),
    (f"predict {DIGITS}", ENGINES),
    (f"verify --static {DIGITS}", ENGINES | {"mimokit.layout_search"}),
)
def test_a_command_imports_what_it_uses(command: str, unused: set[str]) -> None:
    assert not imported_by(command) & unused


@rows("unused", *("mimokit.result_files", "numpy", "rich"))
def test_an_import_that_is_not_used_is_found(unused: str) -> None:
    assert imported_by("--version", planted=unused) & NO_COMMAND >= {unused}


@rows(
    "modules, unused",
    ("mimokit.experiment.verification, mimokit.engine.verify.steps", RECEIVER),
    ("mimokit.engine.preload", {"scipy", "pandas", "altair", "numba"}),
)
def test_a_process_imports_what_it_uses(modules: str, unused: set[str]) -> None:
    script = f"import sys, {modules}; print(*sys.modules)"
    started = [sys.executable, "-c", script]
    done = subprocess.run(started, capture_output=True, text=True, check=True, cwd=ROOT)
    imported = set(done.stdout.split())
    assert imported >= set(modules.split(", "))
    assert not imported & unused
