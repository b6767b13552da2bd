"""Notebooks from the command line: a good one, a failing one, none at all."""

import io
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
import pytest

from make.notebooks.execute import execute, main
from make.notebooks.terminal import Terminal, TrainingProgress
from make.site.check import external_references


def write_notebook(folder: Path, *sources: str) -> Path:
    cells = [
        nbformat.v4.new_markdown_cell(source[3:])
        if source.startswith("md:")
        else nbformat.v4.new_code_cell(source)
        for source in sources
    ]
    file = folder / "small.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), file)
    return file


def run(file: Path, output: Path) -> tuple[int, str]:
    stream = io.StringIO()
    status = execute(file, output, Terminal(stream))
    return status, stream.getvalue()


LIVE = """
import sys
sys.path.insert(0, {root!r})
from mimokit_widgets import LiveMonitor
from tests.charts.fakes import samples
from tests.widgets.fake_run import FakeRun
run = FakeRun()
monitor = LiveMonitor(run)
monitor
"""


def test_a_good_notebook_leaves_a_page_with_the_picture_of_its_run(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[2])
    file = write_notebook(
        tmp_path,
        "md:# Greetings",
        "print('hello from', __import__('os').path.basename(__import__('os').getcwd()))",
        "md:## Watch it",
        LIVE.format(root=root),
        "run.give(samples()); run.end()",
        "print('read on')",
    )
    status, told = run(file, tmp_path / "out")
    assert status == 0
    assert "Greetings\n        hello from " + tmp_path.name in told
    assert "Watch it" in told
    assert "iteration 40 of 40 · loss" in told
    page = (tmp_path / "out" / "small.html").read_text()
    assert "Training finished. 40 iterations" in page
    assert external_references(page) == []
    executed = nbformat.read(tmp_path / "out" / "small.ipynb", 4)
    _, stays = executed.cells[3].outputs
    assert stays.data["text/plain"].startswith("Training finished. 40 iterations")
    assert nbformat.read(file, 4).cells[1].outputs == []  # the notebook itself stays as it was


def test_a_kernel_imports_what_lies_next_to_the_notebook_last(tmp_path: Path) -> None:
    mark = "import pathlib; pathlib.Path(__file__).with_suffix('.ran').touch()"
    for name in ("ipykernel_launcher", "ipykernel", "json", "sitecustomize", "timeit", "psutil"):
        (tmp_path / f"{name}.py").write_text(mark)
    (tmp_path / "of_the_user.py").write_text("says = 'it is found'")
    file = write_notebook(tmp_path, "import timeit, psutil, of_the_user; print(of_the_user.says)")
    status, told = run(file, tmp_path / "out")
    assert list(tmp_path.glob("*.ran")) == []
    assert (status, "it is found" in told) == (0, True), told


def test_a_failing_cell_is_told_in_short_and_the_page_is_still_left(tmp_path: Path) -> None:
    file = write_notebook(tmp_path, "md:# Divide", "a = 1\nb = a / 0", "print('never')")
    status, told = run(file, tmp_path / "out")
    assert status == 1
    assert "in line 2: b = a / 0" in told
    assert "ZeroDivisionError: division by zero" in told
    assert "Traceback" not in told
    assert "never" not in told
    page = (tmp_path / "out" / "small.html").read_text()
    assert "ZeroDivisionError" in page
    assert external_references(page) == []


def test_a_kernel_that_dies_is_told(tmp_path: Path) -> None:
    file = write_notebook(tmp_path, "import os; os._exit(3)")
    status, told = run(file, tmp_path / "out")
    assert status == 1
    assert "The kernel died" in told
    assert (tmp_path / "out" / "small.html").is_file()


def test_a_missing_notebook(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "no.ipynb"), "--output", str(tmp_path)]) == 2
    assert "There is no notebook" in capsys.readouterr().err


def test_a_file_that_is_no_notebook(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "no.ipynb"
    file.write_text("not json")
    assert main([str(file), "--output", str(tmp_path / "out")]) == 2
    assert "is not a notebook" in capsys.readouterr().err


def test_the_command_returns_the_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the process exits with, as the interrupted one shows."""
    file = write_notebook(tmp_path, "raise SystemError('no')")
    assert main([str(file), "--output", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert told.startswith("    0 s  Running ")
    assert told.rstrip().endswith("small.html")


def test_ctrl_c_interrupts_the_cell_and_still_leaves_the_page(tmp_path: Path) -> None:
    file = write_notebook(tmp_path, "print('here', flush=True)\nimport time; time.sleep(60)")
    command = [sys.executable, "-m", "make.notebooks.execute", str(file), "--output"]
    process = subprocess.Popen([*command, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert any("here" in line for line in process.stdout), "it ended before its cell ran"
    process.send_signal(signal.SIGINT)
    told, _ = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "Interrupted." in told
    assert "KeyboardInterrupt" in (tmp_path / "small.html").read_text()


def test_text_comes_out_indented_whatever_way_it_arrives() -> None:
    stream = io.StringIO()
    terminal = Terminal(stream)
    for piece in ("one", " line\n", "two\nthree"):
        terminal.text(piece)
    terminal.heading("next")
    lines = stream.getvalue().splitlines()
    assert lines[:3] == ["        one line", "        two", "        three"]
    assert lines[3].endswith("next")


def test_progress_tells_only_of_live_monitors() -> None:
    progress = TrainingProgress()
    other = {"comm_id": "x", "data": {"state": {"_anywidget_id": "other"}}}
    progress.opened(other)
    message = {"comm_id": "x", "data": {"content": {"type": "append", "rows": []}}}
    assert progress.line(message) is None


def test_the_last_progress_is_told_in_a_log_file_too() -> None:
    stream = io.StringIO()
    terminal = Terminal(stream)
    for step in range(5):
        terminal.progress(f"step {step}")
    terminal.heading("next")
    assert [line.strip() for line in stream.getvalue().splitlines()][:2] == ["step 0", "step 4"]


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_a_kernel_is_reached_wherever_temporary_files_are(
    transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of sockets have at most 107 characters; TCP has none."""
    folder = Path("/tmp") if transport == "ipc" else tmp_path / ("t" * 120)
    folder.mkdir(exist_ok=True)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    shown = "import ipykernel; print(ipykernel.connect.get_connection_info())"
    status, told = run(write_notebook(tmp_path, shown), tmp_path / "out")
    assert status == 0, told
    assert f'"transport": "{transport}"' in told
