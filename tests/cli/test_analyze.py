"""`mimokit analyze` on folders of runs."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from mimokit.cli.main import app
from mimokit.tables import Report, Section
from tests import seams
from tests.analysis.planted_runs import Planted, write_run
from tests.commands import run_to_end
from tests.rows import rows

if TYPE_CHECKING:
    from mimokit.analysis import Runs

EVEN = Planted(iterations=20, warmup=2)


def call(*words: object) -> Result:
    return CliRunner().invoke(app, ["analyze", *map(str, words)])


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("my results") / "run_20260102_030405"
    write_run(folder / "baseline", EVEN)
    write_run(folder / "slow", replace(EVEN, slow={5: 1.5}))
    (folder / "broken").mkdir()
    error = {"type": "RankDied", "message": "[/pair.cc:553] rank 2 has died", "rank": 2, "step": 0}
    (folder / "broken" / "error.json").write_text(json.dumps(error))
    return folder


def test_tables_words_and_problems(sweep: Path) -> None:
    done = call(sweep.parent)
    assert done.exit_code == 0, done.output
    for text in (
        "RankDied: [/pair.cc:553] rank 2 has died",
        "baseline has the best median of tokens_per_sec",
        "broken is not compared: its status is failed, and it has no iteration",
        "Where the time of baseline went",
        "has no metrics.csv",
    ):
        assert text in done.stdout, text


def test_names_that_begin_alike_are_whole_on_a_narrow_terminal() -> None:
    names = [f"colocated_images_dp8_language_tp2_micro_{number}" for number in range(3)]
    shown = io.StringIO()
    figures = ("completed", "colocated: images DP8 · language_module TP4 DP2", "8", "20", "3.20 s")
    table = Section("3 runs", ("run", *"abcde"), [(name, *figures) for name in names])
    Console(file=shown, width=80).print(table)
    first = "".join(line[: line.index("  ")] for line in shown.getvalue().splitlines()[3:])
    assert all(name in first for name in names), shown.getvalue()


def test_what_a_run_says_is_never_markup() -> None:
    class Failed(Report):
        def section(self) -> Section:
            return Section("[/a] of", ("[/b]",), [("[/c]",)], ("[/d] closed [bold]by[/bold] peer",))

    shown = io.StringIO()
    Console(file=shown).print(Failed())
    assert all(f"[/{sign}]" in shown.getvalue() for sign in "abcd")
    assert "[bold]by[/bold]" in shown.getvalue()


def test_a_name_that_is_no_text_is_shown_escaped(tmp_path: Path) -> None:
    write_run(tmp_path / "plain", EVEN).rename(tmp_path / "half\udcff")
    command = [sys.executable, "-m", "mimokit.cli.main", "analyze", str(tmp_path)]
    done = run_to_end(command)
    assert (done.returncode, done.stderr) == (0, "")
    assert "half\\udcff" in done.stdout


def test_as_json(sweep: Path) -> None:
    done = call(sweep, "--json", "--baseline", "slow", "--metric", "total_time")
    found = json.loads(done.stdout)
    assert [row["run"] for row in found["runs"]] == ["baseline", "broken", "slow"]
    assert [row["name"] for row in found["comparison"]["rows"]] == ["baseline", "slow"]
    assert found["comparison"]["rows"][0]["significant"] is True
    causes = {one["run"]: [kind["kind"] for kind in one["findings"]]
              for one in found["explanations"]}  # fmt: skip
    assert causes == {"baseline": [], "broken": [], "slow": ["straggler"]}
    assert any("metrics.csv" in sentence for sentence in found["problems"])


def test_layouts_are_put_together(sweep: Path) -> None:
    done = call(sweep, "--by", "layout")
    assert done.exit_code == 0, done.output
    assert "colocated: images DP8 · language_module TP4 DP2" in done.stdout


def test_of_the_best_layout_a_run_that_completed_is_explained(tmp_path: Path) -> None:
    write_run(tmp_path / "a_killed", EVEN, status="failed")
    write_run(tmp_path / "b_whole", EVEN)
    write_run(tmp_path / "c_other", replace(EVEN, mode="heterogeneous", slow={5: 2.0}))
    done = call(tmp_path, "--by", "layout")
    assert done.exit_code == 0, done.output
    assert "Where the time of b_whole went" in done.stdout


def test_a_page(sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    def report(runs: Runs, *values: object, **named: object) -> str:
        given.extend([runs.names, *values, named])
        return "a page"

    monkeypatch.setattr(seams.REPORT_PAGE, report)
    file = tmp_path / "report.html"
    done = call(sweep, "--html", file, "--baseline", "slow", "--hardware", "h100")
    assert done.exit_code == 0, done.output
    assert f"Written to {file}" in done.stdout.replace("\n", "")
    assert file.read_text() == "a page"
    options = {"by": "run", "hardware": "h100"}
    assert given == [["baseline", "broken", "slow"], "slow", "tokens_per_sec", options]


@rows(
    "words, sentence",
    (["nowhere"], "Folder nowhere does not exist"),
    (["x" * 300], f"Folder {'x' * 300} does not exist"),
    ([Path(__file__).parent], "has no run:"),
    (["SWEEP", "--baseline", "other"], "Baseline 'other': there is none of this name"),
    (["SWEEP", "--metric", "speed"], "Metric speed does not exist"),
    (["SWEEP", "--by", "colour"], "Column colour does not exist"),
    (["SWEEP", "--html", "/nowhere/report.html"], "it cannot be written"),
)
def test_refusals_are_one_sentence(sweep: Path, words: list[object], sentence: str) -> None:
    done = call(*(sweep if word == "SWEEP" else word for word in words))
    assert done.exit_code == 2
    assert done.stdout == ""
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert isinstance(done.exception, SystemExit)
