"""What the samples of a micro-batch look like: small pictures that travel along the arrows."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from numpy.typing import NDArray

from mimokit.cluster import ClusterError
from mimokit.experiment import Stepper, StepperError, StepSnapshot
from mimokit.step_kinds import StepKind
from mimokit_widgets.strips import ink_strip, png_address

WORDS, IMAGES = "input_ids", "pixel_values"
"""How the names of tensors end that have token ids, and images of a vision encoder."""
PADDING = "<pad>"
BEYOND = "▦"
"""In place of a token that the vocabulary has no word for, such as the place of an image."""


@dataclass(frozen=True)
class SampleFace:
    """What a sample looks like.

    Attributes:
        address: of a PNG of its images in a row; empty: it has none.
        ratio: width of that picture over its height.
    """

    address: str = ""
    ratio: float = 1.0
    words: str = ""


Faces = Mapping[int, SampleFace]
"""Number of a sample in the micro-batch -> what it looks like."""


@dataclass(frozen=True)
class SampleFaces:
    """Reads each micro-batch once, from the ranks that loaded it.

    Attributes:
        vocabulary: token id -> text; without, samples have no words.
    """

    vocabulary: Sequence[str] = ()
    _known: dict[tuple[int, int], Faces] = field(default_factory=dict)

    def read(self, stepper: Stepper, reach: int = 0) -> None:
        """Ask ranks for the micro-batches of the step that is looked at, as they were loaded.

        What no rank has loaded yet, or keeps no longer, stays unknown.

        Args:
            reach: steps before and behind it whose micro-batches are read, too.
        """
        now = stepper.now
        if now is None or stepper.ended is not None:
            return
        near = stepper.snapshots[max(0, now.number - reach) : now.number + reach + 1]
        for key in {key for snapshot in near for key in _microbatches(snapshot)} - {*self._known}:
            iteration, microbatch = key
            first = iteration * len(stepper.clock)
            done = stepper.snapshots[first : first + len(stepper.clock)]
            loads = [each for each in done if _loads(each, microbatch)]
            with suppress(StepperError, ClusterError):
                faces = self._read(stepper, loads, ("loaded.", f"microbatch.{microbatch}.given."))
                if faces:
                    self._known[key] = faces

    def of(self, snapshot: StepSnapshot) -> dict[int, Faces]:
        """Return the micro-batches of a step as far as they were read; asks no rank."""
        return {key[1]: self._known.get(key, {}) for key in sorted(_microbatches(snapshot))}

    def words(self, ids: NDArray[Any]) -> list[str]:
        """Return rows of token ids in words; no row without a vocabulary."""
        return [self._in_words(row) for row in ids.tolist()] if self.vocabulary else []

    def _in_words(self, ids: Sequence[int]) -> str:
        known = range(len(self.vocabulary))
        words = [self.vocabulary[int(id_)] if id_ in known else BEYOND for id_ in ids]
        return " ".join(word for word in words if word != PADDING)

    def _read(
        self, stepper: Stepper, loads: Sequence[StepSnapshot], prefixes: tuple[str, ...]
    ) -> Faces:
        faces: dict[int, SampleFace] = {}
        for at, rank, name, first in _needed(stepper, loads, prefixes, IMAGES):
            picture = at.picture(rank, name)
            shown = picture.thumbnails
            if shown is None:
                continue
            bounds = (*picture.bounds, picture.rows)
            for place, (begin, end) in enumerate(pairwise(bounds)):
                if begin < end <= len(shown):
                    strip = ink_strip(shown[begin:end])
                    ratio = strip.shape[1] / strip.shape[0]
                    faces[first + place] = SampleFace(png_address(strip), ratio)
        for at, rank, name, first in _needed(stepper, loads, prefixes, WORDS):
            for place, words in enumerate(self.words(at.inspect(rank, name))):
                face = faces.get(first + place, SampleFace())
                said = words.replace(BEYOND, "").strip()
                faces[first + place] = SampleFace(face.address, face.ratio, said)
        return faces


def _microbatches(snapshot: StepSnapshot) -> set[tuple[int, int]]:
    steps = snapshot.tick.steps.values()
    return {(snapshot.iteration, n) for n in (step.microbatch for step in steps) if n is not None}


def _loads(snapshot: StepSnapshot, microbatch: int) -> bool:
    steps = snapshot.tick.steps.values()
    return any(step.name == StepKind.LOAD and step.microbatch == microbatch for step in steps)


def _needed(
    stepper: Stepper, loads: Sequence[StepSnapshot], prefixes: tuple[str, ...], ending: str
) -> Iterator[tuple[Stepper, int, str, int]]:
    """Yield (the stepper then, a rank, a tensor, its first sample): each sample once."""
    covered: set[int] = set()
    for snapshot in loads:
        for rank in snapshot.tick.steps:
            span = stepper.plan.batch.read_by(rank)
            if span is None or covered.issuperset(range(*span)):
                continue
            for name in snapshot.records[rank].tensors:
                if name.startswith(prefixes) and name.endswith(ending):
                    covered.update(range(*span))
                    yield stepper.as_of(snapshot.number), rank, name, span[0]
                    break
