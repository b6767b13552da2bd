"""A sweep on the cluster: experiments that fail in different ways, and going on with it."""

import io
import json
import os
import signal
import time

import pandas as pd
import pytest
from rich.console import Console

from mimokit.analysis import read_run
from mimokit.config import ConfigError
from mimokit.experiment import sweep
from mimokit.experiment.sweeps.report import INTERRUPTED, follow
from mimokit.result_files import SweepFile
from tests.cluster.functions import PAUSE
from tests.evaluations import QUICK
from tests.layouts import digits_config
from tests.processes import interrupt_in
from tests.symptoms import acted_on_after
from tests.waiting import wait_until


class _Faults:
    """Data of which a config's learning rate says what it does when it is read the second time."""

    def __call__(self, config):
        import torch.distributed as dist

        from mimokit.engine.data.sources import DigitData, TrainingData

        data = DigitData()(config)
        calls, rate = [0], config.runtime.learning_rate

        def collate(samples):
            calls[0] += 1
            time.sleep(PAUSE)
            if calls[0] == 3 and dist.get_rank() == 1:
                if rate == RAISES:
                    raise KeyError("page 7 is missing")
                if rate == OUT_OF_MEMORY:
                    import torch

                    torch.empty(2**50)
                time.sleep(SENT)
                if rate == KILLED:
                    os.kill(os.getpid(), signal.SIGKILL)
                if rate == STOPPED:
                    os.kill(os.getpid(), signal.SIGSTOP)
            if calls[0] == 3 and rate == SLOW:
                time.sleep(60)
            return data.collate_fn(samples)

        return TrainingData("faulty", data.train, collate)


SENT = 1.0
"""Seconds after which the samples of earlier steps have left a rank: several batches."""
RAISES, OUT_OF_MEMORY, KILLED, SLOW, STOPPED = 0.011, 0.012, 0.013, 0.014, 0.015


def _config(rate=0.001, encoder=(1, 2), language=(2, 1), **runtime):
    return digits_config(encoder, language, learning_rate=rate, **{"num_iterations": 4, **runtime})


def _experiments(board=None):
    refused = _config()
    refused.data.seq_length = 7
    return {
        "first": _config(tensorboard_dir=board),
        "raises": _config(RAISES),
        "memory": _config(OUT_OF_MEMORY),
        "killed": _config(KILLED),
        "stopped": _config(STOPPED),
        "refused": refused,
        "large": _config(encoder=(1, 16), language=(2, 8), samples_per_microbatch=16),
        "last one": _config(encoder=(1, 4), language=(2, 2), tensorboard_dir=board),
    }


def _error(result, name):
    (one,) = [one for one in result.experiments if one.name == name]
    return json.loads((one.directory / "error.json").read_text())


@pytest.fixture(scope="module")
def faulty(shared_cluster, tmp_path_factory):
    """A sweep of which six experiments fail; what its listeners heard."""
    heard = []
    board = tmp_path_factory.mktemp("board")
    with pytest.MonkeyPatch.context() as patch:
        acted_on_after(patch, "stopped", 1.0)
        run = sweep(
            shared_cluster.get(),
            _experiments(str(board)),
            results_dir=tmp_path_factory.mktemp("results"),
            time_limit=120.0,
            data=_Faults(),
            evaluations=QUICK,
        )
        run.on_change(lambda one: heard.append({e.name: e.status for e in one.experiments}))
        result = run.result(timeout=300)
    assert run.done
    assert run.current == ()
    # The last notice comes from a separate thread.
    wait_until(lambda: heard[-1] == {one.name: one.status for one in result.experiments})
    return result, heard, board


def test_what_fails_says_why_and_the_sweep_goes_on(faulty):
    result, heard, _ = faulty
    status = {one.name: one.status for one in result.experiments}
    assert status == {
        "first": "completed",
        "raises": "failed",
        "memory": "failed",
        "killed": "failed",
        "stopped": "failed",
        "refused": "refused",
        "large": "refused",
        "last one": "completed",
    }
    assert any("running" in one.values() for one in heard)
    assert _error(result, "raises")["cause"] == "KeyError"
    for name in ("raises", "memory", "killed", "stopped"):
        error = _error(result, name)
        assert (error["rank"], error["step"]) == (1, 2), name
    assert "in collate" in _error(result, "raises")["traceback"]
    assert _error(result, "killed")["type"] == "RankDied"
    assert _error(result, "stopped")["type"] == "RankFrozen"
    assert "seq_length" in " ".join(_error(result, "refused")["sentences"])
    assert "its world has 16 ranks" in _error(result, "large")["sentences"][0]
    assert "page 7 is missing" in next(o.message for o in result.experiments if o.name == "raises")


def test_the_folders_have_all_rows_and_one_table_has_them_together(faulty):
    result, _, _ = faulty
    table = result.table
    assert list(table.columns[:3]) == ["experiment", "iteration", "total_time"]
    rows = table.groupby("experiment").size().to_dict()
    assert rows == {"first": 4, "last one": 4, "raises": 2, "memory": 2, "killed": 2, "stopped": 2}
    assert table.equals(pd.read_csv(result.directory / SweepFile.ALL_EXPERIMENTS))
    last = result.experiments[-1]
    assert read_run(last.directory).metrics["loss"].iloc[-1] == pytest.approx(last.loss)
    assert (last.ranks, last.iteration, last.iterations) == (4, 4, 4)
    assert not (last.directory / "error.json").exists()
    info = read_run(last.directory).info
    assert info["hosts"]
    assert info["hardware"]["cores"] >= 1


def test_experiments_do_not_share_a_folder_of_tensorboard(faulty):
    result, _, board = faulty
    files = board.rglob("events.out.tfevents.*")
    folders = [file.parent.relative_to(board / result.directory.name).name for file in files]
    assert sorted(folders) == ["first", "last one"]


def test_a_sweep_goes_on_where_it_was(cluster, faulty):
    """Complete experiments are skipped, also failed ones run again, a changed config too."""
    result, _, _ = faulty
    before = (result.directory / "first" / "metrics.csv").read_bytes()
    experiments = {
        "first": _config(),
        "raises": _config(RAISES),
        "last one": _config(encoder=(1, 4), language=(2, 2), num_iterations=2),
    }
    again = sweep(cluster, experiments, resume=result.directory, evaluations=QUICK).result(200)
    first, raises, last = again.experiments
    assert (first.status, raises.status, last.status) == ("skipped", "completed", "completed")
    assert (result.directory / "first" / "metrics.csv").read_bytes() == before
    assert not (raises.directory / "error.json").exists()
    assert list((raises.directory / "earlier").iterdir())
    assert (last.iterations, len(read_run(last.directory).metrics)) == (2, 2)
    assert again.table.groupby("experiment").size().to_dict() == {
        "first": 4,
        "raises": 4,
        "last one": 2,
    }


def test_experiments_run_side_by_side_on_free_engines(cluster, tmp_path):
    """Four worlds of 2, 2, 4 and 8 ranks on 8 engines; one rank is killed next to the others."""
    experiments = {
        "two": _config(num_iterations=100_000),
        "killed": _config(KILLED),
        "four": _config(encoder=(1, 4), language=(2, 2)),
        "eight": _config(encoder=(1, 8), language=(4, 2)),
    }
    run = sweep(
        cluster,
        experiments,
        results_dir=tmp_path,
        side_by_side=True,
        data=_Faults(),
        evaluations=QUICK,
    )
    wait_until(lambda: all(_record(run, name).ended for name in ("killed", "four")))
    two, eight = _record(run, "two"), _record(run, "eight")
    assert (two.status, eight.status) == ("running", "waiting"), "eight ranks are not free"
    first = _record(run, "two").iteration
    wait_until(lambda: _record(run, "two").iteration > first)
    (current,) = run.current
    current.stop()
    result = run.result(timeout=300)
    assert [one.status for one in result.experiments] == [
        "stopped",
        "failed",
        "completed",
        "completed",
    ]
    assert _error(result, "killed")["rank"] == 1


def test_stop_and_skip_end_what_they_name(cluster, tmp_path):
    long = {"num_iterations": 100_000}
    names = ("skipped at once", "skipped running", "stopped", "never")
    run = sweep(
        cluster,
        {name: _config(**long) for name in names},
        results_dir=tmp_path,
        data=_Faults(),
        evaluations=QUICK,
    )
    run.skip("skipped at once")
    wait_until(lambda: _iteration(run, "skipped running") > 1)
    assert len(run.current) == 1
    run.skip()
    wait_until(lambda: _iteration(run, "stopped") > 1)
    run.stop()
    result = run.result(timeout=300)
    status = [one.status for one in result.experiments]
    assert status == ["skipped", "skipped", "stopped", "stopped"]
    assert not (result.experiments[3].directory / "metrics.csv").exists()
    stopped = read_run(result.experiments[2].directory)
    assert stopped.info["status"] == "stopped"
    assert len(stopped.metrics) == stopped.info["iterations"]["completed"] > 1
    with pytest.raises(KeyError):
        run.skip("no such experiment")


def test_ctrl_c_ends_the_sweep_after_the_iteration_and_says_so(cluster, tmp_path):
    long = {"num_iterations": 100_000}
    run = sweep(
        cluster,
        {"first": _config(**long), "second": _config(**long)},
        results_dir=tmp_path,
        data=_Faults(),
        evaluations=QUICK,
    )
    wait_until(lambda: _iteration(run, "first") > 1)
    said = io.StringIO()
    interrupt_in("follow")
    assert follow(run, Console(file=said, width=200)) == INTERRUPTED
    assert "Stopping after this iteration" in said.getvalue()
    assert "[2/2] second: stopped (the sweep was stopped before it)" in said.getvalue()
    first = read_run(_record(run, "first").directory)
    assert first.info["status"] == "stopped"
    assert set(run.result().table["experiment"]) == {"first"}


def test_an_interrupted_sweep_is_aborted_at_a_second_interrupt(cluster, tmp_path):
    config = _config(SLOW)
    run = sweep(cluster, {"slow": config}, results_dir=tmp_path, data=_Faults())
    wait_until(lambda: _iteration(run, "slow") > 1)
    interrupt_in("result").join(0)
    interrupt_in("end_run")
    with pytest.raises(KeyboardInterrupt):
        run.result(timeout=300)
    assert run.done
    assert [(one.status, one.message) for one in run.experiments] == [("stopped", "aborted")]


def test_an_experiment_ends_at_its_time_limit(cluster, tmp_path):
    run = sweep(
        cluster, {"slow": _config(SLOW)}, results_dir=tmp_path, data=_Faults(), time_limit=2.0
    )
    (slow,) = run.result(timeout=300).experiments
    assert slow.status == "failed"
    assert slow.message == "The run was ended at its time limit of 2 s."
    assert _error(run.result(), "slow")["type"] == "TimeLimitError"
    assert read_info(slow)["status"] == "failed"


def test_a_strict_sweep_starts_nothing(cluster, tmp_path):
    with pytest.raises(ConfigError, match="seq_length"):
        sweep(cluster, _experiments(), results_dir=tmp_path, strict=True)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="time_limit is 0"):
        sweep(cluster, _config(), results_dir=tmp_path, time_limit=0)


def read_info(record):
    return json.loads((record.directory / "experiment_info.json").read_text())


def _record(run, name):
    return next(one for one in run.experiments if one.name == name)


def _iteration(run, name):
    return _record(run, name).iteration
