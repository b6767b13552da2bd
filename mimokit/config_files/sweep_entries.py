"""The entries of a `sweep` section: what each of them varies, and the names that result."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mimokit.axes import CONFIG_FIELDS, Axis
from mimokit.config.errors import Problem, refuse_if_any
from mimokit.config.messages import describe
from mimokit.config_files.inheritance import leaves
from mimokit.units import counted, shown

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
    """Return what names write for a key: its last part, and as many more as make it unique."""
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
    """Return one name per experiment; all are numbered where two would be equal or one too long."""
    full = ["-".join([stem, *parts]) for parts in labels]
    uses = Counter(name.casefold() for name in full)
    plain = all(count == 1 for count in uses.values()) and max(map(len, full)) <= LONGEST
    return full if plain else [f"{stem}-{number:04d}" for number in range(1, len(full) + 1)]


MOST_EXPERIMENTS = 1000
"""Of one sweep; each is checked before the first one runs."""

_SECTIONS = ("model", "data", "runtime", "prediction", "strategy")
_LONGEST_PATH = 8


@dataclass(frozen=True)
class Variant:
    """One of the settings that an entry of a sweep lists."""

    label: str
    changes: Mapping[str, Any]


def read_entries(sweep: object) -> tuple[tuple[Variant, ...], ...]:
    """Return the variants of each entry of a `sweep`; `ConfigError` says all that is wrong."""
    if not isinstance(sweep, Mapping) or not sweep:
        right = "write a mapping of keys and lists of their values"
        refuse_if_any([_problem("sweep", f"it is {describe(sweep)}; {right}")])
    assert isinstance(sweep, Mapping)
    refuse_if_any(_shape_problems(sweep))
    lists = [str(key) for key, values in sweep.items() if isinstance(values, list)]
    entries = tuple(_variants(str(key), values, lists) for key, values in sweep.items())
    refuse_if_any(_clashes(dict(zip(map(str, sweep), entries, strict=True))))
    return entries


def _variants(key: str, values: Any, lists: list[str]) -> tuple[Variant, ...]:
    if isinstance(values, list):
        field = field_label(key, lists)
        return tuple(Variant(value_label(field, value), {key: value}) for value in values)
    return tuple(Variant(str(name), dict(changes)) for name, changes in values.items())


def _shape_problems(sweep: Mapping[Any, Any]) -> Iterator[Problem]:
    for key, values in sweep.items():
        if not isinstance(values, list | Mapping):
            right = "write a list of values, or a mapping of names and settings"
            yield _problem(key, f"{key} is {describe(values)}; {right}")
        elif not values:
            yield _problem(key, f"{key} is {describe(values)}; give at least one value")
        elif len(values) > MOST_EXPERIMENTS:
            right = f"give at most {MOST_EXPERIMENTS:,}"
            yield _problem(key, f"{key} has {counted(len(values), 'value')}; {right}")
        elif isinstance(values, list):
            yield from _path_problems(key, f"{key}")
            yield from _repeated(key, values)
        else:
            for name, changes in values.items():
                yield from _setting_problems(f"{key}.{name}", name, changes)


def _setting_problems(place: str, name: object, changes: object) -> Iterator[Problem]:
    if not isinstance(name, str) or value_label("", name) != name:
        right = "name it with letters, digits, dots, underscores and hyphens"
        yield _problem(place, f"{place} names an experiment; {right}")
    if not isinstance(changes, Mapping) or not changes:
        right = "write a mapping of keys and values"
        yield _problem(place, f"{place} is {describe(changes)}; {right}")
        return
    for key in changes:
        yield from _path_problems(key, f"{key} of {place}")


def _path_problems(key: object, place: str) -> Iterator[Problem]:
    keys = key.split(".") if isinstance(key, str) else []
    if not 2 <= len(keys) <= _LONGEST_PATH or keys[0] not in _SECTIONS or not all(keys):
        right = "write one such as data.num_microbatches or model.module_parallelisms.MODULE"
        yield _problem(place, f"{place} is not a path into a config; {right}")


def _repeated(key: object, values: list[Any]) -> Iterator[Problem]:
    for place, value in enumerate(values):
        if any(value == other and type(value) is type(other) for other in values[:place]):
            yield _problem(key, f"{key} has {describe(value)} twice; keep one")


def _clashes(entries: Mapping[str, tuple[Variant, ...]]) -> Iterator[Problem]:
    """Yield the paths that two entries set: the result would depend on their order."""
    owners: dict[tuple[str, ...], str] = {}
    above: dict[tuple[str, ...], str] = {}
    for name, variants in entries.items():
        leaves = sorted({leaf for variant in variants for leaf in _leaves_of(variant)})
        for leaf in leaves:
            starts = [leaf[:length] for length in range(1, len(leaf) + 1)]
            other = next((owners[start] for start in starts if start in owners), above.get(leaf))
            if other is not None:
                what = f"{'.'.join(leaf)} is set by {other} and by {name}; set it in one of them"
                yield _problem(name, what)
        owners |= dict.fromkeys(leaves, name)
        above |= {leaf[:length]: name for leaf in leaves for length in range(1, len(leaf))}


def _leaves_of(variant: Variant) -> Iterator[tuple[str, ...]]:
    for path, value in variant.changes.items():
        for leaf, _ in leaves(tuple(path.split(".")), value):
            yield tuple(map(str, leaf))


def _problem(field: object, what: str) -> Problem:
    return Problem("sweep", str(field), None, f"Section 'sweep': {what}.")
