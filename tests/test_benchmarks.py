"""Benchmarks import what there is."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import run_to_end

ROOT = Path(__file__).parents[1]
FILES = sorted(
    str(file.relative_to(ROOT).with_suffix("")).replace("/", ".")
    for file in ROOT.glob("benchmarks/**/*.py")
    if file.name not in ("__main__.py", "__init__.py")
)
IMPORT = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"


def test_every_benchmark_is_imported() -> None:
    """One process imports them all: what they measure is run by hand."""
    done = _imported(*FILES)
    assert done.returncode == 0, done.stderr


def test_a_missing_name_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stale.py").write_text("from mimokit.units import no_such_name\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = _imported("stale")
    assert done.returncode == 1
    assert "no_such_name" in done.stderr


def _imported(*names: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", IMPORT, *names]
    return run_to_end(command, cwd=ROOT)
