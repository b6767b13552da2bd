"""Two runs: the planted cause is named, parts add up, and unequal work is not compared as equal."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from mimokit.analysis import compare, difference_of_runs, explain, load_runs
from mimokit.analysis.two_runs import pair_of
from tests.analysis.planted_runs import Planted, write_run
from tests.rows import rows

EVEN = Planted(iterations=30, warmup=5)
HARDWARE = {"cpu": "made up", "cores": 2, "memory_bytes": 2**34, "accelerators": []}
PLANTED = {
    "forward": ({"forward": {"images": 0.010, "language_module": 0.060}}, "backward", None),
    "rest": ({"rest": 0.050}, "rest and reports", None),
    "collective": ({"collective": 0.040}, "communication", None),
    "optimizer": ({"optimizer": 0.040}, "optimizer", None),
    "data": ({"data": 0.040}, "data loading", None),
    "slow rank": ({"slow": {3: 1.8}}, "waiting", 3),
    "slow disk": ({"slow_data": {6: 0.08}}, "waiting", 6),
}
"""What is planted in the second run -> its largest part, and the rank that is named."""


@rows("name", *PLANTED)
def test_the_planted_part_and_rank_are_named_and_parts_add_up(name: str, tmp_path: Path) -> None:
    planted, largest, rank = PLANTED[name]
    write_run(tmp_path / "quick", EVEN)
    write_run(tmp_path / "late", replace(EVEN, seed=1, **planted))
    runs = load_runs(tmp_path)
    medians = runs.settled(runs.iterations).groupby("run", observed=True)["total_time"].median()
    found = difference_of_runs(runs, "quick", "late")
    assert (found.slow, found.fast, found.unit) == ("late", "quick", "step")
    assert found.seconds == pytest.approx(medians["late"] - medians["quick"])
    assert found.parts.sum() == pytest.approx(found.seconds)
    assert found.largest[0][0] == largest
    assert found.ranks.mean().drop("rest and reports").to_dict() == pytest.approx(
        found.parts.drop("rest and reports").to_dict()
    )
    said = [words for words in found.sentences() if words.startswith("Rank ")]
    assert [words.split()[1] for words in said] == ([] if rank is None else [str(rank)])
    assert found.headline.startswith("late is ")
    assert f" slower per step than quick: {largest} +" in found.headline


def test_steps_of_other_work_are_compared_per_sample_and_said_to_be(tmp_path: Path) -> None:
    write_run(tmp_path / "half", EVEN)
    whole = replace(EVEN, forward={"images": 0.020, "language_module": 0.060})
    write_run(tmp_path / "whole", whole, samples_per_step=128)
    found = difference_of_runs(runs := load_runs(tmp_path), "half", "whole")
    assert (found.unit, found.slow) == ("sample", "half")  # whole: 94 ms more, for twice as many
    assert "half has 64 samples in a step, whole 128." in found.sentences()
    assert "Their samples per step differ: half 64, whole 128." in compare(runs).sentences()


def test_other_ranks_are_not_compared_one_by_one(tmp_path: Path) -> None:
    write_run(tmp_path / "eight", EVEN)
    file = write_run(tmp_path / "four", EVEN, world_size=4) / "metrics_by_rank.csv"
    table = pd.read_csv(file)
    table[table["rank"] < 4].to_csv(file, index=False)
    runs = load_runs(tmp_path)
    found = difference_of_runs(runs, "eight", "four")
    assert found.ranks.empty
    assert {"four has 4 ranks, eight 8.", "eight has 8 ranks, four 4."} & set(found.sentences())
    assert "Their ranks differ: eight 8, four 4." in compare(runs, "eight").sentences()


def test_waiting_that_one_run_does_not_know_is_communication(tmp_path: Path) -> None:
    for name in ("old", "new"):
        file = write_run(tmp_path / name, EVEN) / "metrics_by_rank.csv"
        if name == "old":
            pd.read_csv(file).drop(columns="waiting_time").to_csv(file, index=False)
    found = difference_of_runs(load_runs(tmp_path), "old", "new")
    assert "waiting" not in found.parts
    assert abs(found.parts["communication"]) < 1e-3


def test_the_pair_is_the_baseline_and_the_best_else_the_farthest(tmp_path: Path) -> None:
    for name, rest in {"a": 0.02, "b": 0.01, "c": 0.03}.items():
        write_run(tmp_path / name, replace(EVEN, rest=rest))
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "error.json").write_text('{"type": "RankDied", "message": "it died"}')
    runs = load_runs(tmp_path)
    assert pair_of(runs, compare(runs, "a")) == ("a", "b")
    assert pair_of(runs, compare(runs, "b")) == ("b", "c")
    assert pair_of(runs["a"], compare(runs["a"])) is None
    assert pair_of(runs, None) is None
    with pytest.raises(ValueError, match="Run 'none': no iteration was measured"):
        difference_of_runs(runs, "a", "none")


def test_intervals_end_where_no_rate_can_be(tmp_path: Path) -> None:
    wild = replace(EVEN, iterations=14, warmup=0, noise=2.0, common=2.0, memory_of=0.9)
    for seed, name in enumerate(("one", "other")):
        write_run(tmp_path / name, replace(wild, seed=seed))
    table = compare(load_runs(tmp_path), "one").table.set_index("name")
    assert (table["low"] == 0.0).any()  # the wide interval of a steep run would reach below
    assert (table["low"] >= 0.0).all()
    other = table.loc["other"]
    assert other["difference_low"] >= -table.loc["one", "median"]


def test_a_busy_machine_is_named_and_an_own_load_is_not(tmp_path: Path) -> None:
    write_run(tmp_path / "quiet", EVEN, hardware={**HARDWARE, "load": 9.0})
    write_run(tmp_path / "loud", EVEN, hardware={**HARDWARE, "load": 18.4})
    runs = load_runs(tmp_path)
    said = (
        "The machine of run loud was busy: 18 processes wanted one of its 2 cores when it began, "
        "so its times say little."
    )
    assert said in compare(runs).sentences()
    assert said in explain(runs, "loud").missing
    assert not any("was busy" in words for words in explain(runs, "quiet").missing)
