"""Progress: one line where somebody looks, nothing elsewhere."""

import builtins
import io
import re
import sys
from types import SimpleNamespace

import pytest

from mimokit.progress import is_watched, shown
from tests import seams

CODES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_what_and_how_much_and_is_clean_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", screen)
    with shown("Converting", total=4) as bar:
        bar.update(3, "Writing rank_03.safetensors")
    told = CODES.sub("", screen.getvalue())
    assert "Writing rank_03.safetensors" in told
    assert "3/4" in told
    assert screen.getvalue().endswith("\x1b[2K")  # the line is erased


def test_nothing_is_written_to_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    with shown("Converting", total=4) as bar:
        bar.update(2)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("kernel", "watched"),
    [("ipykernel.ipkernel", True), ("ipyparallel.engine.kernel", False), (None, False)],
)
def test_a_notebook_is_watched_and_an_engine_is_not(
    kernel: str | None, watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = type("Kernel", (), {"__module__": kernel})() if kernel else None
    shell = SimpleNamespace(kernel=running)
    monkeypatch.setattr(builtins, "get_ipython", lambda: shell, raising=False)
    assert is_watched() is watched


def test_a_notebook_shows_a_line_and_takes_it_away(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    handle = SimpleNamespace(update=lambda bundle, raw: lines.append(bundle["text/plain"]))

    def display(bundle: dict[str, str], raw: bool, display_id: bool) -> SimpleNamespace:
        lines.append(bundle["text/plain"])
        return handle

    monkeypatch.setattr(seams.IS_NOTEBOOK, lambda: True)
    monkeypatch.setattr(seams.SECONDS_BETWEEN_LINES, -1.0)
    monkeypatch.setattr("IPython.display.display", display)
    with shown("Training on 8 ranks", total=5) as bar:
        bar.update(2)
        bar.update(text="Comparing")
    assert lines == ["Training on 8 ranks …", "Training on 8 ranks … 40%", "Comparing … 40%", ""]
