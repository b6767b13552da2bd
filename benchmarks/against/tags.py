"""A tag of this repository: whether it can be measured here, and its tree in a temporary folder."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from mimokit.units import listed
from mimokit.versions import version_of


class RefusedTag(ValueError):  # noqa: N818
    """A tag cannot be measured; the message is one sentence."""


def check_packages(root: Path, tag: str) -> None:
    """Raise `RefusedTag` unless the tag exists and what it pins is what is installed."""
    if tag not in tags(root):
        known = listed(tags(root)) or "none, as this repository has no tags"
        raise RefusedTag(f"Tag '{tag}': it does not exist; choose one of {known}.")
    python = f"py{sys.version_info.major}{sys.version_info.minor}.txt"
    pinned = _pins(root, tag, python)
    installed = {name: (version_of(name) or "").partition("+")[0] for name in pinned}
    needed = _needed(root, tag)
    other = [
        f"{name} {wanted}"
        for name, wanted in pinned.items()
        if installed[name] != wanted and (installed[name] or name in needed)
    ]
    if other:
        raise RefusedTag(
            f"Tag '{tag}': it needs {listed(other)}, which this environment does not have; "
            f"install constraints/{python} of the tag, and measure there."
        )


def tags(root: Path) -> tuple[str, ...]:
    """Return the tags of a repository."""
    return tuple(_git(root, "tag", "--list").split())


def _pins(root: Path, tag: str, file: str) -> Mapping[str, str]:
    pins: dict[str, str] = {}
    for line in _shown(root, tag, f"constraints/{file}").splitlines():
        pin = line.partition("#")[0].strip()
        if pin.startswith("--constraint"):
            pins |= _pins(root, tag, pin.split()[1])
        elif pin:
            name, _, wanted = pin.partition("==")
            pins[canonicalize_name(name)] = wanted
    return pins


def _needed(root: Path, tag: str) -> set[str]:
    project = tomllib.loads(_shown(root, tag, "pyproject.toml"))["project"]
    extras = project.get("optional-dependencies", {})
    lines = [*project["dependencies"], *extras.get("run", ()), *extras.get("lab", ())]
    return {canonicalize_name(Requirement(line).name) for line in lines}


def _shown(root: Path, tag: str, file: str) -> str:
    try:
        return _git(root, "show", f"{tag}:{file}")
    except subprocess.CalledProcessError:
        raise RefusedTag(
            f"Tag '{tag}': it has no {file}; choose one that supports this Python."
        ) from None


@contextmanager
def checked_out(root: Path, tag: str) -> Iterator[Path]:
    """Yield the tree of a tag, in a temporary folder that is removed, also by SIGTERM."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        with tempfile.TemporaryDirectory(prefix="mimokit-") as folder:
            # The repository would keep a worktree in mind.
            command = ["git", "-C", str(root), "archive", tag]
            files = subprocess.run(command, check=True, capture_output=True).stdout
            with tarfile.open(fileobj=io.BytesIO(files)) as archive:
                archive.extractall(folder, filter="data")
            yield Path(folder)
    finally:
        signal.signal(signal.SIGTERM, before)


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
