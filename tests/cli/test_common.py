"""What needs no command: versions, and completion in the shell."""

import platform
import subprocess
import sys
from importlib.metadata import version

import pytest
from typer.testing import CliRunner

from mimokit.cli.main import app
from tests.cli.call import call
from tests.commands import run_to_end


def test_the_versions_that_a_report_of_a_defect_needs() -> None:
    ended = call("--version")
    assert ended.exit_code == 0
    assert f"megatron-core {version('megatron-core')}" in ended.output
    assert ended.output.startswith("mimokit ")
    assert ended.output.endswith(f"Python {platform.python_version()}\n")


def completed(words: str) -> str:
    variables = {"_MIMOKIT_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": words}
    return CliRunner().invoke(app, env=variables, prog_name="mimokit").output


def test_the_shell_completes_commands_options_and_presets() -> None:
    assert "verify" in completed("mimokit ver")
    assert "--tolerance" in completed("mimokit verify --to")
    assert "llava_7b_colocated" in completed("mimokit plan preset:llava")


def test_python_runs_the_package() -> None:
    command = [sys.executable, "-m", "mimokit"]
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout == call("--version").output
    wrong = run_to_end([*command, "no-such-command"])
    assert wrong.returncode == 2
    assert "no-such-command" in wrong.stderr
    assert "Traceback" not in wrong.stderr


def test_texts_of_files_control_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.table import Table

    from mimokit.cli.shared import console

    table = Table("name")
    table.add_row("\x1b[2J\x07\x9b")
    console().print("a\tb\x1b]0;title", table, markup=False)
    said = capsys.readouterr().out
    assert not set(said) & {"\x1b", "\x07", "\x9b"}
    assert "?]0;title" in said
    assert "?[2J" in said
