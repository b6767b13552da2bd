"""A notebook shows what was wrong in a sentence, and hides no frame of a fault."""

import pickle
from collections.abc import Iterator

import pytest
from IPython.core.interactiveshell import InteractiveShell

from mimokit.analysis.run_folders import RunFolderError
from mimokit.cluster import ClusterError
from mimokit.cluster.errors import RankError
from mimokit.config import ConfigError
from mimokit.config.errors import Problem

WRONG = """
import mimokit

def mine(path):
    return mimokit.load_experiment_config(path)

mine("no_such_config.yaml")
"""


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    shell = InteractiveShell.instance(colors="nocolor")
    yield shell
    InteractiveShell.clear_instance()


def said(shell: InteractiveShell, capsys: pytest.CaptureFixture[str], cell: str) -> list[str]:
    """Run a cell that raises, and return the lines that are shown."""
    result = shell.run_cell(cell)
    assert result.error_in_exec is not None
    return capsys.readouterr().out.splitlines()


def test_a_refused_config_is_the_callers_lines_and_a_sentence(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = said(shell, capsys, WRONG)
    assert "ConfigError: " in lines[-1]
    assert "no_such_config.yaml" in lines[-1]
    assert 'mine("no_such_config.yaml")' in lines[1]
    assert "mimokit.load_experiment_config(path)" in lines[3]
    assert len(lines) == 5


@pytest.mark.parametrize("error", [ClusterError, RunFolderError])
def test_other_errors_with_a_sentence_are_shown_alike(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str], error: type[Exception]
) -> None:
    cell = f"from {error.__module__} import {error.__name__}\nraise {error.__name__}('It is so.')"
    lines = said(shell, capsys, cell)
    assert lines[-1].endswith(f"{error.__name__}: It is so.")
    assert len(lines) == 3


def test_the_frames_of_a_rank_stay(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = (
        f"from {RankError.__module__} import RankError\n"
        "raise RankError(2, 'KeyError', 'image', 'Traceback of rank 2\\n  line 7, in forward')"
    )
    lines = said(shell, capsys, cell)
    assert any("rank 2 raised KeyError: image" in line for line in lines)
    assert "  line 7, in forward" in lines


CAUSED = """
from mimokit.cluster import ClusterError

def users():
    return {}["absent"]

try:
    users()
except KeyError as error:
    raise ClusterError("It is so.")"""


@pytest.mark.parametrize(
    ("cell", "frame"),
    [
        ("import mimokit\nmimokit.plan(7)", "planning"),
        (CAUSED + " from error", 'return {}["absent"]'),
        (CAUSED, 'return {}["absent"]'),
    ],
    ids=["another error", "a cause", "a context"],
)
def test_no_frame_of_a_fault_is_hidden(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str], cell: str, frame: str
) -> None:
    assert frame in "\n".join(said(shell, capsys, cell))


def test_it_is_pickled_as_before() -> None:
    error = ConfigError([Problem("images", "tensor_parallel", 3, "It is so.")])
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.problems) == (ConfigError, error.problems)
