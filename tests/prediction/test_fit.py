"""The fit finds planted constants, with or without outliers, and leaves out models on request."""

from dataclasses import replace

import pytest

from benchmarks.prediction.fit import Job, fit, hardware_with, jobs
from benchmarks.prediction.folds import FAMILIES, Fold
from benchmarks.prediction.predicted import predict_seconds
from benchmarks.prediction.rows import Measured
from tests.prediction.test_judge import measured
from tests.rows import rows

START = {"matrix h100": (0.6, 0.3, 0.95)}


def planted(share: float) -> list[Measured]:
    """Return runs as they would be if products sustained a share of the peak."""
    rows = measured([1.0] * 4)
    seconds = predict_seconds(rows, hardware_with({"matrix h100": share}))
    return [replace(row, seconds=float(one)) for row, one in zip(rows, seconds, strict=True)]


@rows("share", 0.5, 0.8)
def test_a_planted_constant_is_found(share: float) -> None:
    assert fit(planted(share), START)["matrix h100"] == pytest.approx(share, rel=0.01)


def test_a_run_that_took_twice_as_long_hardly_counts() -> None:
    rows = 3 * planted(0.8)
    plain = fit(rows, START)["matrix h100"]
    rows[0] = replace(rows[0], seconds=2 * (rows[0].seconds or 0))
    assert fit(rows, START)["matrix h100"] == pytest.approx(plain, rel=0.025)
    # one of twelve: the mean of all logs moves by 6 %


def test_a_fold_leaves_out_its_rows_and_only_changes_the_gpus_they_ran_on() -> None:
    left_out = sorted(FAMILIES["llama 8b"])[0]
    rows = measured([1.0] * 4)
    rows[1] = replace(rows[1], model=replace(rows[1].model, name=left_out), release="26.02")
    job = Job(Fold("family", "llama 8b"), old=False)
    assert left_out not in {row.name for row in job.rows(rows)}
    assert len(job.rows(rows)) == 3
    later = [job.name for job in jobs(rows) if not job.old]
    assert later == ["all", "llama 8b", "generation hopper", "release 26.02"]
    assert [job.name for job in jobs(rows) if job.old] == ["all"]
    assert not Job(Fold("generation", "hopper"), old=False).rows(rows)
