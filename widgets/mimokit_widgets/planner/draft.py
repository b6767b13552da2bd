"""The values in the planner's fields: a config that need not be valid, and those before it."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from mimokit.config import ConfigError, ExperimentConfig, PredictionConfig
from mimokit.config_files import config_from_mapping, load_preset
from mimokit.config_files.inheritance import merged, read_layers
from mimokit.config_files.loading import SWEEP
from mimokit_widgets.planner.paths import PREDICTION, WORLD_FIELDS, Path, mapping_at, value_at

RANKS_PER_NODE = 8


START = "llava_7b_colocated"
MOST_KEPT = 500


@dataclass(frozen=True)
class Draft:
    """The mapping of a YAML file, and the planner's two fields that no config has.

    Attributes:
        content: sections model, data and runtime; any value may be wrong.
        world_size: ranks of the world, or None for as many as the modules need.
    """

    content: Mapping[str, Any] = field(default_factory=dict)
    world_size: object = None
    ranks_per_node: object = RANKS_PER_NODE

    @cached_property
    def key(self) -> str:
        """What equal drafts have in common; nothing in a draft is changed once it is made."""
        return repr(self)

    def with_content(self, content: Mapping[str, Any]) -> Draft:
        """Return the draft with other sections."""
        return replace(self, content=content)

    def value_at(self, path: Path) -> Any:
        """Return what stands at a path, None where nothing does."""
        if path and path[0] in WORLD_FIELDS:
            return getattr(self, path[0])
        return value_at(self.content, path)

    def copied(self) -> dict[str, Any]:
        """Return the sections as dicts that may be changed."""
        return copy.deepcopy(dict(self.content))


def same_layout(draft: Draft, other: Draft) -> bool:
    """Return whether two drafts differ in nothing but what predictions suppose."""
    if draft is other:
        return True
    plain = [replace(each, content={**each.content, "prediction": None}) for each in (draft, other)]
    return plain[0] == plain[1]


def content_of(source: ExperimentConfig | Mapping[str, Any] | str | os.PathLike[str]) -> Any:
    """Return the sections of a config, a mapping, the path of a YAML file or `preset:NAME`.

    A config that can be read comes back in its full form; one that cannot, as it stands.

    Raises:
        ConfigError: the file cannot be read as YAML.
        TypeError: it is none of these.
    """
    if isinstance(source, ExperimentConfig):
        return source.to_mapping()
    if isinstance(source, Mapping):
        return canonical(source)
    if isinstance(source, str | os.PathLike):
        layers = read_layers(source)
        return canonical(merged(layers), layers[0].path.stem)
    raise TypeError(
        f"a config is an ExperimentConfig, a mapping or the path of a YAML file, not {source!r}"
    )


def canonical(content: Mapping[str, Any], name: str = "experiment") -> dict[str, Any]:
    """Return the full form of sections that can be read, else a copy of them as they stand.

    A sweep is left out: a draft is one layout.
    """
    sections = {key: value for key, value in content.items() if key != SWEEP}
    try:
        return config_from_mapping(sections, name=name, world_may_be_open=True).to_mapping()
    except ConfigError:
        copied = copy.deepcopy(sections)
        copied.pop("extends", None)
        copied.setdefault("name", name)
        return copied


def supposed_of(draft: Draft) -> PredictionConfig:
    """Return GPU, software and price that a draft supposes; a missing or wrong field is None."""
    section = mapping_at(draft.content, PREDICTION)
    prediction = PredictionConfig()
    for name in ("gpu", "software", "price_per_gpu_hour"):
        with suppress(ConfigError):
            setattr(prediction, name, section.get(name))
    return prediction


def start() -> dict[str, Any]:
    """Return the sections of a sensible start: a vision-language model on eight ranks."""
    return load_preset(START).to_mapping()


class History:
    """The drafts so far and where in them we are.

    Edits of one field that follow each other, as the letters of a word do, are one step; `settle`
    ends the word.
    """

    def __init__(self, draft: Draft) -> None:
        self._drafts: tuple[Draft, ...] = (draft,)
        self._place = 0
        self._open: object = None

    @property
    def draft(self) -> Draft:
        """The draft that is shown."""
        return self._drafts[self._place]

    @property
    def can_undo(self) -> bool:
        """Whether there is an earlier draft."""
        return self._place > 0

    @property
    def can_redo(self) -> bool:
        """Whether there is a later draft."""
        return self._place < len(self._drafts) - 1

    def record(self, draft: Draft, field: object = None) -> bool:
        """Take the next draft; one with the same field as the last replaces it.

        Returns:
            Whether it is a step of its own.
        """
        merged = field is not None and field == self._open and self._place > 0
        before = self._drafts[: self._place + (not merged)]
        self._drafts = (*before, draft)[-MOST_KEPT:]
        self._place = len(self._drafts) - 1
        self._open = field
        return not merged

    def before(self, field: object) -> Draft:
        """Return the draft that an edit of a field changes: that before the word that goes on."""
        goes_on = field is not None and field == self._open and self._place > 0
        return self._drafts[self._place - 1] if goes_on else self.draft

    def settle(self) -> None:
        """Make the next edit a separate step, whichever field it changes."""
        self._open = None

    def undo(self) -> None:
        """Go back one step, if there is one."""
        self._place = max(0, self._place - 1)
        self._open = None

    def redo(self) -> None:
        """Go forward one step, if there is one."""
        self._place = min(len(self._drafts) - 1, self._place + 1)
        self._open = None
