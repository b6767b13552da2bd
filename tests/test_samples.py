"""The records that ranks send: their columns, how ranks become one row, files, and the wire."""

import ast
import csv
import math
import os
import pickle
import random
from collections.abc import Iterable
from dataclasses import asdict, fields, replace
from pathlib import Path

import pandas as pd
import pytest

from mimokit.analysis import (
    module_names,
    per_iteration,
    phase_times,
    read_run,
    read_trace,
    samples_to_evaluations,
    samples_to_steps,
    summarize,
    traced_iteration,
)
from mimokit.charts.runs_view.content import METRICS
from mimokit.result_files import RunFile, whole_file, write_evaluations, write_metrics
from mimokit.samples import (
    EVALUATION_COLUMNS,
    MODULE_COLUMNS,
    OF_A_RANK,
    STEP_COLUMNS,
    CalibrationSample,
    EvaluationSample,
    Iterations,
    ModuleSample,
    OverRanks,
    StepSample,
    TraceSample,
    by_iteration,
    from_wire,
    modules_of,
    over_ranks,
    reduce_ranks,
    to_wire,
)
from mimokit.step_kinds import MODULE_PHASES, RANK_PHASES, Phase
from tests.charts.fakes import samples
from tests.rows import rows
from tests.test_step_kinds import lists_of_names

ROOT = Path(__file__).parent.parent
OLD_RUNS = ROOT / "tests" / "fixtures" / "first_release" / "runs"
DOCUMENTED = (
    "iteration,total_time,forward_time,backward_time,optimizer_time,tokens_per_sec,"
    "samples_per_sec,memory_allocated,memory_reserved,loss"
)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _steps(iterations: int = 5, ranks: int = 4) -> list[StepSample]:
    return [one for one in samples(iterations, ranks) if isinstance(one, StepSample)]


def _random_steps(seed: int) -> list[StepSample]:
    """Ranks that know different columns, of different modules; of an odd seed in three replicas."""
    draw = random.Random(seed)
    found = []
    for iteration in range(4):
        loss = draw.random()
        for rank in range(5):
            numbers = {
                name: draw.choice([None, draw.random()])
                for name in STEP_COLUMNS
                if name not in ("iteration", "time", "loss", "grad_norm", *OF_A_RANK)
            }
            modules = {
                name: ModuleSample(*(draw.choice([None, draw.random()]) for _ in MODULE_COLUMNS))
                for name in ("images", "audio", "language_module")
                if draw.random() < 0.6
            }
            one = StepSample(
                iteration,
                rank=rank,
                time=draw.random(),
                loss=None if rank == 1 else loss + rank // 2 * (seed % 2),
                grad_norm=2 * loss,
                replica=rank // 2 if seed % 2 else None,
                modules=modules,
                further={"val_loss": draw.random()} if draw.random() < 0.5 else {},
                **numbers,
            )
            found.append(one)
    draw.shuffle(found)
    return found


# How ranks become one row.


def test_times_and_rates_are_the_slowest_ranks_memory_is_the_largest_and_loss_is_shared() -> None:
    fast = StepSample(
        0, total_time=2.0, forward_time=1.0, tokens_per_sec=30.0, loss=3.0, memory_allocated=5
    )
    slow = StepSample(
        0, total_time=3.0, forward_time=0.5, tokens_per_sec=20.0, loss=3.0, memory_allocated=4
    )
    assert reduce_ranks([replace(slow, rank=1), fast]) == {
        "iteration": 0,
        "total_time": 3.0,
        "forward_time": 0.5,
        "tokens_per_sec": 20.0,
        "memory_allocated": 5,
        "loss": 3.0,
        "time": 0.0,
    }


@rows("ranks", 2, 5)
def test_the_parts_of_a_row_are_one_ranks_and_add_up_to_its_step(ranks: int) -> None:
    """Each rank spends most of its step elsewhere: the largest of each are longer than a step."""
    phases = [phase.column for phase in (*MODULE_PHASES, *RANK_PHASES)]
    steps = [
        StepSample(
            0,
            rank=rank,
            total_time=1.0 + 0.01 * rank,
            **{name: 0.6 if at == rank else 0.05 for at, name in enumerate(phases)},
        )
        for rank in range(ranks)
    ]
    row = reduce_ranks(steps)
    table = per_iteration(samples_to_steps(steps))
    for of_row in (row, table.iloc[0]):
        assert sum(of_row[name] for name in phases) <= of_row["total_time"]
        assert of_row[phases[ranks - 1]] == 0.6


def test_the_loss_is_not_averaged_and_comes_from_the_lowest_rank_that_has_one() -> None:
    tenth = 0.1  # summed over ten ranks and divided again it is another number
    assert sum([tenth] * 10) / 10 != tenth
    steps = [StepSample(0, rank=rank, loss=tenth, total_time=1.0 + rank) for rank in range(10)]
    steps[0] = replace(steps[0], loss=None)
    assert reduce_ranks(steps)["loss"] == tenth
    assert per_iteration(samples_to_steps(steps))["loss"].tolist() == [tenth]


def test_the_loss_of_replicas_is_the_mean_of_those_of_their_lowest_ranks() -> None:
    of_ranks = [(0, None), (0, 3.0), (1, 0.5), (1, 99.0), (2, 1.0)]
    steps = [
        StepSample(0, rank=rank, replica=replica, total_time=1.0, loss=loss, warmup=1.0)
        for rank, (replica, loss) in enumerate(of_ranks)
    ]
    row = reduce_ranks(reversed(steps))
    assert (row["loss"], row["warmup"]) == (1.5, 1.0)
    table = per_iteration(samples_to_steps(steps))
    assert table["loss"].tolist() == [1.5]
    assert samples_to_steps(steps)["replica"].tolist() == [0, 0, 1, 1, 2]
    assert not {*OF_A_RANK} & {*row, *table.columns}


def test_a_loss_that_is_not_a_number_stays_one() -> None:
    steps = [StepSample(0, rank=rank, loss=math.nan, total_time=1.0) for rank in range(2)]
    assert math.isnan(reduce_ranks(steps)["loss"])
    assert per_iteration(samples_to_steps(steps))["loss"].isna().all()


@rows("seed", *range(20))
def test_the_row_of_the_file_and_that_of_the_table_are_the_same(seed: int) -> None:
    steps = _random_steps(seed)
    table = per_iteration(samples_to_steps(steps))
    rows = pd.DataFrame(map(reduce_ranks, by_iteration(steps)))
    pd.testing.assert_frame_equal(
        table[sorted(table.columns)], rows[sorted(rows.columns)], check_dtype=False
    )


def test_every_column_says_how_ranks_become_one() -> None:
    for name in STEP_COLUMNS:
        if name not in ("iteration", *OF_A_RANK):
            assert over_ranks(name) in OverRanks
    for name in MODULE_COLUMNS:
        assert over_ranks(f"images_{name}") is over_ranks(name) or name not in STEP_COLUMNS
    assert over_ranks("images_busiest_expert") is OverRanks.LARGEST
    assert over_ranks("images_tokens_per_sec") is OverRanks.SMALLEST
    assert over_ranks("tokens_per_sec_per_rank") is OverRanks.SMALLEST
    assert over_ranks("never_heard_of") is OverRanks.SLOWEST


def test_every_phase_has_its_column() -> None:
    assert {phase.column for phase in Phase} <= set(STEP_COLUMNS)
    assert {"forward_time", "backward_time"} <= set(MODULE_COLUMNS)


# Columns stand once.


def columns_listed(source: str, suffix: str = ".py") -> list[set[str]]:
    """Return every list of three or more columns."""
    known = {*STEP_COLUMNS, *MODULE_COLUMNS}
    return [names for names in lists_of_names(source, known, suffix) if len(names) > 2]


def test_no_other_list_of_columns_is_in_the_tree() -> None:
    found = []
    for room in ("mimokit", "widgets/mimokit_widgets"):
        for file in sorted((ROOT / room).rglob("*.*")):
            if file.suffix in (".py", ".js"):
                listed = columns_listed(file.read_text(), file.suffix)
                found += [(file.name, names) for names in listed]
    # Curves that runs are compared by; the columns without which a table is refused.
    assert found == [
        ("content.py", set(METRICS)),
        ("samples.py", {"iteration", "total_time", "loss"}),
    ]


@rows(
    "planted, suffix",
    ('COLUMNS = ("total_time", "forward_time", "grad_norm")', ".py"),
    ('row = {"total_time": 1, "data_time": 2, "loss": 3}', ".py"),
    ('const [a, b] = ["total_time", "loss", "memory_allocated"].map(read);', ".js"),
)
def test_a_planted_list_of_columns_is_found(planted: str, suffix: str) -> None:
    assert len(columns_listed(planted, suffix)) == 1


def _order(groups: Iterable[list[StepSample]]) -> list[list[tuple[int, int]]]:
    return [[(one.iteration, one.rank) for one in group] for group in groups]


def test_iterations_come_in_order_and_whole_where_ranks_reported_them() -> None:
    """A rank that was killed has reported less: its iterations come when later ones are whole."""
    sent = [(0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (3, 0), (3, 1), (4, 1)]
    steps = [StepSample(iteration, rank=rank) for iteration, rank in sent]
    whole = [[(0, 0), (0, 1)], [(1, 0), (1, 1)], [(2, 0)], [(3, 0), (3, 1)], [(4, 1)]]
    assert _order(by_iteration(steps, 2)) == _order(by_iteration(steps)) == whole
    assert _order(by_iteration([])) == []


def test_of_iterations_no_more_is_held_than_ranks_are_apart() -> None:
    iterations = Iterations(3)
    for iteration in range(50):
        for rank in range(3):
            iterations.add(StepSample(iteration + 2 * rank, rank=2 - rank))
            assert sum(map(len, iterations._begun.values())) <= 3 * 5


# Files.


def test_columns_begin_as_documented(tmp_path: Path) -> None:
    write_metrics(tmp_path / "new", list(by_iteration(_steps())))
    header = (tmp_path / "new" / "metrics.csv").read_text().splitlines()[0]
    assert header.startswith(DOCUMENTED)
    assert header.endswith("language_module_tokens_per_sec")
    assert "rank" not in header.split(",")
    by_rank = _rows(tmp_path / "new" / "metrics_by_rank.csv")
    assert [row["rank"] for row in by_rank[:4]] == ["0", "1", "2", "3"]


def test_metrics_keep_the_columns_of_modules_that_the_slowest_rank_lacks(tmp_path: Path) -> None:
    """Of ranks of their own, each measures its module; the slowest one knows but one of them."""
    encoder = StepSample(
        0, rank=0, total_time=1.0, modules={"images": ModuleSample(forward_time=0.4)}
    )
    language = StepSample(
        0, rank=1, total_time=9.0, modules={"language": ModuleSample(data_time=0.2)}
    )
    write_metrics(tmp_path, [[encoder, language]])
    (row,) = _rows(tmp_path / "metrics.csv")
    assert (row["total_time"], row["images_forward_time"]) == ("9.0", "0.4")
    assert row["language_data_time"] == "0.2"


def test_what_was_written_is_what_is_read(tmp_path: Path) -> None:
    made = samples(iterations=20, ranks=3)
    steps = [one for one in made if isinstance(one, StepSample)]
    write_metrics(tmp_path, list(by_iteration(steps)))
    write_evaluations(tmp_path, [one for one in made if isinstance(one, EvaluationSample)])
    tables = read_run(tmp_path)
    steps = samples_to_steps(made)
    pd.testing.assert_frame_equal(
        tables.metrics_by_rank[steps.columns], steps, check_dtype=False, rtol=0, atol=0
    )
    reduced = per_iteration(steps)
    pd.testing.assert_frame_equal(
        tables.metrics[reduced.columns], reduced, check_dtype=False, rtol=0, atol=0
    )
    pd.testing.assert_frame_equal(
        tables.evaluations, samples_to_evaluations(made), check_dtype=False, rtol=0, atol=0
    )


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "metrics.csv"
    with whole_file(target) as file:
        file.write("first")
        file.flush()
        assert not target.exists()
    assert target.read_text() == "first"
    with pytest.raises(UnicodeEncodeError), whole_file(target) as file:
        file.writelines(["half of the sec", "\ud800"])  # no UTF-8 can be written of the latter
    assert target.read_text() == "first"
    assert os.listdir(tmp_path) == ["metrics.csv"], "no part is left"


# The wire.


def test_a_sample_comes_out_of_the_wire_as_it_went_in() -> None:
    trace = TraceSample(
        rank=1,
        iteration=2,
        clock_offset=0.1,
        clock_error=0.01,
        events=(("forward", "images", 0, 0.0, 1.0),),
    )
    for sample in [*samples(10, 2), *_random_steps(1), trace, CalibrationSample("memory")]:
        assert from_wire(pickle.loads(pickle.dumps(to_wire(sample)))) == sample


def test_a_step_on_the_wire_is_half_of_what_its_names_and_values_take() -> None:
    """As a dictionary of columns it took 700 bytes with two modules."""
    sample = _steps(1, 1)[0]
    sent = len(pickle.dumps(to_wire(sample), protocol=pickle.HIGHEST_PROTOCOL))
    as_mapping = len(pickle.dumps({"kind": "step", **sample.row()}, protocol=5))
    assert sent < as_mapping / 2


def test_records_are_frozen_and_every_field_has_a_column() -> None:
    sample = _steps(1, 1)[0]
    with pytest.raises(AttributeError):
        sample.loss = 1.0  # type: ignore[misc]
    assert {one.name for one in fields(StepSample)} == {*STEP_COLUMNS, "modules", "further"}
    assert set(asdict(samples(10, 1)[-1])) == set(EVALUATION_COLUMNS)


# What was written before.


@rows("name", "colocated", "heterogeneous")
def test_run_folders_of_the_first_release_are_read(name: str) -> None:
    tables = read_run(OLD_RUNS / name)
    assert len(tables.metrics) == 4
    assert len(tables.metrics_by_rank) == 4 * 8
    assert tables.evaluations["samples"].tolist() == [1024]
    assert tables.info["world_size"] == 8
    assert set(module_names(tables.metrics_by_rank)) == {"images", "language_module"}
    assert modules_of(tables.metrics.columns) == module_names(tables.metrics)
    again = per_iteration(tables.metrics_by_rank)
    for column in ("total_time", "memory_allocated"):
        assert again[column].tolist() == tables.metrics[column].tolist()
    parts = again[[phase.column for phase in (*MODULE_PHASES, *RANK_PHASES)]].sum(axis=1)
    assert (parts <= again["total_time"]).all(), "they are of one rank"
    assert again["loss"].tolist() == pytest.approx(tables.metrics["loss"].tolist(), rel=1e-12)
    times = phase_times(tables.metrics_by_rank, 1)
    assert (times["seconds"] >= 0).all()
    assert summarize(tables.metrics_by_rank, 1)["iterations"] == 3
    trace = traced_iteration(read_trace(OLD_RUNS / name))
    assert set(trace["rank"]) == set(range(8))
    assert {"forward", "backward", "grad-sync", "optimizer", "report"} <= set(trace["name"])


def test_the_files_of_a_run_are_named_once() -> None:
    names = {str(name) for name in RunFile} - {"config.yaml"}
    for room in ("mimokit", "widgets/mimokit_widgets"):
        for file in sorted((ROOT / room).rglob("*.py")):
            if file != ROOT / "mimokit" / "result_files.py":
                assert not texts_named(file.read_text(), names), file
    assert texts_named('path = folder / "metrics.csv"', names) == {"metrics.csv"}


def texts_named(source: str, names: set[str]) -> set[str]:
    """Return which of some names are whole texts of a source."""
    if not any(name in source for name in names):
        return set()
    parts = ast.walk(ast.parse(source))
    texts = {part.value for part in parts if isinstance(part, ast.Constant)}
    return {text for text in texts if isinstance(text, str)} & names
