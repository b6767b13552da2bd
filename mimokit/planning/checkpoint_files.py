"""Whether the files of a checkpoint are what one save has written, byte for byte; without torch."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from mimokit.config.text_file import open_regular
from mimokit.planning.checkpoints import Checkpoint, damaged, read_checkpoint, some
from mimokit.planning.digests import digest_of_file
from mimokit.units import counted

SAVE = "save"
"""Key of the id of the save in the metadata of a file."""

_NUMBERS = re.compile(r"rank_(\d{1,9})_")
_ID = re.compile(r"[0-9a-f]+-(\d{1,18})")
_LONGEST_HEADER = 10**8
"""Bytes; safetensors reads no longer ones."""


def save_id(token: str, step: int) -> str:
    """Return the id of a save."""
    return f"{token}-{step}"


def files_of_replica(checkpoint: Checkpoint, rank: int, ranks: int) -> list[str]:
    """Return the files in the folder itself that a rank compares; every file has one such rank.

    Under the saved layout it is the rank that wrote the file, which reads most of it.
    """
    own = [name for name in checkpoint.files if "/" not in name]
    return [name for name in own if _rank_of(name) % ranks == rank]


def _rank_of(name: str) -> int:
    number = _NUMBERS.match(name)
    return int(number[1]) if number else 0


def without_digests(checkpoint: Checkpoint) -> str:
    """Return the sentence about a checkpoint that has none; "" if it has some."""
    if checkpoint.digests:
        return ""
    return (
        f"Checkpoint '{checkpoint.directory}' has no digests, as an earlier version of mimokit "
        "wrote it: only the sizes of its files are compared."
    )


def check_all_files(checkpoint: Checkpoint) -> None:
    """Reject files of replicas with other bytes than were saved; reads all of them."""
    for folder in sorted({name.rpartition("/")[0] for name in checkpoint.files} - {""}):
        check_save(read_checkpoint(checkpoint.directory / folder), checkpoint)
    refuse_differences(checkpoint, changed_files(checkpoint, checkpoint.files))


def check_save(replica: Checkpoint, whole: Checkpoint) -> None:
    """Reject a replica of another save than the checkpoint that it is in."""
    if replica.save != whole.save:
        raise damaged(whole.directory, f"{replica.directory.name} {_of_another(replica.save)}")


def refuse_differences(checkpoint: Checkpoint, different: list[str]) -> None:
    """Raise `DamagedCheckpointError` with the differences of files, if there are any."""
    if different:
        raise damaged(
            checkpoint.directory, f"of {counted(len(checkpoint.files), 'file')}, {some(different)}"
        )


def changed_files(checkpoint: Checkpoint, names: Iterable[str]) -> list[str]:
    """Return of each file that is not what was saved its name and why, as part of a sentence."""
    reasons = {name: _difference(checkpoint, name) for name in names}
    return [f"{name} {why}" for name, why in reasons.items() if why]


def _difference(checkpoint: Checkpoint, name: str) -> str:
    path = checkpoint.directory / name
    try:
        save = _save_of(path)
        if save is not None and save != checkpoint.save:
            return _of_another(save)
        if checkpoint.digests and checkpoint.digests.get(name) != digest_of_file(path):
            return "has other bytes than were saved"
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    return ""


def _of_another(save: str) -> str:
    step = _ID.fullmatch(save)
    return f"is of another save, of step {step[1]}" if step else "is of another save"


def _save_of(path: Path) -> str | None:
    """Return the id of the save that a file says, "" if it says none; None: the file is damaged."""
    with open_regular(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(min(length, _LONGEST_HEADER))
    try:
        return str(json.loads(header).get("__metadata__", {}).get(SAVE, ""))
    except (ValueError, AttributeError, RecursionError):
        return None
