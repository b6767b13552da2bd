"""`mimokit config`: what a file comes to, as YAML and as JSON."""

import json
from pathlib import Path

from mimokit.config_files import load_experiment_config
from tests.cli.call import call

ABLATIONS = Path(__file__).parents[2] / "configs/ablations"
FILE = str(ABLATIONS / "digits/colocated_tp2_dp2.yaml")


def test_the_source_of_every_value_stands_next_to_it() -> None:
    done = call("config", FILE, "--resolved")
    assert done.exit_code == 0
    sources = {
        line.split(":")[0].strip(): line.rpartition("# ")[2]
        for line in done.stdout.splitlines()
        if "  # " in line
    }
    assert sources["base_batch_size"] == FILE
    assert sources["num_iterations"] == str(ABLATIONS / "digits/baseline.yaml")
    assert sources["image_seq_length"] == str(ABLATIONS.parent / "digits_colocated.yaml")
    assert sources["deployment_mode"] == "implied by runtime.pipeline_schedule"
    assert sources["clip_grad"] == "default"


def test_json_has_one_record_per_value() -> None:
    done = call("config", FILE, "--json")
    records = {one["path"]: one for one in json.loads(done.stdout)}
    assert records["data.base_batch_size"] == {
        "path": "data.base_batch_size", "value": 32, "source": FILE
    }  # fmt: skip
    assert "runtime.clip_grad" not in records


def test_a_wrong_file_is_shown_as_written_and_refused_as_a_config(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text("model: {llm_module_name: language}\ndata: {base_batch_size: many}\n")
    shown = call("config", path)
    assert shown.exit_code == 0
    assert "base_batch_size: many" in shown.stdout
    done = call("config", path, "--resolved")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "base_batch_size is the text 'many'" in done.stderr


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    done = call("config", tmp_path / "none.yaml")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "does not exist" in done.stderr


def test_an_experiment_of_a_sweep(tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text(f"extends: {FILE}\nsweep: {{data.num_workers: [0, 3]}}\n")
    done = call("config", path, "--experiment", "grid-num_workers_3")
    assert done.exit_code == 0
    lines = [line for line in done.stdout.splitlines() if line.endswith("(sweep)")]
    assert [line.split("#")[0].strip() for line in lines] == [
        "name: grid-num_workers_3",
        "num_workers: 3",
    ]
    assert "sweep:" not in done.stdout
    copy = tmp_path / "copy.yaml"
    copy.write_text(done.stdout)
    config = load_experiment_config(copy)
    assert (config.name, config.data.num_workers) == ("grid-num_workers_3", 3)
    done = call("config", path, "--experiment", "grid-num_workers_4")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "did you mean grid-num_workers_" in done.stderr
    done = call("config", path, "--resolved")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "several experiments" in done.stderr


def test_a_file_without_a_sweep_is_an_experiment_of_its_own_name(tmp_path: Path) -> None:
    path = tmp_path / "my exp.yaml"
    path.write_text(f"extends: {FILE}\n")
    by_name, resolved = (
        call("config", path, *options).stdout
        for options in (("--experiment", "my exp"), ("--resolved",))
    )
    assert by_name == resolved != ""
