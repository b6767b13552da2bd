"""`python -m tests.chaos`: a seed draws the same faults again; a broken promise is found."""

from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from tests import chaos
from tests.chaos import FAULTS, OTHERS, STEPS, Chaos, Fault, drawn


def test_a_seed_draws_the_same_faults_again_and_all_come() -> None:
    one, again, other = ([drawn(random) for _ in range(60)] for random in map(Random, (1, 1, 2)))
    assert one == again != other
    assert {fault.name for fault in one} == {*FAULTS, *OTHERS}


@pytest.mark.parametrize(
    ("iterations", "losses", "cause", "broken"),
    [
        (range(STEPS), [0.5] * STEPS, "rank 1 (process 7) was killed by SIGKILL", ""),
        (
            [*range(3), *range(2, STEPS)],
            [0.5] * (STEPS + 1),
            "rank 1 was killed",
            "every step once",
        ),
        (range(1, STEPS), [0.5] * (STEPS - 1), "rank 1 was killed", "every step once"),
        (range(STEPS), [0.5] * (STEPS - 1) + [0.5 + 1e-16 * 2], "rank 1 was killed", "bit for bit"),
        (range(STEPS), [0.5] * STEPS, "rank 0 was killed by SIGKILL", "rank 0 was killed"),
    ],
    ids=["right", "a step twice", "a step missing", "another loss", "another rank named"],
)
def test_a_broken_promise_is_found(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    iterations: Any,
    losses: list[float],
    cause: str,
    broken: str,
) -> None:
    metrics = pd.DataFrame({"iteration": list(iterations), "loss": losses})
    run = SimpleNamespace(
        restarts=[SimpleNamespace(cause=cause)], done=True, samples=[], result=lambda timeout: None
    )
    monkeypatch.setattr(chaos, "_begun", lambda cluster, directory: run)
    monkeypatch.setattr(chaos, "read_run", lambda folder: SimpleNamespace(metrics=metrics))
    monkeypatch.setitem(chaos.FAULTS, "kill", lambda chaos, fault: lambda: None)  # type: ignore[arg-type]
    of: Any = Chaos(SimpleNamespace(pids=[1, 2]), tmp_path, [0.5] * STEPS)  # type: ignore[arg-type]
    if not broken:
        chaos.trained(of, Fault("kill", 1, 3))
        return
    with pytest.raises(AssertionError, match=broken):
        chaos.trained(of, Fault("kill", 1, 3))


def test_dropped_packets_are_read_as_tc_tells_them() -> None:
    told = "qdisc tbf 8001: root rate 200Mbit\n Sent 12 bytes 3 pkt (dropped 21, overlimits 0)"
    assert chaos.dropped(told) == 21


def test_packets_that_cannot_be_dropped_are_not_said_to_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    refused = SimpleNamespace(returncode=2, stderr="Specified qdisc kind is unknown.\n")
    monkeypatch.setattr(chaos.subprocess, "run", lambda *arguments, **options: refused)
    monkeypatch.setattr(chaos, "NOT_MEASURED", [])
    of: Any = Chaos(SimpleNamespace(pids=[1, 2]), tmp_path, [])  # type: ignore[arg-type]
    chaos.FAULTS["lost packets"](of, Fault("lost packets", 1, 3))()
    assert chaos.NOT_MEASURED == ["Specified qdisc kind is unknown."]
