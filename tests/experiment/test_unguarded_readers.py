"""Readers of software files, own runs, traces, recordings and fits: pipes, devices, deep, huge."""

import json
import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import mimokit
from mimokit.analysis.trace import TraceFileError, read_trace
from mimokit.config import ConfigError
from mimokit.extras.foreign_loops.recording import WatchFile, read_recording
from mimokit.extras.strategies.fits import checkpoint
from mimokit.extras.strategies.fits.job import FitError
from mimokit.planning.digests import sealed
from mimokit.prediction.hardware import load_hardware
from mimokit.prediction.own_runs.table import read_runs
from mimokit.prediction.step_time.software import load_software, save_software
from tests.commands import run_to_end
from tests.rows import rows

DEEP = "[" * 200_000
SETTING = {"strategy": "DiLoCo"}


def own_runs(file: Path) -> object:
    return read_runs(file, load_hardware("h100"), load_software("megatron-core"))


def fit(file: Path) -> object:
    return checkpoint.load_node(file.parents[1], SETTING, 0, 1, torch.device("cpu"))


def recording(file: Path) -> object:
    return read_recording(file.parent)


READERS: dict[str, tuple[Callable[[Path], object], str, type[Exception]]] = {
    "software": (load_software, "stack.json", ConfigError),
    "own runs": (own_runs, "runs.csv", ConfigError),
    "fit": (fit, f"0/{checkpoint.LAST}", FitError),
    "recording": (recording, WatchFile.INDEX.of_rank(0), ValueError),
    "trace": (read_trace, "trace.json", TraceFileError),
}


@pytest.mark.parametrize("kind", ["pipe", "device", "deep", "folder"])
@pytest.mark.parametrize("name", READERS)
def test_what_is_no_file_of_that_kind_is_refused_at_once(
    tmp_path: Path, name: str, kind: str
) -> None:
    """A pipe would be waited for, and a device fills all memory."""
    read, file, refusal = READERS[name]
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "deep":
            path.write_text(DEEP)
        case "folder":
            path.mkdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(refusal) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert sorted(tmp_path.rglob("*")) == before


def test_a_software_file_is_not_written_over_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "stack.json")
    with pytest.raises(ConfigError, match="it exists already"):
        save_software(load_software("megatron-core"), "megatron-core", tmp_path / "stack.json")


@pytest.mark.parametrize("key", ["base", "gpu", "facts"])
@pytest.mark.parametrize("value", [[], {}, None, 3, "x" * 5000])
def test_a_software_file_with_another_type_is_refused(
    tmp_path: Path, key: str, value: object
) -> None:
    file = save_software(load_software("megatron-core"), "megatron-core", tmp_path / "stack.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))
    if (key, value) in [("gpu", "x" * 5000), ("facts", {})]:
        load_software(file)
        return
    with pytest.raises(ConfigError) as caught:
        load_software(file)
    assert len(str(caught.value)) < 1000


def test_a_name_of_thousands_of_letters_does_not_fill_the_screen(tmp_path: Path) -> None:
    for read in (load_software, mimokit.load_experiment_config, load_hardware):
        with pytest.raises(ConfigError) as caught:
            read("x" * 5000)
        assert 20 < len(str(caught.value)) < 1000
    config = tmp_path / "a.yaml"
    config.write_text(f"model: {{{'x' * 1000}: 1}}\n")
    with pytest.raises(ConfigError) as caught:
        mimokit.load_experiment_config(config)
    assert len(str(caught.value)) < 2000


def test_a_small_file_takes_little_memory_to_read(tmp_path: Path) -> None:
    """`read(2**30)` takes a gigabyte for a trace of some bytes."""
    (tmp_path / "trace.json").write_text('{"traceEvents": [], "otherData": {}}')
    code = (
        "import resource, sys\n"
        "from mimokit.analysis.trace import TraceFileError, read_trace\n"
        "import psutil\n"
        "most = psutil.Process().memory_info().vms + 2**28\n"
        "resource.setrlimit(resource.RLIMIT_AS, (most, most))\n"
        "try:\n    read_trace(sys.argv[1])\n"
        "except TraceFileError as error:\n    print(type(error).__name__)\n"
    )
    ran = run_to_end([sys.executable, "-c", code, str(tmp_path)])
    assert ran.stdout == "TraceFileError\n", ran.stderr


def saved_fit(folder: Path, save: str = "5eed-2") -> Path:
    header = checkpoint.Header(2, 1, 4, SETTING, save)
    state = {"model": {"weight": torch.ones(9)}, "strategy": {}, "generators": {}, "records": []}
    checkpoint.save(folder, checkpoint.NodeState(header, **state), 0, 1)
    return folder / "0" / checkpoint.LAST


@rows("text", "{}", "[]", "null", '{"step": "2"}', DEEP, "{" * 2**21)
def test_a_fit_with_another_header_is_refused(tmp_path: Path, text: str) -> None:
    file = saved_fit(tmp_path)
    rewrite(file, zipfile.ZIP_STORED, text)
    with pytest.raises(FitError) as caught:
        fit(file)
    assert len(str(caught.value)) < 1000


def test_a_fit_that_is_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    file = saved_fit(tmp_path)
    rewrite(file, zipfile.ZIP_DEFLATED, None)
    with pytest.raises(FitError, match="it is compressed, which no fit writes"):
        fit(file)


def test_a_fit_with_one_bit_flipped_is_refused(tmp_path: Path) -> None:
    file = saved_fit(tmp_path)
    content = bytearray(file.read_bytes())
    content[content.index(torch.ones(9).numpy().tobytes()) + 7] ^= 1
    file.write_bytes(content)
    with pytest.raises(FitError, match="is not as it was written"):
        fit(file)


def rewrite(file: Path, compression: int, header: str | None) -> None:
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    if header is not None:
        members["archive/header.json"] = header.encode()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content, compression)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with mimokit.watch(model, tmp_path / "loop", optimizer=optimizer):
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()
    return tmp_path / "loop"


def test_a_recording_with_one_bit_flipped_is_refused(recorded: Path) -> None:
    """In its numbers, and in what it says of them."""
    read_recording(recorded)
    tensors = recorded / WatchFile.TENSORS.of_rank(0)
    content = bytearray(tensors.read_bytes())
    content[-1] ^= 1
    tensors.write_bytes(content)
    with pytest.raises(ValueError, match="it has other bytes than were recorded"):
        read_recording(recorded)
    content[-1] ^= 1
    tensors.write_bytes(content)
    index = recorded / WatchFile.INDEX.of_rank(0)
    index.write_text(index.read_text().replace('"step": 0', '"step": 1', 1))
    with pytest.raises(ValueError, match="has another content than was recorded"):
        read_recording(recorded)


@pytest.mark.parametrize(
    ("key", "value"),
    [("tensor", 0), ("tensor", "t0"), ("stage", "1"), ("operation", None), ("share", [0, "2"]),
     ("group", 3), ("dimension", 0.5)],
)  # fmt: skip
def test_a_recording_with_another_type_is_refused(recorded: Path, key: str, value: object) -> None:
    index = recorded / WatchFile.INDEX.of_rank(0)
    content = json.loads(index.read_text())
    del content["digest"]
    content["seams"][0][key] = value
    index.write_text(json.dumps(sealed(content)))
    with pytest.raises(ValueError, match=r"was not written by this version of mimokit\.watch"):
        read_recording(recorded)


@rows(
    "change",
    lambda content: content["otherData"].update(clock_error_seconds={"0": "late"}),
    lambda content: content["otherData"].update(clock_error_seconds=[1]),
    lambda content: content["traceEvents"][-1].update(ts="0"),
    lambda content: content["traceEvents"][-1].update(pid=[1]),
    lambda content: content["traceEvents"][-1]["args"].update(step={}),
)
def test_a_trace_with_another_type_is_refused(
    tmp_path: Path, change: Callable[[dict[str, object]], None]
) -> None:
    event = {"ph": "X", "pid": 0, "tid": 0, "ts": 0.0, "dur": 1.0,
             "args": {"iteration": 0, "step": "forward"}}  # fmt: skip
    content = {"traceEvents": [event], "otherData": {"clock_error_seconds": {"0": 0.0}}}
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(content))
    read_trace(file)
    change(content)
    file.write_text(json.dumps(content))
    with pytest.raises(TraceFileError, match="is not a trace of mimokit"):
        read_trace(file)
