"""What mimokit wrote before its rooms were rebuilt is still read, and its JSON has its names."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import mimokit
from mimokit.analysis import phase_times, read_run, read_trace, simulate_as_measured
from mimokit.engine.strategies import DeMoStrategy
from mimokit.experiment import VerificationReport
from mimokit.extras.strategies.fits.job import FitError
from tests.extras.strategies.fits.in_process import OneNode
from tests.extras.strategies.fits.nets import Linear, places, trainer
from tests.rows import rows

FOLDER = Path(__file__).parent / "fixtures" / "first_release"
CALIBRATION = FOLDER / "calibration" / "this-machine.json"
NAMES = ("colocated", "heterogeneous")
RANKS, ITERATIONS = 8, 4


@rows("name", *NAMES)
def test_a_run_folder_is_read(name: str) -> None:
    run = read_run(FOLDER / "runs" / name)
    assert len(run.metrics) == ITERATIONS
    assert len(run.metrics_by_rank) == RANKS * ITERATIONS
    assert run.metrics["loss"].between(0.1, 10).all()
    assert len(run.evaluations) == 1
    assert run.info["deployment_mode"] == name
    phases = phase_times(run.metrics_by_rank)
    assert set(phases["rank"]) == set(range(RANKS))
    assert mimokit.plan(run.config_file).world_size == run.info["world_size"] == RANKS


@rows("name", *NAMES)
def test_a_trace_is_read_and_fits_the_plan(name: str) -> None:
    trace = read_trace(FOLDER / "runs" / name)
    assert set(trace["rank"]) == set(range(RANKS))
    assert set(trace["iteration"]) == set(range(ITERATIONS))
    assert (trace["stop"] >= trace["start"]).all()
    if name == "heterogeneous":
        plan = mimokit.plan(FOLDER / f"digits_{name}.yaml")
        assert simulate_as_measured(trace, plan).makespan > 0


def test_the_hardware_of_a_calibration_is_read_and_predicts() -> None:
    assert mimokit.load_hardware(CALIBRATION).domain_ranks == RANKS
    prediction = mimokit.predict(FOLDER / "digits_heterogeneous.yaml", gpu=CALIBRATION)
    assert 0 < prediction.low <= prediction.seconds <= prediction.high


def test_a_checkpoint_of_a_fit_is_refused(tmp_path: Path) -> None:
    """It is a pickle of objects, which is not read."""
    shutil.copytree(FOLDER / "fit", tmp_path / "checkpoints" / "mimokit" / "demo")
    arguments: dict[str, Any] = {"max_steps": 8, "batch_size": 8, "val_size": 20, "resume": True}
    arguments |= {"strategy": DeMoStrategy(), "run_name": "demo", **places(tmp_path)}
    with pytest.raises(FitError, match=r"is of an earlier version of mimokit"):
        trainer(OneNode(), Linear).fit(**arguments)


@rows("name", *NAMES)
def test_the_json_of_a_plan_is_the_same_except_for_the_batch(name: str) -> None:
    before = _json(f"plan_{name}")
    now = json.loads(json.dumps(mimokit.plan(FOLDER / f"digits_{name}.yaml").to_json()))
    config = mimokit.load_experiment_config(FOLDER / f"digits_{name}.yaml")
    microbatch = now["batch"].pop("samples_per_microbatch")
    assert microbatch == before["batch"]["global_batch_size"], "what the name meant before"
    before["batch"]["global_batch_size"] = microbatch * config.data.num_microbatches
    for bridge in (*before["bridges"], *now["bridges"]):
        for name in ("reason", "reason_backward"):
            assert isinstance(bridge.pop(name, ""), str), "a sentence, which may be worded anew"
    assert now == before


def test_the_json_of_a_verification_is_the_same() -> None:
    before = _json("verify_heterogeneous")
    report = VerificationReport(
        name=before["name"],
        data=before["data"],
        layout=before["layout"],
        tolerance=before["tolerance"],
        losses=tuple(before["losses"]),
        oracle_losses=tuple(before["oracle_losses"]),
        gradient_differences=tuple(before["gradient_differences"]),
        weight_differences=tuple(before["weight_differences"]),
        worst_parameters={},
    )
    now = report.to_json()
    assert {key: now[key] for key in before} == before
    assert set(now) - set(before) == {
        "strategy",
        "worst_parameters",
        "adam_epsilon",
        "unproved",
        "gradient_rounding",
        "weight_rounding",
        "precision",
        "yardstick",
        "rerouted",
        "nearly_tied",
    }


def _json(name: str) -> Any:
    return json.loads((FOLDER / "json" / f"{name}.json").read_text())
