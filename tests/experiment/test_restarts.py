"""Attempts one after another: what is heard once, and when the last one was the last."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mimokit.cluster import ClusterError, EnginesMissing, RankError, RunAborted
from mimokit.experiment import restarts
from mimokit.experiment.restarts import FailedTwiceError, RestartedRun, Supervised
from mimokit.packed_list import TOGETHER
from mimokit.planning.checkpoints import MARKER, Checkpoint, DataPosition, folder_of_step, steps_in
from mimokit.samples import AnswersSample, ProfileSample, StepSample, from_wire, to_wire


class Attempt:
    """A run on two ranks that reports steps [first, last) and then fails, or not."""

    done, elapsed = True, 1.0

    def __init__(self, first: int, last: int, error: Exception | None) -> None:
        self._error = error
        self._messages = [
            to_wire(StepSample(step, loss=float(step), rank=rank))
            for step in range(first, last)
            for rank in range(2)
        ]

    def each_sample(self) -> Iterator[dict[str, Any]]:
        return iter(self._messages)

    def on_sample(self, callback: Callable[[dict[str, Any]], object]) -> None:
        for message in self._messages:
            callback(message)

    def result(self, timeout: float | None = None) -> list[Any]:
        if self._error is not None:
            raise self._error
        return ["done"]

    def wait_ended(self, timeout: float | None = None) -> bool:
        return True

    def stop(self) -> None:
        """Do nothing: it has ended."""

    abort = drain = end_idle = stop

    def remember(self, note: Any) -> None:
        self.note = note


def _save(folder: Path, step: int) -> None:
    data, update = DataPosition("", 1, 1, 1, 1), {"learning_rate_steps": step, "loss_scale": None}
    layout = {"mode": "homogeneous", "ranks": 2, "modules": {}}
    directory = folder / folder_of_step(step)
    directory.mkdir()
    content = Checkpoint(directory, step, layout, {}, {}, data, update).to_json()
    (directory / MARKER).write_text(json.dumps(content), encoding="utf-8")


LOST = ClusterError("rank 1 (process 7) was killed by SIGKILL; the next run starts it again")


def _run(
    folder: Path,
    ends: list[tuple[int, Exception | None]],
    restarts: int,
    away: Sequence[Exception] = (),
    damaged: int | None = None,
) -> Any:
    """Attempts that end after so many steps; a checkpoint is saved every two.

    Each of `away` is raised once in place of beginning again. The first attempt leaves the
    checkpoint of step `damaged` without its marker's end.
    """
    begun: list[int] = []
    missing = iter(away)

    def begin(checkpoint: Checkpoint | None) -> Any:
        if begun and (error := next(missing, None)):
            raise error
        first = 0 if checkpoint is None else checkpoint.step
        assert max(steps_in(folder), default=0) <= first, "ranks refuse it"
        last, error = ends[len(begun)]
        begun.append(first)
        for step in range(2, last + 1, 2):
            if not (folder / folder_of_step(step)).exists():
                _save(folder, step)
                if step == damaged and not first:
                    (folder / folder_of_step(step) / MARKER).write_text("{", encoding="utf-8")
        return Attempt(first, last, error)

    run = RestartedRun(begin(None), begin, Supervised(str(folder), restarts))
    return run, begun


def _ended(folder: Path, ends: list[Any], restarts: int, **trouble: Any) -> tuple[Any, list[int]]:
    run, begun = _run(folder, ends, restarts, **trouble)
    assert run.result(20) == ["done"]
    return run, list(begun)


def _done(folder: Path, ends: list[Any], **trouble: Any) -> list[int]:
    return _ended(folder, ends, 3, **trouble)[1]


def test_a_run_goes_on_from_the_last_checkpoint_and_is_heard_once(tmp_path: Path) -> None:
    idle = ClusterError("rank 1 did nothing for 9 s. It was here:\n\n  File ...")
    run, begun = _run(tmp_path, [(3, LOST), (5, idle), (6, None)], restarts=3)
    assert run.result(20) == ["done"]
    assert begun == [0, 2, 4]
    heard = [from_wire(message) for message in run.each_sample()]
    assert sorted((s.iteration, s.rank) for s in heard) == [
        (s, r) for s in range(6) for r in (0, 1)
    ]
    late: list[Any] = []
    run.on_sample(late.append)
    assert len(late) == run.sample_count == 12
    assert [(one.step, one.resumed) for one in run.restarts] == [(3, 2), (5, 4)]
    assert run.restarts[0].cause == str(LOST)
    assert run.restarts[1].cause == "rank 1 did nothing for 9 s"


def test_samples_of_every_kind_are_heard_once_each_however_many_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(self: Attempt, callback: Callable[[dict[str, Any]], object]) -> None:
        for message in self._messages:
            callback(message)
            step = from_wire(message).iteration
            callback(to_wire(AnswersSample(rank=0, iteration=step, answers=())))
            part = ProfileSample(rank=0, name="trace", part=step, parts=9999, content=b"")
            callback(to_wire(part))

    monkeypatch.setattr(Attempt, "on_sample", send)
    steps = 3 * TOGETHER  # a sample that is packed is freed, and another one takes its place
    run, _ = _run(tmp_path, [(3, LOST), (steps, None)], restarts=3)
    assert run.result(20) == ["done"]
    heard = [from_wire(message) for message in run.each_sample()]
    answers = [one.iteration for one in heard if isinstance(one, AnswersSample)]
    assert answers == list(range(steps))
    parts = [one for one in heard if isinstance(one, ProfileSample)]
    assert len(parts) == 2 * (3 + steps - 2)


@pytest.mark.parametrize(("damaged", "resumed"), [(4, 2), (2, 0)])
def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(
    tmp_path: Path, damaged: int, resumed: int
) -> None:
    with pytest.warns(RuntimeWarning, match=f"checkpoint of step {damaged} in .* is not whole"):
        begun = _done(tmp_path, [(damaged + 1, LOST), (6, None)], damaged=damaged)
    assert begun == [0, resumed]
    assert list(steps_in(tmp_path)) == [2, 4, 6], "whole ones, and that which was saved anew"
    assert len(list(tmp_path.glob(f"damaged-{folder_of_step(damaged)}-*"))) == 1


def test_what_ranks_find_damaged_is_passed_over_and_is_no_restart(tmp_path: Path) -> None:
    why = "Checkpoint 'x': of 1 file, rank_00000_0.safetensors has other bytes than were saved."
    refusal = RankError(0, "DamagedCheckpointError", why, "Traceback")
    with pytest.warns(RuntimeWarning, match=r"step 4 in .* is not whole: .* has other bytes than"):
        run, begun = _ended(tmp_path, [(5, LOST), (4, refusal), (6, None)], 1)
    assert begun == [0, 4, 2]
    assert [(one.step, one.resumed) for one in run.restarts] == [(5, 2)]
    assert run.restarts[0].cause == str(LOST)


def test_a_checkpoint_that_the_user_names_is_not_passed_over(tmp_path: Path) -> None:
    refusal = RankError(0, "DamagedCheckpointError", "Checkpoint 'x': damaged.", "Traceback")
    run, begun = _run(tmp_path, [(0, refusal), (9, None)], restarts=3)
    with pytest.raises(RankError):
        run.result(20)
    assert begun == [0]


def test_a_step_that_fails_twice_ends_the_run_and_is_named(tmp_path: Path) -> None:
    error = RankError(1, "ValueError", "no", "Traceback")
    run, begun = _run(tmp_path, [(1, LOST), (3, error), (3, error), (9, None)], restarts=9)
    with pytest.raises(
        FailedTwiceError, match=r"failed twice at step 3 .*rank 1 raised Value"
    ) as e:
        run.result(20)
    assert (e.value.step, e.value.rank, e.value.traceback) == (3, 1, "Traceback")
    assert begun == [0, 0, 2]


def test_a_run_waits_for_engines_that_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "_PAUSE", 0.01)
    away = [EnginesMissing("1 of 2 engines have died")] * 2
    with pytest.warns(RuntimeWarning, match="training waits to begin again: 1 of 2 eng") as told:
        begun = _done(tmp_path, [(3, LOST), (6, None)], away=away)
    assert (begun, len(told)) == ([0, 2], 1)


def test_a_run_that_cannot_begin_again_says_why_it_ended(tmp_path: Path) -> None:
    """As where this client has left the cluster: what it was told first says more."""
    run, begun = _run(tmp_path, [(3, LOST)], 3, away=[ClusterError("this cluster is closed")])
    with pytest.raises(ClusterError) as error:
        run.result(20)
    assert (error.value, begun, run.restarts) == (LOST, [0], ())
    assert "training could not begin again: this cluster is closed" in error.value.__notes__
    assert not hasattr(run, "_begin"), "which leads to the cluster"


@pytest.mark.parametrize(
    ("ends", "restarts", "raised"),
    [([(1, LOST), (2, LOST), (9, None)], 1, LOST), ([(1, RunAborted("gone"))], 3, None)],
)
def test_a_run_ends_without_restarts_left_or_when_it_is_aborted(
    ends: list[tuple[int, Exception | None]], restarts: int, raised: Any, tmp_path: Path
) -> None:
    run, begun = _run(tmp_path, ends, restarts)
    with pytest.raises(ClusterError) as error:
        run.result(20)
    assert raised is None or error.value is raised
    assert len(begun) == restarts + 1 if raised else len(begun) == 1
