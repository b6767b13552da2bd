"""The marker of a checkpoint: what was saved, of which model, layout and data; without torch.

A checkpoint is a folder `step-<number>` of files that ranks have written, and a marker that was
written last. A folder without a marker is no checkpoint.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from mimokit.architecture.tensor_cut import Shape
from mimokit.config import ExperimentSections
from mimokit.config.errors import ConfigError, Problem
from mimokit.config.text_file import read_json
from mimokit.planning.digests import is_as_sealed
from mimokit.units import listed

FORMAT = 1
"""Of the folders that this version writes; it reads no newer ones."""

MARKER = "checkpoint.json"
PARTIAL = ".partial"
"""How the folder of something unfinished ends; it begins with a dot. The next run removes it."""
WEIGHTS, BUFFERS, RANDOM, EXCHANGE = "weights", "buffers", "random", "exchange"
"""Parts of a state; those of an optimizer are named as torch names them, `exp_avg` say."""

_MOST_DIGITS = 18
_PREFIX, _SUFFIX, _REPLICA = "step-", ".safetensors", "replica_"
_MOST_NAMED = 8
"""Tensors or files that a sentence names."""


class DamagedCheckpointError(ConfigError):
    """A checkpoint is not as it was saved; where there is an earlier one, that may be."""


def folder_of_step(step: int) -> str:
    """Return the name of the folder of a checkpoint after so many steps."""
    return f"{_PREFIX}{step:08d}"


def file_of_rank(rank: int, number: int) -> str:
    """Return the name of a file of a rank, of which several hold blocks of one tensor."""
    return f"rank_{rank:05d}_{number}{_SUFFIX}"


def folder_of_replica(replica: int) -> str:
    """Return the folder of a replica in a checkpoint; the first one has no folder of its own."""
    return f"{_REPLICA}{replica:05d}" if replica else ""


def tensor_name(part: str, module: str, tensor: str) -> str:
    """Return the name under which a part of the state of a whole tensor is saved."""
    return f"{part}/{module}/{tensor}"


@dataclass(frozen=True)
class DataPosition:
    """Which samples the steps of a run take.

    Attributes:
        digest: of the first and the last sample; None if they are not the same each time.
    """

    name: str
    samples: int
    seed: int
    per_step: int
    per_microbatch: int
    digest: str | None = None


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint.

    Attributes:
        layout: mode, ranks, and the parallel sizes of every module.
        update: steps of the learning rate, and the loss scale.
        save: the id of the save, which its files have as well; "" before there were ids.
        digests: name of a file -> digest of its bytes; empty before there were digests.
    """

    directory: Path
    step: int
    layout: Mapping[str, Any]
    shapes: Mapping[str, Shape]
    files: Mapping[str, int]
    data: DataPosition
    update: Mapping[str, Any]
    written: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    save: str = ""
    digests: Mapping[str, str] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Bytes of all files of ranks."""
        return sum(self.files.values())

    @property
    def weights(self) -> dict[str, Shape]:
        """Module and name of every weight -> its shape."""
        prefix = f"{WEIGHTS}/"
        return {
            name.removeprefix(prefix): shape
            for name, shape in self.shapes.items()
            if name.startswith(prefix)
        }

    def to_json(self) -> dict[str, Any]:
        """Return the content of the marker."""
        return {
            "format": FORMAT,
            "step": self.step,
            "written": self.written,
            "layout": dict(self.layout),
            "data": vars(self.data),
            "update": dict(self.update),
            "versions": dict(self.versions),
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "files": dict(self.files),
            "save": self.save,
            "digests": dict(self.digests),
        }


def layout_json(config: ExperimentSections) -> dict[str, Any]:
    """Return a layout as a marker has it."""
    model, strategy = config.model, config.strategy
    of_replicas = {} if strategy is None else {"strategy": strategy.model_dump(mode="json")}
    return {
        **of_replicas,
        "mode": model.deployment_mode,
        "ranks": config.total_world_size,
        "modules": {
            name: sizes.model_dump(mode="json", exclude_defaults=True)
            for name, sizes in model.module_parallelisms.items()
        },
    }


def layout_text(layout: Mapping[str, Any]) -> str:
    """Return a layout as one line: mode, ranks, and the sizes of its modules that are not 1."""
    sizes = [
        f"{name} ({', '.join(f'{key} {size}' for key, size in own.items() if _says(size))})"
        for name, own in layout["modules"].items()
    ]
    strategy = layout.get("strategy")
    with_replicas = f", {strategy['replicas']} replicas with {strategy['name']}" if strategy else ""
    return f"{layout['mode']}, {layout['ranks']} ranks{with_replicas}: {'; '.join(sizes)}"


def _says(size: object) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and size > 1


def steps_in(folder: Path) -> dict[int, Path]:
    """Return step -> folder of the whole checkpoints in a folder, ascending."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return {}
    steps = {name: step_of(name) for name in names}
    return {
        step: folder / name
        for name, step in steps.items()
        if step is not None and (folder / name / MARKER).is_file()
    }


def step_of(name: str) -> int | None:
    """Return the step that the name of a folder says; None if it says none."""
    number = name.removeprefix(_PREFIX)
    named = number != name and number.isascii() and number.isdigit()
    return int(number) if named and len(number) <= _MOST_DIGITS else None


def read_checkpoint(directory: str | os.PathLike[str]) -> Checkpoint:
    """Read the marker of a checkpoint, and check that its files are there.

    Raises:
        ConfigError: there is none, or it is of a newer format.
        DamagedCheckpointError: it is damaged, of another step than its folder, or lacks files.
    """
    path = Path(directory)
    try:
        content = read_json(path / MARKER)
    except OSError as error:
        why = f"{MARKER} cannot be read ({error.strerror or error})"
        raise unusable(path, f"{why}; give the folder of a checkpoint that is whole") from None
    except ValueError:
        raise damaged(path, f"{MARKER} is not JSON") from None
    number = content.get("format") if isinstance(content, dict) else None
    if isinstance(number, int) and number > FORMAT:
        raise unusable(
            path,
            f"it has format {number}, and this version of mimokit reads formats up to {FORMAT}; "
            "read it with the version that wrote it, or a later one",
        )
    checkpoint = _checkpoint(path, content) if number == FORMAT else None
    if checkpoint is None:
        raise damaged(path, f"{MARKER} is not what mimokit writes")
    if not is_as_sealed(content):
        raise damaged(path, f"{MARKER} has another content than was saved")
    if step_of(path.absolute().name) not in (None, checkpoint.step):
        raise damaged(path, f"{MARKER} is of step {checkpoint.step}, which is not its folder's")
    if wrong := [name for name, size in checkpoint.files.items() if _size(path / name) != size]:
        what = f"of {len(checkpoint.files)} files, {some(wrong)} missing or not whole"
        raise damaged(path, what)
    return checkpoint


def _checkpoint(path: Path, content: Mapping[str, Any]) -> Checkpoint | None:
    try:
        data = DataPosition(**content["data"])
        shapes = {str(name): tuple(map(int, shape)) for name, shape in content["shapes"].items()}
        files = {str(name): int(size) for name, size in content["files"].items()}
        digests = {str(name): str(each) for name, each in content.get("digests", {}).items()}
        layout, update = content["layout"], content["update"]
        layout_text(layout)
        steps = [content["step"], data.samples, data.per_step, data.per_microbatch]
        right = all(map(_counts, [*steps, update["learning_rate_steps"]]))
        right = right and data.per_microbatch > 0
        inside = all(map(_is_inside, files))
        if not (right and inside):
            return None
        return Checkpoint(
            path,
            content["step"],
            layout,
            shapes,
            files,
            data,
            update,
            str(content.get("written", "")),
            dict(content.get("versions", {})),
            str(content.get("save", "")),
            digests,
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None


def _is_inside(name: str) -> bool:
    *folders, file = Path(name).parts
    of_replica = not folders or (len(folders) == 1 and folders[0].startswith(_REPLICA))
    return of_replica and "/".join([*folders, file]) == name and name.endswith(_SUFFIX)


def _counts(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1


def some(names: Iterable[str]) -> str:
    """Return names in words, the first ones of many."""
    every = list(names)
    more = len(every) - _MOST_NAMED
    return listed([*every[:_MOST_NAMED], f"{more} more"] if more > 0 else every)


def check_same_model(checkpoint: Checkpoint, wanted: Mapping[str, Shape]) -> None:
    """Reject a checkpoint of another model."""
    saved = checkpoint.weights
    parts = []
    if lacks := sorted(wanted.keys() - saved.keys()):
        parts.append(f"it lacks {some(lacks)}")
    if further := sorted(saved.keys() - wanted.keys()):
        parts.append(f"it has {some(further)} besides")
    both = sorted(wanted.keys() & saved.keys())
    if other := [name for name in both if tuple(saved[name]) != tuple(wanted[name])]:
        shapes = [f"{name} {list(saved[name])} instead of {list(wanted[name])}" for name in other]
        parts.append(f"it has {some(shapes)}")
    if parts:
        why = f"it is of another model: {', '.join(parts)}"
        raise unusable(checkpoint.directory, f"{why}; resume it with the model that it is of")


def check_same_replicas(checkpoint: Checkpoint, config: ExperimentSections) -> None:
    """Reject replicas of another number, layout or strategy than those that were saved."""
    now, then = layout_json(config), checkpoint.layout
    if then == now or not ("strategy" in then or "strategy" in now):
        return
    own, other = now.get("strategy") or {}, then.get("strategy") or {}
    changed = [
        f"strategy.{field} is {own.get(field)}, was {other.get(field)}"
        for field in {**own, **other}
        if own.get(field) != other.get(field)
    ]
    texts = [f"the run is of {layout_text(now)}, it was of {layout_text(then)}"]
    raise unusable(
        checkpoint.directory,
        f"{', '.join(changed if own and other and changed else texts)}; replicas with a strategy "
        "go on with the layout and the strategy that were saved",
    )


def check_same_data(checkpoint: Checkpoint, now: DataPosition) -> None:
    """Reject data of which the next steps would not be those of the saved run."""
    saved = checkpoint.data
    rows = {
        "the data set is": (saved.name, now.name),
        "its samples are": (saved.samples, now.samples),
        "runtime.seed is": (saved.seed, now.seed),
        "the samples of a step are": (saved.per_step, now.per_step),
        "the digest of its samples is": (saved.digest or now.digest, now.digest or saved.digest),
    }
    if saved.samples % saved.per_microbatch or now.samples % now.per_microbatch:
        # The last samples of an epoch, which fill no micro-batch, are left out.
        title = "the samples of a micro-batch are"
        rows[title] = (saved.per_microbatch, now.per_microbatch)
    different = [f"{what} {new}, was {old}" for what, (old, new) in rows.items() if old != new]
    if different:
        why = f"its data have changed ({', '.join(different)})"
        raise unusable(
            checkpoint.directory, f"{why}; resume it with the data that it was saved with"
        )


def unusable(directory: Path, why: str) -> ConfigError:
    """Return the rejection of a checkpoint."""
    return ConfigError([_problem(directory, why)])


def damaged(directory: Path, why: str) -> DamagedCheckpointError:
    """Return the rejection of a checkpoint that is not as it was saved."""
    return DamagedCheckpointError([_problem(directory, f"{why}; go on from an earlier checkpoint")])


def _problem(directory: Path, why: str) -> Problem:
    sentence = f"Checkpoint '{directory}': {why}."
    return Problem("runtime", "resume_from", str(directory), sentence)
