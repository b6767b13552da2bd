"""What the README shows is what there is."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.testing import CliRunner

import mimokit
from mimokit.cli.main import app
from mimokit.config.strategy import StrategyName
from mimokit.experiment.sweeps.choice import choose, collect
from tests.experiment.fits.in_process import OneNode

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def test_its_config_can_be_planned(tmp_path: Path) -> None:
    file = tmp_path / "readme.yaml"
    file.write_text(block("yaml"))
    plan = mimokit.plan(mimokit.load_experiment_config(file))
    assert plan == mimokit.plan(ROOT / "configs" / "digits_colocated.yaml")


def test_its_names_exist() -> None:
    for statement in ast.parse(block("python")).body:
        if isinstance(statement, ast.ImportFrom):
            assert statement.module is not None
            for name in statement.names:
                assert hasattr(importlib.import_module(statement.module), name.name)


class Nodes(OneNode):
    def close(self) -> None: ...


def test_its_trainer_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it stands, but on one node, which needs no engine."""
    snippet = next(one for one in re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.M)
                   if "Trainer(" in one)  # fmt: skip
    assert "num_nodes=2" in snippet
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mimokit.experiment.fits.trainer.EngineCluster", lambda *_, **__: Nodes())
    names: dict[str, Any] = {"__name__": "snippet"}
    exec(snippet.replace("num_nodes=2", "num_nodes=1"), names)
    weight = names["model"].layer.weight
    assert (weight - 1).abs().max() < (names["trainer"].model.layer.weight - 1).abs().max()
    assert (tmp_path / "logs" / "first" / "train.csv").exists()
    assert (tmp_path / "checkpoints" / "mimokit" / "first" / "0" / "checkpoint.pt").exists()


def test_its_links_lead_somewhere() -> None:
    for text in (README, CONTRIBUTING):
        for link in re.findall(r"\]\(([^)]+)\)", text):
            if not link.startswith("http"):
                assert (ROOT / link).exists(), link


def test_the_rooms_of_contributing_exist() -> None:
    for path in re.findall(r"`((?:mimokit|widgets|tests|notebooks)/[\w/.]*)`", CONTRIBUTING):
        assert (ROOT / path).exists(), path


def test_its_sweeps_have_experiments_that_can_run() -> None:
    folders = set(re.findall(r"--experiments-dir (\S+)", README))
    assert folders
    for folder in folders:
        chosen = choose(collect(ROOT / folder), engines=8)
        assert [one.name for one in chosen if one.refusal is None]


OF_CHECKPOINTS = ("weights", "convert", "check", "generate", "memory", "advise")


def test_its_commands_answer() -> None:
    commands = re.findall(r"^mimokit (\w+) ([^-\s]\S+)", README, re.MULTILINE)
    shown = {name for name, _ in commands}
    layouts = {"plan", "run", "verify", "predict", "search", "export", "analyze", "config"}
    assert shown == {*layouts, *OF_CHECKPOINTS, "strategy"}
    for name, source in commands:
        if name == "search":
            assert source in mimokit.architecture.model_names()
        elif name == "analyze":
            assert f"--results-dir {source}\n" in README, "what an example before it has made"
        elif name in OF_CHECKPOINTS:
            assert source == "DIR", "a checkpoint of the reader's"
        elif name == "strategy":
            assert source in get_args(StrategyName)
        else:
            mimokit.plan(source if source.startswith("preset:") else ROOT / source)


@pytest.mark.parametrize("name", ["predict", "search", "export"])
def test_its_commands_about_layouts_run(name: str) -> None:
    (line,) = re.findall(rf"^mimokit ({name} [^#\n]*)", README, re.MULTILINE)
    ended = CliRunner().invoke(app, line.split())
    assert ended.exit_code == 0, ended.output
