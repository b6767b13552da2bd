"""Names of the experiments of a sweep: from what differs, unique, and safe as names of folders."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from mimokit.axes import CONFIG_FIELDS, Axis
from mimokit.units import shown

LONGEST = 100
"""Characters of a name; file systems allow 255 bytes, and results add theirs."""
_LONGEST_STEM = 60

_LABELS = {
    field: axis.label.lower() for axis, field in CONFIG_FIELDS.items() if isinstance(axis, Axis)
}
"""Field of a module's parallel sizes -> its label: tensor_parallel -> tp."""


def file_name(text: str) -> str:
    """Return a text as a name that a folder may have everywhere: no separator, no leading dot."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", text).lstrip(".")
    return plain.rstrip(".")[:_LONGEST_STEM] or "experiment"


def field_label(path: str, others: Sequence[str]) -> str:
    """Return what names write for a key: its last part, and as many more as make it unique.

    Args:
        path: of the key, with dots.
        others: the paths of all keys that the sweep varies.
    """
    keys = path.split(".")
    for length in range(1, len(keys) + 1):
        tail = keys[-length:]
        if sum(other.split(".")[-length:] == tail for other in others) <= 1:
            break
    return "_".join([*tail[:-1], _LABELS.get(tail[-1], tail[-1])])


def value_label(field: str, value: object) -> str:
    """Return what names write for one value of a key: tp4, num_microbatches_2."""
    if isinstance(value, Mapping):
        words = "_".join(value_label(_LABELS.get(str(k), str(k)), v) for k, v in value.items())
    elif isinstance(value, list | tuple):
        words = "_".join(value_label("", each) for each in value)
    elif value is None or isinstance(value, bool):
        words = {None: "none", True: "true", False: "false"}[value]
    else:
        words = value if isinstance(value, str) else shown(value)
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", words)
    if not field or isinstance(value, Mapping):
        return f"{field}_{plain}" if field else plain
    label = field.rpartition("_")[2]
    joined = label in _LABELS.values() and isinstance(value, int)
    return f"{field}{plain}" if joined else f"{field}_{plain}"


def unique_names(stem: str, labels: Sequence[Sequence[str]]) -> list[str]:
    """Return one name per experiment; all are numbered where two would be equal or one too long.

    Args:
        stem: what all names begin with.
        labels: of each experiment, one per entry of the sweep.
    """
    full = ["-".join([stem, *parts]) for parts in labels]
    uses = Counter(name.casefold() for name in full)
    plain = all(count == 1 for count in uses.values()) and max(map(len, full)) <= LONGEST
    return full if plain else [f"{stem}-{number:04d}" for number in range(1, len(full) + 1)]
