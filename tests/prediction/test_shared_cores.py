"""Ranks that share cores: steps whose seconds are counted by hand."""

from dataclasses import replace

import numpy as np
import pytest

import mimokit
from mimokit.config import ConfigError
from mimokit.prediction import Prediction
from mimokit.prediction.hardware import Cores, Efficiency, Hardware, RankLink
from tests.layouts import digits_config
from tests.layouts_apart import apart_config
from tests.rows import rows

LINK = RankLink(1e9, 1e-4)
CORES = Cores({1: 1.0, 2: 2.0, 8: 2.0}, micro_batch=2e-3, step=3e-3)
MACHINE = Hardware(
    "a core", 4.0, 1e10, {"fp32": 4e10}, 8, LINK, LINK,
    Efficiency({"fp32": 0.5}, 0.5, 1.0, 1.0, 1.0, 1e-5), cores=CORES,
)  # fmt: skip
EACH_A_CORE = replace(MACHINE, cores=replace(CORES, shared={1: 1.0, 8: 8.0}))


def predicted(config: object, hardware: Hardware = MACHINE) -> Prediction:
    return mimokit.predict(config, gpu=hardware)  # type: ignore[arg-type]


def test_equal_ranks_divide_the_cores_among_them() -> None:
    config = digits_config((1, 8), (1, 8))
    alone, shared = predicted(config, EACH_A_CORE), predicted(config)
    assert shared.seconds == pytest.approx(4 * alone.seconds)
    assert sum(shared.parts.values()) == pytest.approx(shared.seconds)
    assert shared.parts["matrix"] == pytest.approx(4 * alone.parts["matrix"])
    assert shared.utilisation == pytest.approx(alone.utilisation)
    two = digits_config((1, 2), (1, 2))
    assert predicted(two).seconds == predicted(two, EACH_A_CORE).seconds


def test_a_rank_that_waits_leaves_its_core_to_others() -> None:
    """On separate ranks not all work at once: the step takes less than equal shares would."""
    config = apart_config((1, 1, 2), (1, 2, 2), 4)
    alone, shared = predicted(config, EACH_A_CORE).seconds, predicted(config).seconds
    assert alone < shared < 6 / 2 * alone
    many = replace(MACHINE, cores=replace(CORES, shared={1: 1.0, 6: 6.0}))
    assert predicted(config, many).seconds == pytest.approx(alone)


@rows("name, change", ("micro-batches", {"micro_batch": 1.0}), ("steps", {"step": 1.0}))
def test_what_is_counted_once(name: str, change: dict[str, float]) -> None:
    """Two modules on each rank have 3 micro-batches; a step is one."""
    config = digits_config((1, 1), (1, 1), num_microbatches=3)
    more = replace(
        MACHINE, cores=replace(CORES, **{k: getattr(CORES, k) + v for k, v in change.items()})
    )
    added = predicted(config, more).seconds - predicted(config).seconds
    assert added == pytest.approx(6 if name == "micro-batches" else 1)


def test_a_ring_has_a_hop_less_than_ranks_and_a_message_a_header() -> None:
    slow = replace(
        MACHINE, domain=replace(LINK, latency=1.1e-3), network=replace(LINK, latency=1.1e-3)
    )

    def hops(config: object) -> float:
        cores = replace(slow.cores, shared={1: 1.0, 8: 8.0})
        near = replace(MACHINE, cores=cores)
        return 1e3 * (
            predicted(config, replace(slow, cores=cores)).seconds - predicted(config, near).seconds
        )

    # Both modules reduce their gradients in two turns of a ring.
    for ranks in (2, 4, 8):
        assert hops(digits_config((1, ranks), (1, ranks))) == pytest.approx(2 * 2 * (ranks - 1))


def test_latency_is_that_of_as_many_ranks() -> None:
    known = replace(MACHINE, cores=replace(CORES, latency={2: 4e-4, 8: 1e-4}))
    latencies = [known.with_ranks(ranks).network.latency for ranks in (1, 2, 5, 8, 64)]
    assert latencies == pytest.approx([4e-4, 4e-4, 2.5e-4, 1e-4, 1e-4])
    assert MACHINE.with_ranks(2) == MACHINE
    assert known.ranks_per_core(np.array([2, 8, 16])) == pytest.approx([1.0, 4.0, 4.0])


def test_the_stack_is_that_of_the_engine_unless_another_is_named() -> None:
    config = digits_config((1, 2), (1, 2))
    own = predicted(config).seconds
    assert mimokit.predict(config, gpu=MACHINE, software="mimokit").seconds == own
    assert mimokit.predict(config, gpu=MACHINE, software="megatron-core").seconds != own
    with pytest.raises(ConfigError, match="'mimokit': it was measured on CPUs, and NVIDIA H100"):
        mimokit.predict(config, gpu="h100", software="mimokit")
