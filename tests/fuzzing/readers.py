"""Everything that reads a file of others: a corpus of right ones, and what reads them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch
import yaml

import mimokit
from mimokit.analysis import explain, load_runs, read_run
from mimokit.analysis.run_folders import RunFolderError
from mimokit.architecture import from_hf
from mimokit.config import ConfigError
from mimokit.engine.checkpoints.files import read_whole, write_files
from mimokit.experiment.checkpoints import list_checkpoints
from mimokit.experiment.sweeps.folder import read_sweep
from mimokit.interop import from_megatron_arguments
from mimokit.planning.checkpoint_files import changed_files, save_id
from mimokit.planning.checkpoints import (
    MARKER,
    Checkpoint,
    DataPosition,
    check_same_data,
    check_same_model,
    file_of_rank,
    folder_of_step,
    layout_json,
    read_checkpoint,
)
from mimokit.planning.digests import sealed
from mimokit.prediction.hardware import load_hardware
from tests.analysis.planted_runs import Planted, write_run
from tests.fuzzing.further_readers import FURTHER
from tests.fuzzing.layouts import check_layout, random_layout
from tests.fuzzing.mutants import CANARY, as_json, changed_text, changed_tree, written
from tests.interop.test_megatron import LLAMA as SCRIPT
from tests.sparse_weights import SMALL

ROOT = Path(mimokit.__file__).parent
CONFIGS = ROOT.parent / "configs"
LONGEST = 3000
"""Characters of a sentence: names of what is known are listed in some."""


@dataclass(frozen=True)
class Reader:
    """Reads what a mutant is written to.

    Attributes:
        read: of random numbers and an empty folder; makes a mutant and reads it.
        refusals: what it may raise.
    """

    name: str
    read: Callable[[Random, Path], object]
    refusals: tuple[type[Exception], ...] = (ConfigError,)

    def attempt(self, random: Random, folder: Path) -> bool:
        """Read a mutant; return whether it was accepted.

        Raises:
            AssertionError: it was refused in more than a sentence each, or something was executed.
            Exception: that it was not refused at all.
        """
        try:
            self.read(random, folder)
        except self.refusals as error:
            said = [one.sentence for one in getattr(error, "problems", ())] or [str(error)]
            for sentence in said:
                assert sentence.strip(), "a refusal without a word"
                assert "Traceback" not in sentence, sentence
                assert len(sentence) < LONGEST, sentence
            accepted = False
        else:
            accepted = True
        assert not (Path.cwd() / CANARY).exists(), "a mutant was executed"
        return accepted


@cache
def _trees(*patterns: str) -> Sequence[Any]:
    """Return the content of YAML and JSON files, by patterns below the repository."""
    return [_tree(file) for one in patterns for file in sorted(ROOT.parent.glob(one))]


def _tree(file: Path) -> Any:
    if file.suffix == ".json":
        return json.loads(file.read_text())  # in YAML 1e9 is a text
    tree = yaml.safe_load(file.read_text())
    if "extends" in tree:
        tree["extends"] = str(file.parent / tree["extends"])
    return tree


def _json_mutant(random: Random, corpus: Sequence[Any]) -> str:
    tree = random.choice(corpus)
    if random.random() < 0.3:
        return changed_text(random, as_json(tree))
    return as_json(changed_tree(random, tree))


def _yaml_mutant(random: Random, corpus: Sequence[Any]) -> str:
    tree = random.choice(corpus)
    if random.random() < 0.3:
        return changed_text(random, _yaml(tree))
    tree = changed_tree(random, tree)
    return as_json(tree) if random.random() < 0.3 else _yaml(tree)


def _yaml(tree: Any) -> str:
    try:
        return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)
    except (yaml.YAMLError, RecursionError):
        return as_json(tree)


def _config(random: Random, folder: Path) -> None:
    corpus = _trees("configs/*.yaml", "mimokit/config/presets/*.yaml")
    text = _yaml_mutant(random, corpus)
    file = written(folder / "mutant.yaml", text)
    mimokit.plan(mimokit.load_experiment_config(file))


def _hugging_face(random: Random, folder: Path) -> None:
    text = _json_mutant(random, [config for config, _ in SMALL.values()])
    from_hf(written(folder / "config.json", text))


def _hardware(random: Random, folder: Path) -> None:
    text = _json_mutant(random, _trees("mimokit/prediction/hardware/gpus/*.json"))
    load_hardware(written(folder / "gpu.json", text))


def _megatron(random: Random, folder: Path) -> None:
    gpus = random.choice((None, 1, 8))
    from_megatron_arguments(changed_text(random, SCRIPT), gpus)


@cache
def _run_files(place: Path) -> dict[str, bytes]:
    folder = write_run(place / "original", Planted(iterations=8))
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def _results(random: Random, folder: Path) -> None:
    files = _run_files(_scratch())
    run = folder / "run"
    run.mkdir()
    for name, content in files.items():
        (run / name).write_bytes(content)
    chosen = random.choice([*files, "error.json", "health.json", "trace.json", "evaluations.csv"])
    original = files.get(chosen, b'{"type": "RankError", "message": "m", "rank": 1, "step": 2}')
    text = original.decode()
    if chosen.endswith(".json") and random.random() < 0.7:
        text = as_json(changed_tree(random, json.loads(text)))
    else:
        text = changed_text(random, text)
    written(run / chosen, text)
    runs = load_runs(run)
    repr(runs)
    if list(runs.names):
        str(explain(runs, runs.names[0]))
    read_run(run)


def _sweep(random: Random, folder: Path) -> None:
    config = yaml.safe_load((CONFIGS / "digits_homogeneous.yaml").read_text())
    entry = {
        "name": "a", "directory": "a", "status": "completed", "sentences": [], "source": "a.yaml",
        "config": config, "seconds": 1.0, "error": None,
    }  # fmt: skip
    content = {"started": "2026-11-23T12:00:00+00:00", "written": "x", "experiments": [entry] * 2}
    changed = changed_tree(random, content)
    right = isinstance(changed, dict) and random.random() < 0.5
    written(folder / "sweep.json", as_json(sealed(changed) if right else changed))
    read_sweep(folder)


@cache
def _saved(place: Path) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """Return the marker of a checkpoint, the header of its file, and the blocks in that."""
    blocks = {f"{part}/images/layer": ((0, 0), torch.ones(2, 3)) for part in ("weights", "exp_avg")}
    save = save_id("5eed", 3)
    digests = write_files(place, 0, [blocks], save)
    file = place / file_of_rank(0, 0)
    layout = layout_json(mimokit.load_experiment_config(CONFIGS / "digits_colocated.yaml"))
    checkpoint = Checkpoint(
        place,
        3,
        layout,
        dict.fromkeys(blocks, (2, 3)),
        {file.name: file.stat().st_size},
        DataPosition("digits", 100, 1, 8, 4),
        {"learning_rate_steps": 3, "loss_scale": None},
        "2026-11-23T12:00:00+00:00",
        {"torch": torch.__version__},
        save,
        digests,
    )
    content = file.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    return checkpoint.to_json(), json.loads(content[8:begin]), content[begin:]


def _checkpoint(random: Random, folder: Path) -> None:
    marker, header, blocks = _saved(_scratch())
    file = file_of_rank(0, 0)
    if of_marker := random.random() < 0.5:
        text = as_json(header)
    elif random.random() < 0.5:
        text = _json_mutant(random, [header])
    else:
        note = {key: _json_mutant(random, [json.loads(value)]) if value[0] == "{" else value
                for key, value in header["__metadata__"].items()}  # fmt: skip
        text = as_json({**header, "__metadata__": note})
    head = text.encode("utf-8", "surrogatepass")
    saved = folder / folder_of_step(3)
    saved.mkdir()
    (saved / file).write_bytes(len(head).to_bytes(8, "little") + head + blocks)
    whole = {**marker, "files": {file: (saved / file).stat().st_size}}
    written(saved / MARKER, _json_mutant(random, [whole]) if of_marker else as_json(whole))
    found = list_checkpoints(folder)
    str(found), json.dumps(found.to_json())
    checkpoint = read_checkpoint(saved)
    check_same_data(checkpoint, DataPosition("digits", 100, 1, 8, 4))
    check_same_model(checkpoint, {"images/layer": (2, 3)})
    # Most mutants have other bytes than were saved: they are read on, as some would by chance.
    assert all(len(text) < LONGEST for text in changed_files(checkpoint, checkpoint.files))
    read_whole(checkpoint, checkpoint.shapes)


def _layout(random: Random, folder: Path) -> None:
    check_layout(mimokit.plan(random_layout(random)))


_SCRATCH: list[Path] = []


def _scratch() -> Path:
    import tempfile

    if not _SCRATCH:
        _SCRATCH.append(Path(tempfile.mkdtemp(prefix="mimokit-fuzz-")))
    return _SCRATCH[0]


READERS = (
    Reader("configs", _config),
    Reader("layouts", _layout),
    Reader("Hugging Face configs", _hugging_face),
    Reader("Megatron-LM arguments", _megatron),
    Reader("hardware", _hardware),
    Reader("results", _results, (ConfigError, RunFolderError, ValueError)),
    Reader("sweep.json", _sweep),
    Reader("checkpoints", _checkpoint),
    *(Reader(name, read, (ConfigError, *further)) for name, read, further in FURTHER),
)
