"""Commands that prove, explain and look into checkpoints, on the engines of the tests."""

from __future__ import annotations

import json
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner, Result

from mimokit.cli.main import app
from tests import seams
from tests.evaluations import QUICK
from tests.experiment.culprit.faults import FAULTS
from tests.experiment.culprit.faults.fault import _in_layouts
from tests.layouts import digits_config
from tests.planted import planted

if TYPE_CHECKING:
    from mimokit.cluster import EngineCluster

FIRST = "layers.0.mlp.linear_fc1.weight"
NOT_REDUCED = next(fault for fault in FAULTS if fault.name == "gradients are not reduced")


@pytest.fixture
def on_engines(cluster: EngineCluster, monkeypatch: pytest.MonkeyPatch) -> EngineCluster:
    monkeypatch.setattr(seams.ENGINE_CLUSTER, lambda *_, **__: nullcontext(cluster))
    return cluster


def layout(folder: Path, name: str, *, seed: int = 1, data: int = 1, tensor: int = 1) -> str:
    config = digits_config((tensor, data), (tensor, data), seed=seed, num_iterations=3)
    return str(config.save(folder / f"{name}.yaml"))


def call(*words: str) -> Result:
    return CliRunner().invoke(app, words, env={"COLUMNS": "100"})


def test_two_layouts_are_compared_and_the_wrong_one_is_named(
    on_engines: EngineCluster, tmp_path: Path
) -> None:
    one, two = layout(tmp_path, "one"), layout(tmp_path, "two", data=2)
    right = call("verify", two, "--against", one, "--steps", "1", "--json")
    assert right.exit_code == 0, right.output
    assert json.loads(right.stdout)["passed"]
    make = partial(_in_layouts, NOT_REDUCED.make)
    with planted(on_engines, NOT_REDUCED.target, make, 2):
        wrong = call("verify", two, "--against", one, "--steps", "1")
    assert wrong.exit_code == 1
    assert len(wrong.stdout.splitlines()) <= 20
    assert "not added up" in " ".join(wrong.stdout.split())
    assert "Traceback" not in wrong.output


def test_layouts_that_compute_something_else_are_not_compared(tmp_path: Path) -> None:
    one, other = layout(tmp_path, "one"), layout(tmp_path, "other", seed=2)
    done = call("verify", one, "--against", other)
    assert done.exit_code == 2
    assert "differ in runtime.seed" in " ".join(done.stderr.split())
    both = call("verify", one, "--against", other, "--shrink")
    assert both.exit_code == 2
    assert "give --shrink, or --against" in " ".join(both.stderr.split())


def test_a_resume_is_proved_under_another_layout(
    on_engines: EngineCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mimokit.experiment import resume_proof

    for steps in ("BEFORE", "AFTER"):
        monkeypatch.setattr(resume_proof, steps, 1)
    saved, resumed = layout(tmp_path, "saved", data=2), layout(tmp_path, "resumed", tensor=2)
    done = call("verify", saved, "--resume-check", "--into", resumed, "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["passed"]
    assert report["findings"] == []


def test_checkpoints_are_listed_and_written_whole(
    on_engines: EngineCluster, tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    from mimokit.experiment import train

    config = digits_config((2, 1), (2, 1), num_iterations=2)
    train(on_engines, config, evaluations=QUICK, directory=tmp_path / "run", checkpoints=1).result()
    listed = call("checkpoints", str(tmp_path / "run"))
    assert listed.exit_code == 0, listed.output
    found = json.loads(call("checkpoints", str(tmp_path / "run"), "--json").stdout)
    assert [checkpoint["step"] for checkpoint in found["checkpoints"]] == [1, 2]
    arguments = ("export", str(tmp_path / "run"), "--to", "safetensors")
    nowhere = call(*arguments)
    assert nowhere.exit_code == 2
    assert "Option --output: name a new folder" in nowhere.stderr
    done = call(*arguments, "--output", str(tmp_path / "whole"))
    assert done.exit_code == 0, done.output
    for module, network in config.model.module_architectures.items():
        weights = load_file(tmp_path / "whole" / f"{module}.safetensors")
        assert not [name for name in weights if name.startswith(("exp_avg", "step"))]
        (first,) = (weights[name] for name in weights if name.endswith(FIRST))
        assert first.shape == (4 * network.hidden_size, network.hidden_size)
