"""Readers of what runs, fits, loops and clusters leave; each mutant comes of a valid file."""

import json
import zipfile
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch

import mimokit
from mimokit.analysis.trace import TraceFileError, read_trace
from mimokit.cluster.local.entries import ClusterEntry
from mimokit.experiment.plan_of_model import model_to_train
from mimokit.extras.foreign_loops.recording import WatchFile
from mimokit.extras.strategies.fits import checkpoint
from mimokit.extras.strategies.fits.job import FitError
from mimokit.extras.strategies.fits.records import Begun, NodeStep, Validation
from mimokit.extras.strategies.fits.tables import FitTables, check_tables
from mimokit.planning.digests import sealed
from mimokit.prediction.hardware import load_hardware
from mimokit.prediction.own_runs.table import read_runs
from mimokit.prediction.step_time.software import load_software, save_software
from mimokit.result_files import FitFile
from tests.analysis.planted_runs import write_trace_of_forwards
from tests.fuzzing.mutants import as_json, changed_text, changed_tree, written
from tests.sparse_weights import SMALL

SETTING = {"strategy": "DiLoCo", "batch_size": "4"}
OWN_RUNS = """model,seq_length,global_batch_size,tp,dp,recompute,fsdp,seconds,memory_gib
llama-3-8b,4096,128,2,8,none,false,6.1,60
llama-3-8b,4096,128,4,4,full,false,7.2,40
"""


def mutant_of(random: Random, content: Any) -> str:
    """Return valid JSON with a change in what it says, or in its characters."""
    if random.random() < 0.3:
        return changed_text(random, as_json(content))
    return as_json(changed_tree(random, content))


def trace(random: Random, folder: Path) -> None:
    """Read the trace of a run."""
    file = folder / "trace.json"
    write_trace_of_forwards(file)
    content = json.loads(file.read_text())
    content["otherData"]["clock_error_seconds"] = {"0": 0.0, "1": 1e-6}
    written(file, mutant_of(random, content))
    for inside in (False, True):
        repr(read_trace(file, inside=inside))


def software(random: Random, folder: Path) -> None:
    """Read a file of a calibrated stack."""
    file = save_software(load_software("megatron-core"), "megatron-core", folder / "stack.json")
    repr(load_software(written(file, mutant_of(random, json.loads(file.read_text())))))


def own_runs(random: Random, folder: Path) -> None:
    """Read a table of measured steps."""
    file = written(folder / "runs.csv", changed_text(random, OWN_RUNS))
    repr(read_runs(file, load_hardware("h100"), load_software("megatron-core")))


def entry(random: Random, folder: Path) -> None:
    """Read the entry of a cluster, as `mimokit clusters` does."""
    content = {
        "directory": str(folder), "launch": "fork", "stays": True, "engines": 2, "timeout": 30.0,
        "preload": ["mimokit"], "pid": 1, "began": 0.0,
    }  # fmt: skip
    found = ClusterEntry.of_json(mutant_of(random, content))
    repr((found.name, found.lives, found.runs))


@cache
def _recorded() -> dict[str, bytes]:
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="mimokit-fuzz-"))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with mimokit.watch(model, folder, optimizer=optimizer):
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def recording(random: Random, folder: Path) -> None:
    """Compare a recording with the one that it was; half of the mutants have a right digest."""
    index = WatchFile.INDEX.of_rank(0)
    for name in ("first", "second"):
        (folder / name).mkdir()
        for file, content in _recorded().items():
            (folder / name / file).write_bytes(content)
    content = json.loads(_recorded()[index])
    changed = changed_tree(random, {key: content[key] for key in content if key != "digest"})
    right = random.random() < 0.5 and isinstance(changed, dict)
    text = as_json(sealed(changed)) if right else mutant_of(random, content)
    written(folder / "second" / index, text)
    str(mimokit.compare(folder / "first", folder / "second").verdict)


@cache
def _fit() -> bytes:
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="mimokit-fuzz-"))
    header = checkpoint.Header(2, 1, 4, SETTING, "5eed-2")
    state = {"model": {"weight": torch.ones(2)}, "strategy": {}, "generators": {}, "records": []}
    checkpoint.save(folder, checkpoint.NodeState(header, **state), 0, 1)
    return (folder / "0" / checkpoint.LAST).read_bytes()


def fit(random: Random, folder: Path) -> None:
    """Read the checkpoint of a node, whose header or bytes are changed."""
    file = folder / "0" / checkpoint.LAST
    file.parent.mkdir()
    content = _fit()
    if random.random() < 0.3:
        place = random.randrange(len(content))
        content = (
            content[:place] + random.randbytes(random.choice((0, 1, 8))) + content[place + 1 :]
        )
        file.write_bytes(content)
    else:
        file.write_bytes(content)
        header = {"step": 2, "nodes": 1, "minibatch_size": 4, "setting": SETTING, "save": "5eed-2"}
        _with_header(file, mutant_of(random, header), random.choice((0, 0, 8)))
    checkpoint.load_node(folder, SETTING, 0, 1, torch.device("cpu"))


def _with_header(file: Path, text: str, compression: int) -> None:
    """Write another header, compressed or not."""
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["archive/header.json"] = text.encode("utf-8", "surrogatepass")
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content, compression)


@cache
def _tables() -> dict[str, bytes]:
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="mimokit-fuzz-"))
    tables = FitTables(folder, 1)
    tables.take(Begun(0, 0, 3, 4))
    for step in (1, 2, 3):
        tables.take(NodeStep(0, step, 4, 0.5 / step, 0.1, 0.01, 0.02, {"norm": 1.0 * step}))
        tables.take(Validation(step, {"local_loss": 0.25}))
    tables.write()
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def fit_tables(random: Random, folder: Path) -> None:
    """Check the tables of a fit that is to go on, half of them without a digest."""
    files = dict(_tables())
    chosen = random.choice(sorted(files))
    if random.random() < 0.5 and chosen != FitFile.DIGESTS:
        del files[FitFile.DIGESTS]
    for name, content in files.items():
        (folder / name).write_bytes(content)
    text = files[chosen].decode()
    if chosen != FitFile.DIGESTS:
        written(folder / chosen, changed_text(random, text))
    else:
        content = {key: value for key, value in json.loads(text).items() if key != "digest"}
        changed = changed_tree(random, content)
        right = isinstance(changed, dict) and random.random() < 0.7
        written(folder / chosen, as_json(sealed(changed) if right else changed))
    check_tables(folder)
    again = FitTables(folder, 1)
    again.take(Begun(0, 3, 6, 4))
    again.write()


def model_to_plan(random: Random, folder: Path) -> None:
    """Read a model as `mimokit plan config.json` does."""
    content = random.choice([config for config, _ in SMALL.values()])
    content = {**content, "quantization_config": {"quant_method": "fp8"}}
    repr(model_to_train(str(written(folder / "config.json", mutant_of(random, content)))))


FURTHER = (
    ("tables of fits", fit_tables, ()),
    ("models to plan", model_to_plan, ()),
    ("traces", trace, (TraceFileError,)),
    ("software files", software, ()),
    ("own runs", own_runs, ()),
    ("entries of clusters", entry, (ValueError,)),
    ("recordings", recording, (ValueError,)),
    ("checkpoints of fits", fit, (FitError,)),
)
"""Name, reader, and what it may raise next to `ConfigError`."""
