"""A planted cause is named with its figures, also next to others; without one nothing is."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mimokit.analysis import Explanation, compare, explain, load_runs, time_parts
from tests.analysis.planted_runs import Planted, write_run
from tests.rows import rows

FIRST_RELEASE = Path(__file__).parents[1] / "fixtures" / "first_release" / "runs"
EVEN = Planted()
APART = Planted(
    mode="heterogeneous",
    forward={"images": 0.040, "language_module": 0.040},
    data=0.001,
    collective=0.002,
)
"""All four stages of the heterogeneous layout work equally long."""


@pytest.fixture
def explained(tmp_path: Path) -> Any:
    def make(planted: Planted, **info: Any) -> Explanation:
        return explain(write_run(tmp_path / "run", planted, **info))

    return make


def finding(words: Explanation, kind: str) -> Any:
    (found,) = [one for one in words.findings if one.kind == kind]
    return found


def test_a_run_in_which_nothing_stands_out_says_so(explained: Any) -> None:
    words = explained(EVEN)
    assert words.findings == ()
    assert "Nothing stands out" in str(words)
    assert "backward of language_module" in words.summary[0]
    assert words.summary[1].startswith("language_module is the slowest module")
    assert words.parts["share"].sum() == pytest.approx(1.0, abs=0.01)
    expected = 3 * (0.010 + 0.030) + 0.002 + 0.004 + 0.004 + 0.003
    assert words.step == pytest.approx(expected, rel=0.03)


CAUSES = {
    "straggler": {"slow": {3: 1.4}},
    "data": {"data": 0.030},
    "communication": {"collective": 0.040},
    "optimizer": {"optimizer": 0.050},
    "rest": {"rest": 0.050},
    "outliers": {"late": (0.08, 3.0), "iterations": 120},
    "drift": {"drift": 0.5, "iterations": 120},
    "uneven steps": {"noise": 0.15},
}


@pytest.mark.parametrize("kind", CAUSES)
def test_a_planted_cause_is_the_only_finding(explained: Any, kind: str) -> None:
    words = explained(replace(EVEN, **CAUSES[kind]))
    assert words.kinds == [kind]
    assert "Try:" in str(words)


PAIRS = [
    ("straggler", "data"),
    ("straggler", "communication"),
    ("data", "optimizer"),
    ("communication", "rest"),
    ("drift", "straggler"),
    ("uneven steps", "data"),
    ("outliers", "communication"),
]


@pytest.mark.parametrize("pair", PAIRS, ids=" and ".join)
def test_two_causes_are_both_found(explained: Any, pair: tuple[str, str]) -> None:
    changes = CAUSES[pair[0]] | CAUSES[pair[1]]
    assert set(explained(replace(EVEN, **changes)).kinds) == set(pair)


def test_the_figures_of_a_straggler_are_those_that_were_planted(explained: Any) -> None:
    words = explained(replace(EVEN, slow={6: 1.5}, noise=0.0, common=0.0))
    found = finding(words, "straggler")
    work, excess = 0.120 + 0.006, 0.060
    assert found.figures["rank"] == 6
    assert found.figures["typical"] == pytest.approx(work)
    assert found.figures["seconds"] == pytest.approx(excess)
    assert found.share == pytest.approx(excess / (work + excess + 0.007))
    assert "Rank 6 is the slowest: it works 186 ms in a step, 48% longer" in found.sentence
    assert "mostly in backward (+40 ms)" in found.sentence
    assert "in 100% of the steps" in found.sentence


def test_a_rank_that_loads_slowly_is_told_from_one_that_computes_slowly(explained: Any) -> None:
    found = finding(explained(replace(EVEN, slow_data={2: 0.030})), "straggler")
    assert found.figures["rank"] == 2
    assert "mostly in data loading (+30 ms)" in found.sentence
    assert "num_workers" in found.advice


@pytest.mark.parametrize(
    ("planted", "sentence", "advice"),
    [
        (
            replace(EVEN, collective=0.040),
            "collectives 40 ms, messages between stages 0 ms",
            "fewer",
        ),
        (replace(APART, point_to_point=0.090), "collectives 2 ms, messages", "fewer stages"),
    ],
)
def test_collectives_are_told_from_messages(
    explained: Any, planted: Planted, sentence: str, advice: str
) -> None:
    words = explained(replace(planted, noise=0.0, common=0.0))
    found = finding(words, "communication")
    assert sentence in found.sentence
    assert advice in found.advice
    assert "waiting" not in words.kinds


def test_findings_are_ordered_by_their_share(explained: Any) -> None:
    words = explained(replace(EVEN, data=0.020, optimizer=0.060, collective=0.035))
    assert words.kinds == ["optimizer", "communication", "data"]
    shares = [one.share for one in words.findings]
    assert shares == sorted(shares, reverse=True)


def test_the_bubble_of_equal_stages_is_that_of_the_schedule(explained: Any) -> None:
    words = explained(replace(APART, noise=0.0, common=0.0))
    found = finding(words, "bubble")
    assert words.kinds == ["bubble"], "its waiting is explained by it"
    # 4 stages, 4 micro-batches: (p - 1) / (m + p - 1) of the pipeline.
    pipeline = (0.120 + 0.001) / (1 - 3 / 7)
    assert found.figures["seconds"] == pytest.approx(pipeline * 3 / 7, rel=0.02)
    assert found.figures["planned"] == pytest.approx(3 / 7)
    assert "4 micro-batches fill and drain 4 stages" in found.sentence
    assert f"{3 / 11:.0%} instead of {3 / 7:.0%}" in found.advice


def test_a_long_stage_is_named_with_its_ranks(explained: Any) -> None:
    words = explained(replace(APART, stages={2: 1.8}))
    found = finding(words, "imbalance")
    assert set(words.kinds) == {"bubble", "imbalance"}
    assert "stage 1 of language_module (ranks 4–5) works" in found.sentence
    assert found.advice == "Move layers of language_module from its longest stage to others."


def test_a_small_module_on_too_many_ranks_is_an_imbalance(explained: Any) -> None:
    words = explained(replace(APART, forward={"images": 0.004, "language_module": 0.040}))
    found = finding(words, "imbalance")
    assert "images (ranks 0–1) 1" in found.sentence
    assert found.advice == "Give language_module more of the ranks, or images fewer."
    assert "straggler" not in words.kinds, "ranks of different stages have different work"


def test_a_straggler_within_a_stage_is_found_in_a_pipeline(explained: Any) -> None:
    words = explained(replace(APART, slow={5: 1.5}))
    found = finding(words, "straggler")
    assert found.figures["rank"] == 5


def test_waiting_that_nothing_explains_is_said(explained: Any, tmp_path: Path) -> None:
    """Ranks that wait for something outside, such as a server."""
    folder = write_run(tmp_path / "waits", EVEN)
    table = pd.read_csv(folder / "metrics_by_rank.csv")
    for column in ("waiting_time", "communication_time", "total_time"):
        table[column] += 0.030
    table.to_csv(folder / "metrics_by_rank.csv", index=False)
    steps = pd.read_csv(folder / "metrics.csv")
    steps["total_time"] += 0.030
    steps.to_csv(folder / "metrics.csv", index=False)
    words = explain(folder)
    assert words.kinds == ["waiting"]
    assert "Ranks wait for each other 32 ms of a step" in words.findings[0].sentence


def test_memory_near_the_limit_of_the_host(explained: Any) -> None:
    limited = {"cores": 64, "memory_bytes": 4 * 10**9, "accelerators": []}
    words = explained(EVEN, hardware=limited)
    assert words.kinds == ["memory"]
    assert "(91%)" in words.findings[0].sentence


def test_ranks_that_share_cores_are_said(explained: Any) -> None:
    shared = {"cores": 2, "memory_bytes": 64 * 2**30, "accelerators": []}
    words = explained(EVEN, hardware=shared)
    assert any("8 ranks shared 2 cores" in sentence for sentence in words.missing)


def test_every_figure_of_a_sentence_is_computed(tmp_path: Path) -> None:
    """Twice as long in everything: the same shares, twice the seconds."""
    times = {"forward": {"images": 0.020, "language_module": 0.060}, "data": 0.060}
    others = {"optimizer": 0.008, "collective": 0.008, "rest": 0.006}
    steady = {"noise": 0.0, "common": 0.0}
    once = explain(write_run(tmp_path / "once", replace(EVEN, data=0.030, **steady)))
    twice = explain(write_run(tmp_path / "twice", replace(EVEN, **times, **others, **steady)))
    assert twice.step == pytest.approx(2 * once.step)
    sentences = [one.findings[0].sentence for one in (once, twice)]
    seconds = [re.search(r"takes (\d+) ms", sentence)[1] for sentence in sentences]
    assert seconds == ["30", "60"]
    assert [one.findings[0].share for one in (once, twice)] == pytest.approx(
        [0.030 / once.step] * 2
    )


@rows(
    "absent, sentence",
    ("metrics_by_rank.csv", "its ranks cannot be distinguished"),
    ("metrics.csv", "No iteration was measured"),
    ("config.yaml", "The plan is not known"),
)
def test_missing_data_is_said(tmp_path: Path, absent: str, sentence: str) -> None:
    folder = write_run(tmp_path / "run", EVEN)
    (folder / absent).unlink()
    words = explain(folder)
    assert any(sentence in one for one in words.missing)
    assert words.findings == ()


def test_passes_that_nobody_timed_are_not_explained(tmp_path: Path) -> None:
    """As the monitor of a loop writes them that runs no schedule of mimokit."""
    folder = write_run(tmp_path / "run", EVEN)
    for name in ("metrics.csv", "metrics_by_rank.csv"):
        table = pd.read_csv(folder / name)
        untold = [
            column
            for column in table.columns
            if re.search(r"forward|backward|communication|collective|point_to|waiting", column)
            or column.endswith(("_per_sec", "_per_sec_per_rank"))
        ]
        table[untold] = 0.0
        table.to_csv(folder / name, index=False)
    words = explain(folder)
    assert words.findings == ()
    (largest,) = words.summary
    assert largest.endswith("is what was not timed.")
    assert any("No rank timed forward and backward" in one for one in words.missing)
    compared = str(compare(load_runs(folder)))
    assert "tokens_per_sec is 0 in every step, so the loop gave its monitor no" in compared
    assert "has the best median of total_time" in compared
    write_run(tmp_path / "told", EVEN)
    both = compare(load_runs([folder, tmp_path / "told"]))
    assert both.left_out == {
        "run": "its tokens_per_sec is 0 in every step, so its monitor was not given any"
    }


def test_times_that_are_no_numbers_do_not_end_it(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", replace(EVEN, iterations=8))
    table = pd.read_csv(folder / "metrics_by_rank.csv")
    table.loc[table["rank"] == 3, ["forward_time", "backward_time"]] = [np.inf, -np.inf]
    table.to_csv(folder / "metrics_by_rank.csv", index=False)
    assert explain(folder).step > 0


def test_a_failed_run_says_how_it_ended(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", replace(EVEN, iterations=8), status="failed")
    (folder / "error.json").write_text(
        '{"type": "RankDied", "message": "rank 5 has died", "rank": 5, "step": 8}'
    )
    words = explain(folder)
    assert words.missing[0] == "The run run failed on rank 5 in step 8: RankDied: rank 5 has died"
    assert any("Only 3 iterations after the warm-up" in one for one in words.missing)


def test_the_first_release_is_explained() -> None:
    runs = load_runs(FIRST_RELEASE)
    for name in runs:
        words = explain(runs, name)
        assert any(
            "does not distinguish waiting from communication" in one for one in words.missing
        )
        assert "communication" in words.kinds
    parts = time_parts(runs)
    assert parts.groupby("run")["share"].sum().to_list() == pytest.approx([1.0, 1.0], abs=0.02)


def test_it_shows_itself(explained: Any) -> None:
    words = explained(replace(EVEN, data=0.030))
    html = words._repr_html_()
    assert html.count("Try:") == 1
    assert "Loading data takes" in html


def test_several_runs_need_a_name(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one", replace(EVEN, iterations=8))
    shutil.copytree(folder, tmp_path / "two")
    with pytest.raises(ValueError, match="There are 2 runs, one and two; name the one to explain"):
        explain(tmp_path)
