"""Disks that are full or cannot be written, for tests."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import run_to_end


@contextlib.contextmanager
def mounted(place: Path, *command: str) -> Iterator[None]:
    """Mount something, or skip where a test may not."""
    place.mkdir()
    done = run_to_end(["mount", *command, str(place)])
    if done.returncode:
        pytest.skip(f"mount {' '.join(command)} is not allowed here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@contextlib.contextmanager
def read_only(mount: Path) -> Iterator[None]:
    """Let nothing be written through a bind mount."""
    remount = ["mount", "-o", "remount,ro,bind", str(mount)]
    subprocess.run(remount, check=True)
    try:
        yield
    finally:
        subprocess.run([*remount[:2], "remount,rw,bind", str(mount)], check=True)


def small_disk(place: Path, kilobytes: int) -> contextlib.AbstractContextManager[None]:
    """Mount a file system in memory."""
    return mounted(place, "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs")


def fill(folder: Path) -> Path:
    """Fill the file system of a folder to its last byte; return what fills it."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"0" * 1024)
    return filler
