"""What happens to checkpoints on disks: bits, halves and files of others; and the format before."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mimokit.planning.checkpoints import MARKER, file_of_rank, folder_of_step

FILES = file_of_rank(0, 0), file_of_rank(1, 0)

Damage = Callable[[Path, Path], object]
"""Of the folders of checkpoints of a run, whose checkpoint of step 4 is damaged, and of another."""


def at(folder: Path, step: int = 4) -> Path:
    """Return the checkpoint of a step."""
    return folder / folder_of_step(step)


def flip(file: Path, place: float) -> None:
    """Flip a bit of a file, at a part of its length."""
    content = bytearray(file.read_bytes())
    content[int(place * len(content))] ^= 4
    file.write_bytes(content)


def zero_half(file: Path) -> None:
    """Write zeros in place of the second half, as a power cut leaves it."""
    content = file.read_bytes()
    half = len(content) // 2
    file.write_bytes(content[:half] + bytes(len(content) - half))


def as_before(checkpoint: Path) -> None:
    """Take digests and ids away, as before there were any."""
    content = _marker(checkpoint)
    for key in ("save", "digests", "digest"):
        content.pop(key)
    for name in content["files"]:
        file = checkpoint / name
        written = file.read_bytes()
        begin = 8 + int.from_bytes(written[:8], "little")
        header = json.loads(written[8:begin])
        del header["__metadata__"]["save"]
        text = json.dumps(header).encode()
        file.write_bytes(len(text).to_bytes(8, "little") + text + written[begin:])
        content["files"][name] = file.stat().st_size
    (checkpoint / MARKER).write_text(json.dumps(content))


def _marker(checkpoint: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((checkpoint / MARKER).read_text())
    return content


def _edit(checkpoint: Path, **changes: object) -> None:
    (checkpoint / MARKER).write_text(json.dumps({**_marker(checkpoint), **changes}))


def _copy(source: Path, target: Path, *names: str) -> None:
    for name in names:
        shutil.copy(source / name, target / name)


DAMAGES: dict[str, tuple[Damage, str]] = {
    "a bit of a weight": (
        lambda run, other: flip(at(run) / FILES[0], 0.7),
        f"of 2 files, {FILES[0]} has other bytes than were saved",
    ),
    "a bit at the end": (
        lambda run, other: flip(at(run) / FILES[1], 0.999999),
        f"of 2 files, {FILES[1]} has other bytes than were saved",
    ),
    "a bit of a header": (
        lambda run, other: flip(at(run) / FILES[1], 0),
        f"of 2 files, {FILES[1]} has other bytes than were saved",
    ),
    "a file of another step": (
        lambda run, other: _copy(at(run, 2), at(run), FILES[1]),
        f"of 2 files, {FILES[1]} is of another save, of step 2",
    ),
    "all files of another step": (
        lambda run, other: _copy(at(run, 2), at(run), *FILES),
        f"{FILES[0]} is of another save, of step 2 and {FILES[1]} is of another save, of step 2",
    ),
    "a file of another run": (
        lambda run, other: _copy(at(other), at(run), FILES[0]),
        f"of 2 files, {FILES[0]} is of another save, of step 4",
    ),
    "the marker of another step": (
        lambda run, other: _copy(at(run, 2), at(run), MARKER),
        f"{MARKER} is of step 2, which is not its folder's",
    ),
    "the marker of another run": (
        lambda run, other: _copy(at(other), at(run), MARKER),
        f"of 2 files, {FILES[0]} is of another save, of step 4",
    ),
    "a marker that says another step": (
        lambda run, other: _edit(at(run), step=3),
        f"{MARKER} has another content than was saved",
    ),
    "a marker with another learning rate": (
        lambda run, other: _edit(at(run), update={"learning_rate_steps": 9, "loss_scale": None}),
        f"{MARKER} has another content than was saved",
    ),
    "half of a file": (
        lambda run, other: zero_half(at(run) / FILES[0]),
        f"of 2 files, {FILES[0]} has other bytes than were saved",
    ),
    "half of both files": (
        lambda run, other: [zero_half(at(run) / name) for name in FILES],
        f"{FILES[0]} has other bytes than were saved and {FILES[1]} has other",
    ),
    "a file of another step, as before there were digests": (
        lambda run, other: (as_before(at(run)), _copy(at(run, 2), at(run), FILES[1])),
        f"{FILES[1]} ",
    ),
}
"""What is damaged -> how, and what is said."""
