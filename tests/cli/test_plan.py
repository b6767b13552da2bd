import json
import sys
from pathlib import Path

from mimokit.config_files import load_preset
from mimokit.prediction import predict
from mimokit.prediction.verdict import verdict_sentence
from tests.cli.call import call
from tests.commands import run_to_end
from tests.rows import rows

PRESET = "preset:llava_7b_colocated"


def test_tables() -> None:
    done = call("plan", PRESET, columns=400)
    assert done.exit_code == 0
    assert "colocated on 8 ranks" in done.stdout
    assert "fan-in" in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("Predicted on")]
    verdict = predict(PRESET).verdict
    assert verdict_sentence(verdict) in line
    for words in ("time per step", "tokens/s per GPU", "GiB (of 79.1 GiB)", "idle in pipeline"):
        assert words in line


def test_what_cannot_be_predicted_is_planned(tmp_path: Path) -> None:
    path = load_preset("llava_7b_colocated").save(tmp_path / "unknown.yaml")
    path.write_text(f"{path.read_text()}\nprediction: {{gpu: h1000}}\n")
    done = call("plan", path, columns=400)
    assert done.exit_code == 0
    assert "colocated on 8 ranks" in done.stdout
    assert "Nothing is predicted: GPU 'h1000'" in done.stdout


def test_json() -> None:
    done = call("plan", PRESET, "--json", "--world-size", "8")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["world_size"] == 8


def test_another_world() -> None:
    done = call("plan", PRESET, "--world-size", "4")
    assert done.exit_code == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 2
    assert "Module 'images': data_parallel is 8" in done.stderr


@rows("text", None, "", "- 1\n", "a:\n\tb: 1\n", "a: 1\na: 2\n", "model: 3\n")
def test_bad_files(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "bad.yaml"
    if text is not None:
        path.write_text(text)
    done = call("plan", path)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr
    assert isinstance(done.exception, SystemExit)


@rows("engines, hosts, split", ("8", 2, []), ("16", 1, []), ("12", 2, []), ("3", 6, [0, 1]))
def test_replicas_on_hosts(tmp_path: Path, engines: str, hosts: int, split: list[int]) -> None:
    path = load_preset("llava_7b_colocated").save(tmp_path / "replicas.yaml")
    path.write_text(f"{path.read_text()}\nstrategy: {{name: diloco, replicas: 2}}\n")
    command = ["plan", str(path), "--engines-per-host", engines]
    found = json.loads(call(*command, "--json").stdout)["strategy"]
    assert len(set(found["hosts"].values())) == hosts
    assert found["split_replicas"] == split
    if engines == "8":
        assert "Exchanges of ranks" in call(*command).stdout


def test_a_layout_without_replicas_has_no_hosts() -> None:
    none = call("plan", PRESET, "--engines-per-host", "8")
    assert (none.exit_code, none.stdout) == (2, "")
    assert "The layout has no replicas" in none.stderr


@rows(
    "section, sentence",
    ("{name: diloco, H: 0}", "strategy.H is 0; it must be at least 1"),
    ("[{name: diloco}, {name: fedavg}]", "strategy is a list; write a mapping"),
    ("{name: diloco}\nstrategy: {name: fedavg}", "the key strategy is written twice"),
)
def test_a_bad_strategy(tmp_path: Path, section: str, sentence: str) -> None:
    """One sentence that names the key; all others are in tests/config/test_strategy.py."""
    path = load_preset("llava_7b_colocated").save(tmp_path / "replicas.yaml")
    path.write_text(f"{path.read_text()}\nstrategy: {section}\n")
    done = call("plan", path)
    assert (done.exit_code, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_missing_world_size(tmp_path: Path) -> None:
    config = load_preset("llava_7b_colocated")
    for module in config.model.module_parallelisms.values():
        module.data_parallel = None
    path = config.save(tmp_path / "open.yaml")
    done = call("plan", path)
    assert done.exit_code == 2
    assert "--world-size" in done.stderr
    assert call("plan", path, "--world-size", "8").exit_code == 0


def test_a_folder(tmp_path: Path) -> None:
    done = call("plan", tmp_path)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "is a folder" in done.stderr


def test_the_real_command(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text('model: {llm_module_name: language}\ndata: {base_batch_size: "4"}\n')
    command = [str(Path(sys.executable).with_name("mimokit")), "plan", str(path)]
    done = run_to_end(command)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert "Section 'data': base_batch_size is the text '4'" in done.stderr


def test_a_plan_is_proved_without_engines() -> None:
    done = call("verify", PRESET, "--static", "--json")
    assert done.exit_code == 0
    proof = json.loads(done.stdout)
    assert proof["passed"]
    assert {claim["shown_for"] for claim in proof["claims"]} >= {"every rank"}
    both = call("verify", PRESET, "--static", "--explain")
    assert both.exit_code == 2
    assert "give --static, or --explain" in both.stderr


def test_folders_that_are_no_recordings_are_refused(tmp_path: Path) -> None:
    done = call("compare", tmp_path, tmp_path)
    assert done.exit_code == 2
    assert "is no recording, or one that was cut off" in done.stderr
