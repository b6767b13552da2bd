"""The search against brute force: every layout predicted on its own, rules in plain integers."""

import functools
import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mimokit.layout_search import DIMENSIONS, Constraints, SearchTask, search
from mimokit.layout_search import candidates as candidates_file
from mimokit.layout_search.blocks import blocks
from mimokit.layout_search.candidates import SEARCH_RULES
from mimokit.layout_search.cost_tables import enumerate_modules, make_tables
from mimokit.layout_search.evaluate import Scan
from mimokit.layout_search.finalists import layout_of
from mimokit.prediction import Workload, costs_of, layout_cost
from mimokit.prediction.hardware import load_hardware
from mimokit.prediction.step_time import load_software
from tests import seams
from tests.layout_search.small import Brute, brute_force, model, without_sizes
from tests.rows import rows

EVERYTHING = 100_000


def a_task(**changes: Any) -> SearchTask:
    task = SearchTask(
        model(),
        Workload(2048, 16),
        4,
        load_hardware("h100"),
        load_software("megatron-bridge"),
        constraints=Constraints(),
    )
    return replace(task, **changes)


def spaces(draw: Any) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """Draw a handful of values per dimension, wrong ones among them."""

    def some(*values: int) -> tuple[int, ...]:
        return tuple(sorted(draw(st.sets(st.sampled_from(values), min_size=1, max_size=2))))

    own = {
        "tensor": some(1, 2, 3, 4),
        "context": some(1, 2, 3),
        "pipeline": some(1, 2, 3),
        "virtual": draw(st.sampled_from([(1,), (1, 2)])),
        "expert": draw(st.sampled_from([(1,), (1, 2)])),
        "data": some(1, 2, 3, 4),
        "micro_batch": some(1, 2, 3),
        "recompute": some(0, 1, 2),
        "instances": draw(st.sampled_from([(1,), (1, 2)])),
    }
    encoder = {
        "tensor": some(1, 2, 3),
        "context": (1,),
        "pipeline": draw(st.sampled_from([(1,), (1, 2)])),
        "virtual": draw(st.sampled_from([(1,), (1, 2)])),
        "expert": (1,),
        "data": some(1, 2, 3, 4),
        "micro_batch": (1,),
        "recompute": draw(st.sampled_from([(0,), (0, 2)])),
        "instances": (1,),
    }
    return own, encoder


def constraints_of(own: Any, encoder: Any, **more: Any) -> Constraints:
    def named(space: Any) -> dict[str, Any]:
        return {dimension: space[field] for dimension, field in DIMENSIONS.items()}

    as_names = {"language": named(own), "images": named(encoder)}
    for sizes in as_names.values():
        sizes["recompute"] = [("none", "selective", "full")[one] for one in sizes["recompute"]]
    return Constraints(sizes=as_names, **more)


def compare(task: SearchTask, expected: Brute) -> list[str]:
    """Return what a search gets wrong."""
    if not expected.fitting:
        with pytest.raises(ValueError, match=r"Module|Model"):
            run(task)
        return []
    result = run(task)
    best = min(expected.fitting, key=lambda one: one.seconds)
    wrong = []
    if result.best.seconds != pytest.approx(best.seconds, rel=1e-12):
        wrong.append(f"best {result.best.seconds} is not {best.seconds}")
    if (result.evaluated, result.fitting) != (expected.evaluated, len(expected.fitting)):
        wrong.append(f"{result.evaluated}, {result.fitting} layouts")
    images = {key for key in result.dropped if key.startswith("images: ")}
    found = {key: n for key, n in result.dropped.items() if key not in images}
    wanted = {key: n for key, n in expected.dropped.items() if not key.startswith("images: ")}
    if found != wanted:
        wrong.append(f"dropped {found}, not {wanted}")
    return wrong


def run(task: SearchTask) -> Any:
    return search(
        task.model,
        gpus=task.gpus,
        hardware=task.hardware,
        workload=task.workload,
        constraints=task.constraints,
        finalists=EVERYTHING,
    )


@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_the_winner_and_the_counts_are_those_of_brute_force(data: st.DataObject) -> None:
    own, encoder = spaces(data.draw)
    chosen = data.draw(st.sampled_from(["homogeneous", "colocated", "heterogeneous", None]))
    modes = {"modes": (chosen,)} if chosen else {}
    experts = data.draw(st.sampled_from([0, 4]))
    share = data.draw(st.sampled_from([1.0, 0.15]))
    task = a_task(
        model=model(experts), constraints=constraints_of(own, encoder, memory_share=share, **modes)
    )
    lacking = without_sizes(task, own, encoder)
    if lacking:
        with pytest.raises(ValueError, match=f"Module '{lacking[0]}': none of the parallel sizes"):
            run(task)
        return
    assert compare(task, brute_force(task, own, encoder)) == []


def test_a_module_without_valid_sizes_is_named() -> None:
    one = {**dict.fromkeys(DIMENSIONS.values(), (1,)), "recompute": (0,)}
    three = {**one, "tensor": (3,)}
    for own, encoder, lacking in ((three, one, "language"), (one, three, "images")):
        task = a_task(constraints=constraints_of(own, encoder))
        assert without_sizes(task, own, encoder) == [lacking]
        with pytest.raises(ValueError, match=f"Module '{lacking}': none of the parallel sizes"):
            run(task)


WIDE_OWN = {
    "tensor": (1, 2, 4),
    "context": (1,),
    "pipeline": (1, 2),
    "virtual": (1, 2),
    "expert": (1,),
    "data": (1, 2),
    "micro_batch": (1, 2),
    "recompute": (0,),
    "instances": (1,),
}
WIDE_ENCODER = {**WIDE_OWN, "virtual": (1,), "micro_batch": (1,), "pipeline": (1,)}


@functools.cache
def wide() -> tuple[SearchTask, Brute]:
    """Return a search of these sizes that finds what brute force finds, and that."""
    task = a_task(constraints=constraints_of(WIDE_OWN, WIDE_ENCODER))
    expected = brute_force(task, WIDE_OWN, WIDE_ENCODER)
    assert compare(task, expected) == []
    return task, expected


@pytest.mark.parametrize(
    "reason",
    [
        "tensor parallelism does not divide the attention heads",
        "several chunks per stage need a pipeline",
        "more GPUs than there are",
    ],
)
def test_a_rule_that_sees_nothing_is_caught(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task, expected = wide()
    left = tuple(rule for rule in SEARCH_RULES if rule.reason != reason)
    assert len(left) == len(SEARCH_RULES) - 1
    monkeypatch.setattr(candidates_file, "SEARCH_RULES", left)
    # Predictions refuse such sizes on their own; here the comparison has to find them.
    monkeypatch.setattr(seams.CHECK_LAYOUT, lambda *_: None)
    assert compare(task, expected) != []


@rows("experts, encoders", *itertools.product([0, 8], [0, 1, 2]))
def test_arrays_give_what_single_layouts_give(experts: int, encoders: int) -> None:
    sizes = {"*": {"optimizer_instances": (1, 2), "recompute": ("none", "full")}}
    if encoders > 1:  # 60 rows are drawn of however many
        sizes |= {"clips": {"tensor_parallel": (1, 2), "recompute": ("full",)}}
    task = a_task(
        model=model(experts, encoders=encoders), gpus=8, constraints=Constraints(sizes=sizes)
    )
    scan = scanned(task)
    kept = scan.kept
    chosen = np.random.default_rng(0).choice(len(kept.seconds), 60)
    for row in chosen:
        layout = layout_of(scan, kept, int(row))
        costs = costs_of(task.model, layout, task.workload, task.system)
        alone = layout_cost(layout.mode, *costs, task.workload, task.system)
        assert kept.seconds[row] == pytest.approx(float(alone.seconds), rel=1e-9)
        assert kept.memory[row] == pytest.approx(float(alone.memory), rel=1e-9)
        assert kept.gpus[row] == layout.gpus <= 8


def scanned(task: SearchTask) -> Scan:
    language, encoders, _ = enumerate_modules(task)
    scan = Scan(task, make_tables(task, language, encoders), keep=50)
    for block in blocks(task, scan.tables):
        scan.see(block)
    return scan


@rows("objective", "step_time", "cost", "memory")
def test_the_objective_decides(objective: str) -> None:
    task, brute = wide()
    expected = brute.fitting
    measure = {
        "step_time": lambda one: one.seconds,
        "cost": lambda one: one.seconds * one.layout.gpus,
        "memory": lambda one: one.peak_memory,
    }[objective]
    result = search(
        task.model,
        gpus=4,
        workload=task.workload,
        constraints=task.constraints,
        objective=objective,  # type: ignore[arg-type]
        finalists=EVERYTHING,
    )
    assert measure(result.best) == pytest.approx(min(map(measure, expected)), rel=1e-12)


def test_stored_times_are_totals_and_no_part() -> None:
    tables = scanned(a_task(gpus=8)).tables
    for stage in tables.language_costs.step.stages:
        assert stage.forward.total is stage.forward.seconds  # type: ignore[attr-defined]
        parts = {name: value for name, value in vars(stage.forward).items() if name != "seconds"}
        assert set(parts.values()) == {0.0}
