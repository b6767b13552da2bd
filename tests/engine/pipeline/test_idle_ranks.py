"""Ranks between those of modules take part in no group and do nothing in a step."""

import pytest

import mimokit
from mimokit.config import ExperimentConfig
from mimokit.config.runtime import CheckpointConfig
from mimokit.experiment import Stepper, resume_check, resume_proof, train
from mimokit.experiment.reference import single_rank
from tests.evaluations import QUICK
from tests.invariance import assert_computes_the_same
from tests.layouts_apart import apart_config
from tests.layouts_multimodal import LANGUAGE


def with_gap() -> ExperimentConfig:
    """Return an encoder on rank 0 and the stages of the language model on ranks 2 and 3."""
    config = apart_config((1, 1, 1), (1, 2, 1), 2)
    config.model.allow_rank_gaps = True
    config.model.get_parallelism(LANGUAGE).rank_offset = 2
    with pytest.warns(UserWarning, match="rank 1 has no module"):
        return config.finalize()


def test_ranks_without_a_module_change_nothing(cluster):
    assert_computes_the_same(cluster, with_gap())


def test_they_are_planned_as_idle():
    program = mimokit.plan(with_gap()).program
    assert program.stages_of(1) == program.actions(1) == ()
    with pytest.raises(KeyError, match="rank 4 works on no stage"):
        program.actions(4)


def test_they_are_healthy_in_a_traced_run_with_checkpoints(cluster, tmp_path):
    config = with_gap()
    config.runtime.num_iterations = 2
    run = train(
        cluster,
        config,
        directory=tmp_path / "run",
        trace=True,
        evaluations=QUICK,
        checkpoints=CheckpointConfig(directory=str(tmp_path / "saved"), interval=1),
    )
    rows = run.result().steps
    assert set(rows["rank"]) == {0, 1, 2, 3}
    assert rows.groupby("iteration")["loss"].nunique().max() == 1, "all know the loss"
    assert run.health().healthy


def test_a_stepper_has_nothing_to_do_there(cluster):
    with Stepper(cluster, with_gap()) as stepper:
        end = stepper.run_until(action="report")
        assert stepper.differences == ()
        state = stepper.state()
    assert end.result is not None
    assert list(state["modules"]) == ["images", "", LANGUAGE, LANGUAGE]


def test_a_checkpoint_with_them_is_that_of_one_process(cluster, monkeypatch):
    monkeypatch.setattr(resume_proof, "BEFORE", 1)
    monkeypatch.setattr(resume_proof, "AFTER", 1)
    report = resume_check(cluster, with_gap(), into=single_rank(with_gap()))
    assert report.passed, report.findings
