"""A plan is proved without running it, and no fault that is planted in one is missed."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.plan_speed import colocated
from mimokit.architecture.tensor_cut import TensorShard
from mimokit.planning.layout import checked_config, plan_checked
from mimokit.planning.proof import prove
from mimokit.planning.proof.parameters import unheld_parts
from mimokit.planning.proof.sizes import unequal_sizes
from mimokit.planning.ranks import RankGrid
from tests.claims import CLAIMS
from tests.crossed import CROSSED
from tests.planning.proof.plans import layouts, planted
from tests.rows import rows
from tests.whole_runs import image_decoder_of_absent_images


def test_right_plans_are_right():
    runs = [claim.config for claim in CLAIMS] + [run.make() for run in CROSSED]
    configs = [config for config in runs if config.strategy is None]
    configs += [*layouts().values(), colocated(16_384)]
    for config in map(checked_config, configs):
        proof = prove(plan_checked(config), config)
        assert proof.passed, proof.verdict
        assert len(proof.claims) == 11


def test_no_planted_fault_of_a_plan_is_missed():
    faults = list(planted())
    assert len(faults) >= 100
    missed = [f"{f.layout}: {f.fault}" for f in faults if prove(f.plan, f.config).passed]
    assert not missed


def test_the_first_stage_of_an_image_decoder_reads_where_images_are():
    config = image_decoder_of_absent_images((2, 2, 1))
    plan = plan_checked(checked_config(config))
    painter = plan.batch.modules["painter"]
    assert painter.loads == (4, 5, 6, 7)
    modules = {**plan.batch.modules, "painter": replace(painter, loads=painter.loads[2:])}
    wrong = replace(plan, batch=replace(plan.batch, modules=modules))
    assert "rank 4 computes samples of module 'painter' that it" in prove(wrong, config).verdict


def test_a_fault_is_said_in_a_sentence():
    fault = next(f for f in planted() if f.fault == "a gradient is left out")
    assert prove(fault.plan, fault.config).verdict == (
        f"The plan of {fault.config.name!r} is wrong (bridges bring each sample once): the bridge "
        "from 'images' to 'language_module': backward, to rank 0: nobody has samples 0 to 7"
    )


@rows(
    "layout, fault, words",
    ("equal", "a rank drops a sample", "a group over tp, have [4, 3] samples of module"),
    ("experts", "a rank drops a sample", "a group over tp, have"),
    ("experts on contexts", "a rank drops a sample", "a group over cp, have"),
)
def test_a_group_that_gives_unequal_sizes_is_said(layout: str, fault: str, words: str) -> None:
    wrong = next(f for f in planted() if (f.layout, f.fault) == (layout, fault))
    claims = {claim.name: claim.faults for claim in prove(wrong.plan, wrong.config).claims}
    assert words in claims["groups give equal sizes"][0]


def test_ranks_that_reduce_together_have_as_many_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    config = layouts()["pipelines"]
    plan = plan_checked(config)
    assert not list(unequal_sizes(plan, config))
    groups = RankGrid.group_array

    def over_stages(grid: RankGrid, *dimensions: str) -> np.ndarray:
        return groups(grid, *(("pp",) if dimensions == ("cp", "dp") else dimensions))

    monkeypatch.setattr(RankGrid, "group_array", over_stages)
    (found,) = unequal_sizes(plan, config)
    assert found.startswith("ranks [4, 12], a group over cp and dp, have [")
    assert found.endswith("] entries of gradients of module 'language_module'")


def test_entries_that_two_ranks_have_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of which the second begins a row too early."""
    config = layouts()["equal"]
    plan = plan_checked(config)
    assert not list(unheld_parts(plan, config))
    spans = TensorShard._spans

    def early(shard: TensorShard, dimension: int) -> list[tuple[int, int, int]]:
        return [(max(0, start - 1), stop, local) for start, stop, local in spans(shard, dimension)]

    monkeypatch.setattr(TensorShard, "_spans", early)
    (found, *_) = unheld_parts(plan, config)
    assert found.endswith("along its cut is on several ranks")
