"""Random layouts, and what a plan that is not refused must cover."""

from collections import Counter
from random import Random

from mimokit.config import ExperimentConfig
from mimokit.planning.types import LayoutPlan
from tests.planning.layouts import layout, sizes

SIZES = (1, 1, 1, 2, 2, 3, 4, 6, 8)
MODES = ("homogeneous", "colocated", "heterogeneous")


def random_layout(random: Random) -> ExperimentConfig:
    """Return a config of one or two encoders, most of which fit together."""
    mode, encoders = random.choice(MODES), random.choice((1, 1, 2))
    names = ["images", "audio"][:encoders]
    offset, modules = 0, {}
    shared = _sizes(random)
    for name in [*names, "language"]:
        drawn = shared if mode == "homogeneous" else _sizes(random)
        if mode == "heterogeneous" and random.random() < 0.8:
            drawn = drawn | {"offset": offset}
        offset += drawn["tp"] * drawn["dp"] * drawn["pp"] * drawn.get("cp", 1)
        modules[name] = sizes(**drawn)
    language = modules.pop("language")
    batches = random.choice((1, 2, 3, 4, 8))
    return layout(mode, language, random.choice((1, 2, 4, 8)), batches, **modules)


def _sizes(random: Random) -> dict[str, int]:
    return {
        "tp": random.choice(SIZES),
        "dp": random.choice(SIZES),
        "pp": random.choice((1, 1, 1, 2, 3)),
    }


def check_layout(plan: LayoutPlan) -> None:
    """Check that ranks and samples are covered exactly; raises AssertionError."""
    every = Counter(rank for module in plan.modules.values() for rank in set(module.ranks))
    assert set(every) == set(range(plan.world_size))
    if plan.deployment_mode == "heterogeneous":
        assert set(every.values()) == {1}
    total = plan.batch.samples_per_microbatch
    for name, module in plan.modules.items():
        batch = plan.batch.modules[name]
        copies = Counter(
            sample
            for rank, (start, stop) in batch.samples.items()
            if all(module.coordinates(rank)[axis] == 0 for axis in ("tp", "pp", "cp"))
            for sample in range(start, stop)
        )
        assert copies == dict.fromkeys(range(total), 1), (name, copies)
        assert set(batch.samples) == set(module.ranks)
        for rank in batch.loads:
            assert batch.loaded[rank][0] <= batch.samples[rank][0]
            assert batch.samples[rank][1] <= batch.loaded[rank][1]
