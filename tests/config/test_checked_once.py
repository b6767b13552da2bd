"""A config is checked once per command: copies, plans and ranks know what it has passed."""

from __future__ import annotations

import ast
import inspect
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import mimokit
from mimokit.config import ConfigError, ExperimentConfig, check_experiment, check_runnable
from mimokit.config import rules as rules_room
from mimokit.config.experiment import UNCHECKED
from mimokit.config_files import load_experiment_config, loading
from tests import seams
from tests.config.sections import load, put, sections

Counts = dict[str, int]


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counts:
    """Count how often all rules are gone through."""
    found = {"all": 0}
    check_all = rules_room.all_problems

    def all_problems(context: Any) -> Iterator[Any]:
        found["all"] += 1
        return check_all(context)

    for module in (rules_room, loading):
        monkeypatch.setattr(module, "all_problems", all_problems)
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return load(sections()).save(tmp_path / "small.yaml")


class NoEngines:
    """Takes what `submit` and `run` would send to ranks, and sends it through a pickle."""

    def __init__(self, **_: object) -> None:
        self.sent: list[Any] = []

    def __enter__(self) -> NoEngines:
        return self

    def __len__(self) -> int:
        return 8

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, function: Any, *arguments: Any, **_: object) -> Any:
        self.sent += pickle.loads(pickle.dumps([a for a in arguments if _is_config(a)]))
        raise NotSentError

    run = submit


class NotSentError(Exception):
    """What a rank would do is not done here."""


def _is_config(value: object) -> bool:
    return isinstance(value, ExperimentConfig)


def test_plan_checks_a_file_once(file: Path, counts: Counts) -> None:
    mimokit.plan(file)
    assert counts == {"all": 1}


@pytest.mark.parametrize("command", ["run", "verify"])
def test_commands_check_a_file_once(
    command: str, file: Path, counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to what is sent to the ranks; `run` reports the error of its experiment and exits."""
    from mimokit.cli import run_commands

    engines = NoEngines()
    monkeypatch.chdir(file.parent)
    monkeypatch.setattr(seams.ENGINE_CLUSTER, lambda **_: engines)
    with pytest.raises((NotSentError, typer.Exit)):
        getattr(run_commands, command)(str(file), **DEFAULTS[command])
    assert counts == {"all": 1}
    if command == "verify":
        return  # the layout of its one process is sent first, whose rules nothing asks
    (sent,) = engines.sent
    counts.update(dict.fromkeys(counts, 0))
    mimokit.plan(sent)
    check_experiment(sent)
    assert counts["all"] == 0, "a rank knows what was checked"


DEFAULTS: dict[str, dict[str, Any]] = {
    "run": {"results_dir": None, "task": None, "trace": False, "cluster": None},
    "verify": {"as_json": False, "steps": 1, "tolerance": 1e-5, "cluster": None},
}


def test_any_change_is_checked_again(counts: Counts) -> None:
    config = load(sections())
    config.finalize()
    assert counts["all"] == 1
    mimokit.plan(config)
    mimokit.plan(config, 4)
    assert counts["all"] == 1
    config.model.module_parallelisms["images"].data_parallel = 3
    with pytest.raises(ConfigError, match="data_parallel is 3"):
        mimokit.plan(config)
    config.model.module_parallelisms["images"].data_parallel = 4
    config.model.special_token_ids["images"] = 3
    with pytest.raises(ConfigError, match="'images' has 3"):
        mimokit.plan(config)


def test_another_world_is_checked_again(counts: Counts) -> None:
    config = load(sections()).finalize()
    with pytest.raises(ConfigError, match="the world has 8"):
        mimokit.plan(config, 8)
    with pytest.raises(ConfigError, match="world_size is True"):
        mimokit.plan(config, True)


def test_what_is_planned_only_is_rejected_after_a_change() -> None:
    config = load(sections())
    check_runnable(config)
    config.runtime.precision = "mxfp8"
    with pytest.raises(ConfigError, match="precision is mxfp8"):
        check_runnable(config)


def test_an_open_world_is_checked_when_it_is_known(tmp_path: Path, counts: Counts) -> None:
    content = put(sections(), "model.module_parallelisms.images", {"tensor_parallel": 1})
    content = put(content, "model.module_parallelisms.language_module", {"tensor_parallel": 4})
    path = load(content, 4).save(tmp_path / "open.yaml")
    config = load_experiment_config(path)
    with pytest.raises(ConfigError, match="--world-size"):
        mimokit.plan(config)
    assert config.finalize(4).model.total_world_size == 4


def test_passed_checks_do_not_make_configs_differ() -> None:
    checked, plain = load(sections()), ExperimentConfig(**dict(load(sections()).__dict__))
    check_runnable(checked)
    assert checked == plain


def test_no_rule_reads_what_a_check_ignores() -> None:
    names = set().union(*UNCHECKED.values())
    folder = Path(inspect.getfile(rules_room)).parent
    read = {
        node.attr
        for file in folder.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
    }
    assert names & read == set()


def test_without_the_record_a_file_is_checked_again(
    file: Path, counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mimokit.experiment.prepare import finalized_copy

    monkeypatch.setattr(ExperimentConfig, "has_passed", lambda *_: False)
    mimokit.plan(finalized_copy(file))
    assert counts["all"] == 3
