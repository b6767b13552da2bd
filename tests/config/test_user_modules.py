"""User code in files: edited between two runs, and with globals that the runs change."""

import importlib
import pickle
import sys
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from mimokit.config import ExperimentConfig
from mimokit.config.checked_code import checked_code
from mimokit.config.user_code import UserCode
from mimokit.config.user_modules import ReadAfresh
from tests.layouts import digits_config

OWN = """
import own_constants

def loss(mask, losses):
    own_constants.calls.append(mask)
    return own_constants.FACTOR, len(own_constants.calls)
"""
CONSTANTS = "FACTOR = {}\ncalls = []\n"
OF_A_CELL = """
import own_loss

def named(mask, losses):
    return own_loss.loss(mask, losses)

def imported(mask, losses):
    import own_loss as own
    return own.loss(mask, losses)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a process that has imported the files in it."""
    (tmp_path / "own_loss.py").write_text(OWN)
    (tmp_path / "own_constants.py").write_text(CONSTANTS.format(1))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    for name in ("own_loss", "own_constants"):
        monkeypatch.setitem(sys.modules, name, None)  # forgotten after the test
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


def _of_a_cell(name: str) -> Any:
    """Return a function as a notebook has it: no file has its text, so it is sent as it is."""
    cell: dict[str, Any] = {"__name__": "__main__"}
    exec(OF_A_CELL, cell)
    return cell[name]


def _named() -> ExperimentConfig:
    config = digits_config((1, 1), (1, 1))
    config.runtime = config.runtime.model_copy(update={"loss_func": "own_loss:loss"})
    return config


def _loss(how: str) -> FunctionType:
    """Return the loss that a rank calls, given a loss in one of the ways there are."""
    if how == "by the config":
        config = _named()
        code: UserCode = pickle.loads(pickle.dumps(checked_code(config)))
        return code.completed(config.runtime).loss_func  # type: ignore[return-value]
    given = importlib.import_module("own_loss").loss if how == "by its file" else _of_a_cell(how)
    code = pickle.loads(pickle.dumps(UserCode(loss_func=given)))
    return code.loss_func  # type: ignore[return-value]


@pytest.mark.parametrize("how", ["by the config", "by its file", "named", "imported"])
def test_a_rank_has_the_files_as_they_are_and_no_global_of_the_run_before(
    how: str, folder: Path
) -> None:
    first, second = (_loss(how)(0, 0) for _ in range(2))
    assert first == second == (1, 1)
    # As long as before, and within the same second: bytecode would pass for that of the new file.
    (folder / "own_constants.py").write_text(CONSTANTS.format(2))
    assert _loss(how)(0, 0) == (2, 1)


def test_a_mended_file_is_accepted_and_the_notebook_keeps_its_modules(folder: Path) -> None:
    (folder / "own_loss.py").write_text("def loss(mask): ...\n")
    own = importlib.import_module("own_loss")
    with pytest.raises(ValueError, match="cannot be called with two arguments"):
        checked_code(_named())
    (folder / "own_loss.py").write_text(OWN)
    checked_code(_named())
    assert sys.modules["own_loss"] is own


@pytest.mark.parametrize("how", ["by the config", "by its file"])
def test_code_that_was_edited_is_older(how: str, folder: Path) -> None:
    def read() -> UserCode:
        if how == "by the config":
            return checked_code(_named())
        return checked_code(
            digits_config((1, 1), (1, 1)), loss_func=importlib.import_module("own_loss").loss
        )

    before = read()
    assert not before.is_older_than(read())
    (folder / "own_constants.py").write_text(CONSTANTS.format(2))
    assert before.is_older_than(read())


def test_what_is_installed_and_mimokit_itself_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    kept = {name: sys.modules[name] for name in ("mimokit.config.user_code", "numpy", "pytest")}
    here = {name: module for name, module in sys.modules.items() if name.startswith("tests")}
    value = pickle.loads(pickle.dumps(ReadAfresh({"of": pytest.Item, "in": ExperimentConfig})))
    assert value == {"of": pytest.Item, "in": ExperimentConfig}
    assert not here.items() & sys.modules.items()
    sys.modules.update(here)
    assert kept.items() <= sys.modules.items()


def test_a_file_that_registers_a_patch_may_be_read_again() -> None:
    from mimokit.engine.frames import register

    source = "@register('model of this test')\ndef share(encoder, how): ..."
    for _ in range(2):
        exec(source, {"register": register, "__name__": "own_patch"})
    with pytest.raises(ValueError, match="has a patch"):
        exec(source, {"register": register, "__name__": "another_file"})
