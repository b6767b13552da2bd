"""Which experiments a sweep has, decided without a cluster."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from mimokit.config import ConfigError
from mimokit.experiment import sweep
from mimokit.experiment.sweeps.experiments import choose, collect, largest_world, refuse_all
from mimokit.experiment.sweeps.folder import SweepFolder, config_content, read_sweep
from mimokit.experiment.sweeps.prepared_sweep import find, prepare_sweep
from mimokit.experiment.sweeps.records import Board, ExperimentRecord, ExperimentStatus
from mimokit.planning.digests import digest_of_file
from mimokit.result_files import RunFile, SweepFile
from tests.layouts import digits_config
from tests.rows import rows

CONFIGS = Path(__file__).parents[3] / "configs"


def _experiment(file: Path, text: str = "", *, replicas: int = 2) -> None:
    sizes = f"{{tensor_parallel: 1, data_parallel: {replicas}}}"
    file.write_text(
        f"extends: {CONFIGS / 'digits_homogeneous.yaml'}\n"
        f"model: {{module_parallelisms: {{images: {sizes}, language_module: {sizes}}}}}\n{text}"
    )


def test_a_folder_has_the_yaml_files_directly_in_it(tmp_path: Path) -> None:
    for name in ("b.yaml", "a.yml", "baseline.yaml", ".hidden.yaml", "my exp.yaml"):
        _experiment(tmp_path / name)
    (tmp_path / "notes.txt").write_text("none")
    (tmp_path / "results" / "run_1").mkdir(parents=True)
    _experiment(tmp_path / "results" / "c.yaml")
    assert [one.name for one in collect(tmp_path)] == ["a", "b", "my exp"]


def test_all_that_cannot_run_are_named_and_the_others_are_left(tmp_path: Path) -> None:
    _experiment(tmp_path / "good.yaml")
    _experiment(tmp_path / "large.yaml", replicas=16)
    _experiment(tmp_path / "zero.yaml", "runtime: {num_iterations: 0, clip_grad: -1.0}\n")
    (tmp_path / "broken.yaml").write_text("model: [")
    (tmp_path / "tagged.yaml").write_text("!!python/object/apply:os.system ['touch hacked']")
    chosen = {one.name: one for one in choose(collect(tmp_path), 4)}
    refused = {name for name, one in chosen.items() if one.refusal is not None}
    assert refused == {"large", "zero", "broken", "tagged"}
    assert chosen["large"].sentences == (
        "Experiment 'large': its world has 16 ranks and the cluster has 4 engines; start a cluster "
        "of 16 engines, or choose a smaller layout.",
    )
    assert len(chosen["zero"].sentences) == 2
    assert not Path("hacked").exists()
    assert (chosen["good"].ranks, chosen["large"].ranks) == (2, 16)
    assert largest_world(chosen.values(), 16) == 2
    with pytest.raises(ConfigError) as error:
        refuse_all(chosen.values())
    assert len(error.value.problems) >= 5


def test_what_train_rejects_is_rejected_before_anything_starts(tmp_path: Path) -> None:
    _experiment(tmp_path / "unknown.yaml", "runtime: {hardware: no_such_gpu}\n")
    (one,) = choose(collect(tmp_path), 8)
    assert "no_such_gpu" in one.sentences[0]


def test_two_files_with_one_name_are_refused_and_named(tmp_path: Path) -> None:
    for name in ("a.yaml", "a.yml", "b.yaml"):
        _experiment(tmp_path / name)
    a, b = choose(collect(tmp_path), 8)
    assert (a.name, b.refusal) == ("a", None)
    assert "2 experiments have this name" in a.sentences[0]
    assert "a.yaml" in a.sentences[0]
    assert "a.yml" in a.sentences[0]


def test_a_grid_in_one_file_is_several_experiments(tmp_path: Path) -> None:
    _experiment(
        tmp_path / "a.yaml", "sweep: {runtime.seed: [1, 2, 3], runtime.clip_grad: [0.5, -1.0]}\n"
    )
    chosen = choose(collect(tmp_path / "a.yaml"), 8)
    assert len({one.name for one in chosen}) == 6
    assert sum(one.refusal is None for one in chosen) == 3
    assert {one.config.runtime.seed for one in chosen if one.config is not None} == {1, 2, 3}


def test_configs_made_in_python_are_named_by_the_caller() -> None:
    config = digits_config((1, 2), (2, 1))
    found = collect({"first": config, "../up": config, "with space": config})
    chosen = choose(found, 8)
    assert [one.refusal is None for one in chosen] == [True, False, True]
    assert "begins with a dot" in chosen[1].sentences[0]
    assert collect(config)[0].name == config.name


def test_a_missing_data_parallel_is_worked_out_for_the_cluster() -> None:
    config = digits_config((1, 2), (1, 2))
    for sizes in config.model.module_parallelisms.values():
        sizes.data_parallel = None
    (one,) = choose(collect({"open": config}), 4)
    assert one.ranks == 4


@rows("make", "empty", "missing")
def test_no_experiment_is_refused(tmp_path: Path, make: str) -> None:
    if make == "empty":
        with pytest.raises(ConfigError, match="it has no experiment"):
            collect(tmp_path)
        return
    (one,) = collect(tmp_path / "no such file.yaml")
    assert "does not exist" in one.sentences[0]


def test_a_sweep_of_which_all_are_rejected_raises_and_leaves_their_errors(tmp_path: Path) -> None:
    for name in ("one", "two"):
        _experiment(tmp_path / f"{name}.yaml", "runtime: {num_iterations: 0}\n")
    engines: Any = range(4)  # nothing but its length is asked for
    with pytest.raises(ConfigError, match=r"one cannot run: .*num_iterations is 0") as error:
        sweep(engines, tmp_path, results_dir=tmp_path / "results")
    assert len(error.value.problems) == 2
    assert len(list(tmp_path.glob("results/run_*/*/error.json"))) == 2


def test_a_resumed_sweep_has_its_folder_already(tmp_path: Path) -> None:
    config = digits_config((1, 2), (2, 1), metrics_output_dir=str(tmp_path / "own"))
    chosen = choose(collect(config), 2)
    prepared = prepare_sweep(chosen, results_dir=tmp_path / "first")
    prepared.folder.release()
    again = prepare_sweep(chosen, resume=prepared.folder.path)
    again.folder.release()
    directories = {one.directory for one in (*prepared.records, *again.records)}
    assert directories == {prepared.folder.path / config.name}
    with pytest.raises(ConfigError, match="results_dir and resume are both given"):
        prepare_sweep(chosen, results_dir=tmp_path / "second", resume=prepared.folder.path)
    assert not (tmp_path / "second").exists()


@rows("damage", "", "one digit", "gone", "no digest")
def test_an_experiment_whose_table_was_damaged_runs_again(tmp_path: Path, damage: str) -> None:
    """Its rows would be those of the sweep's table otherwise; a table without a digest is taken."""
    chosen = choose(collect(digits_config((1, 2), (2, 1))), 2)
    prepared = prepare_sweep(chosen, results_dir=tmp_path)
    prepared.folder.release()
    (record,) = prepared.records
    record.directory.mkdir()
    table = record.directory / RunFile.METRICS
    table.write_text("iteration,loss\n0,2.5\n1,2.25\n")
    digests = {} if damage == "no digest" else {"digests": {table.name: digest_of_file(table)}}
    info = {"status": "completed", "seconds": 3.0, **digests}
    (record.directory / RunFile.INFO).write_text(json.dumps(info))
    if damage == "one digit":
        table.write_text("iteration,loss\n0,2.5\n1,2.35\n")
    if damage == "gone":
        table.unlink()
    again = prepare_sweep(chosen, resume=prepared.folder.path)
    again.folder.release()
    (record,) = again.records
    damaged = damage in ("one digit", "gone")
    assert record.status is (ExperimentStatus.WAITING if damaged else ExperimentStatus.SKIPPED)
    assert ("has other bytes than its run has written" in record.message) == damaged


def _records(folder: SweepFolder, *names: str) -> tuple[ExperimentRecord, ...]:
    return tuple(
        ExperimentRecord(
            name, ExperimentStatus.WAITING, 2, 0, 3, None, None, "", folder.path / name
        )
        for name in names
    )


def test_one_table_has_the_rows_of_all_experiments(tmp_path: Path) -> None:
    folder = SweepFolder.new(tmp_path)
    records = _records(folder, "a", "b", "none")
    for name, text in {
        "a": "iteration,total_time,loss,images_forward_time\r\n0,1.0,2.0,0.1\r\n1,1.0,1.",
        "b": "iteration,total_time,loss,old_column\r\n0,3.0,4.0,7\r\n1,3.0\r\n",
    }.items():
        (folder.path / name).mkdir()
        (folder.path / name / RunFile.METRICS).write_bytes(text.encode())
    table = folder.write_table({one.name: one.directory for one in records})
    assert table.name == SweepFile.ALL_EXPERIMENTS
    assert table.read_text().splitlines() == [
        "experiment,iteration,total_time,loss,images_forward_time,old_column",
        "a,0,1.0,2.0,0.1,",
        "b,0,3.0,4.0,,7",
    ]


def test_two_sweeps_into_one_folder_do_not_mix(tmp_path: Path) -> None:
    first, second = SweepFolder.new(tmp_path), SweepFolder.new(tmp_path)
    assert first.path != second.path
    config = digits_config((1, 2), (2, 1))
    first.write(collect({"a": config}), _records(first, "a"))
    with pytest.raises(ConfigError, match="another run writes it"):
        SweepFolder.existing(first.path)
    first.release()
    SweepFolder.existing(first.path).release()
    assert read_sweep(first.path)["experiments"][0]["config"] == config_content(config)


@rows("entry", 1, {"config": [1]}, {"config": 3}, {"sentences": 3}, {"source": 3}, {"source": []})
def test_a_folder_that_is_no_sweep_cannot_be_resumed(tmp_path: Path, entry: Any) -> None:
    with pytest.raises(ConfigError, match="it is not the folder of a sweep"):
        SweepFolder.existing(tmp_path)
    entry = {"name": "a", **entry} if isinstance(entry, dict) else entry
    (tmp_path / SweepFile.SWEEP).write_text(json.dumps({"experiments": [entry]}))
    with pytest.raises(ConfigError, match=r"it is not the folder of a sweep.*experiments\.0"):
        find(None, tmp_path)


def test_a_pipe_and_a_deep_file_are_no_sweep(tmp_path: Path) -> None:
    (tmp_path / SweepFile.SWEEP).write_text("[" * 100_000)
    with pytest.raises(ConfigError, match="nested too deeply"):
        find(None, tmp_path)
    (tmp_path / SweepFile.SWEEP).unlink()
    os.mkfifo(tmp_path / SweepFile.SWEEP)
    with pytest.raises(ConfigError, match="it is a pipe"):
        find(None, tmp_path)


def test_a_tampered_sweep_leads_nowhere_else(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / RunFile.METRICS).write_text("precious")
    prepared = prepare_sweep(
        choose(collect(digits_config((1, 2), (2, 1))), 2), results_dir=tmp_path / "results"
    )
    prepared.folder.release()
    root, file = prepared.folder.path, prepared.folder.path / SweepFile.SWEEP
    content = json.loads(file.read_text())
    del content["digest"]
    (entry,) = content["experiments"]
    (root / "link").symlink_to(outside)
    for directory in (str(outside), "../outside", "link", "link/inside"):
        entry["directory"] = directory
        entry["config"]["runtime"]["metrics_output_dir"] = str(outside)
        file.write_text(json.dumps(content))
        with pytest.raises(ConfigError, match="would go to"):
            prepare_sweep(choose(find(None, root), 2), resume=root)
    assert (outside / RunFile.METRICS).read_text() == "precious"
    assert [path.name for path in outside.iterdir()] == [RunFile.METRICS]


def test_a_sweep_with_another_number_is_not_resumed_unless_somebody_says_so(tmp_path: Path) -> None:
    prepared = prepare_sweep(
        choose(collect(digits_config((1, 2), (2, 1))), 2), results_dir=tmp_path
    )
    prepared.folder.release()
    file = prepared.folder.path / SweepFile.SWEEP
    content = json.loads(file.read_text())
    content["experiments"][0]["config"]["runtime"]["learning_rate"] = 0.25
    file.write_text(json.dumps(content))
    before = sorted(prepared.folder.path.rglob("*"))
    with pytest.raises(ConfigError, match="other content than was written; remove its digest if"):
        find(None, prepared.folder.path)
    assert sorted(prepared.folder.path.rglob("*")) == before
    del content["digest"]
    file.write_text(json.dumps(content))
    (experiment,) = find(None, prepared.folder.path)
    assert experiment.config is not None
    assert experiment.config.runtime.learning_rate == 0.25


def test_the_folder_that_a_config_names_is_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    chosen = choose(collect(digits_config((1, 2), (2, 1), metrics_output_dir="own")), 2)
    prepared = prepare_sweep(chosen)
    prepared.folder.release()
    again = prepare_sweep(chosen, resume=prepared.folder.path)
    again.folder.release()
    assert again.records[0].directory == tmp_path / "own"


def test_a_listener_hears_the_last_change_and_one_that_raises_is_dropped(tmp_path: Path) -> None:
    folder = SweepFolder.new(tmp_path)
    board = Board(_records(folder, "a", "b"))
    seen: list[int] = []
    listener = board.listen(lambda: seen.append(board["a"].iteration))

    def fail() -> None:
        raise ValueError("no")

    with pytest.warns(UserWarning, match="a listener of a sweep raised ValueError"):
        board.listen(fail).join(10)
    for number in range(1000):
        board.update("a", iteration=number)
    board.close()
    listener.join(10)
    assert seen[-1] == 999
    assert len(seen) < 100, "changes within a tenth of a second are one notice"
