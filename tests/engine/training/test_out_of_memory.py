"""A rank without memory says what it held; one that Linux ended for that is told apart."""

import pytest
import torch

from mimokit.cluster import process as of_linux
from mimokit.cluster.errors import RankDied
from mimokit.engine.training.memory import OutOfMemory, telling_what_is_held
from mimokit.experiment.health.report import HealthRecord
from mimokit.planning import plan_layout
from mimokit.samples import HealthSample
from tests.layouts import digits_config

HELD = {"images": {"weights": 1_200_000_000, "gradients": 600_000_000}, "text": {"weights": 5}}


@pytest.mark.parametrize(
    "allocate", [lambda: torch.empty(1 << 50), lambda: bytearray(1 << 60)], ids=["torch", "python"]
)
def test_an_allocation_that_fails_says_what_is_held(allocate) -> None:
    with (
        pytest.raises(OutOfMemory, match="no memory was left in iteration 3: ") as error,
        telling_what_is_held("of another cause", dict),
        telling_what_is_held("in iteration 3", lambda: HELD),
    ):
        allocate()
    assert "'images' weights 1.2 GB, gradients 600 MB; 'text' weights 5 B (" in str(error.value)


def test_other_errors_stay_what_they_are() -> None:
    with (
        pytest.raises(RuntimeError, match=r"^expected scalar type"),
        telling_what_is_held("in iteration 3", lambda: HELD),
    ):
        raise RuntimeError("expected scalar type Float")


def test_a_rank_that_linux_ends_for_lack_of_memory_is_named_with_what_it_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert of_linux.cause_of_death("SIGKILL", of_linux.kernel_kills()) == "SIGKILL"
    monkeypatch.setattr(of_linux, "kernel_kills", lambda: 4)
    assert of_linux.cause_of_death("SIGTERM", 3) == "SIGTERM"
    error = RankDied(1, 77, of_linux.cause_of_death("SIGKILL", 3))
    assert str(error).startswith(
        "rank 1 (process 77) was killed by SIGKILL, as this machine had no memory left; "
    )
    config = digits_config()
    record = HealthRecord(config, plan_layout(config))
    record.take(HealthSample(rank=0, iteration=0, digests={}, held={"text": {"weights": 7}}))
    record.take(HealthSample(rank=1, iteration=0, digests={}, held=HELD))
    record.note_held(error)
    assert error.__notes__ == [
        "In iteration 0 it held 'images' weights 1.2 GB, gradients 600 MB; 'text' weights 5 B."
    ]
