"""What a view of frame balance is asked, as typed, and the forecast that follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mimokit.config import ConfigError
from mimokit.planning.frames import (
    PLANNERS,
    FrameCost,
    FrameForecast,
    FrameLinks,
    SampleWork,
    forecast_frames,
    order_samples,
)
from mimokit.planning.frames.batch_frames import BatchFrames
from mimokit.prediction.frames import BETWEEN_RANKS, counts_text, dealt, read_counts
from mimokit.units import bits_per_second, counted, seconds_of, shown

MOST_RANKS = 128
MOST_CHARACTERS = 100_000
ORDERED = "order"
WAYS = {**PLANNERS, ORDERED: "samples are ordered before they are read; nothing travels"}
"""Ways to balance frames -> what they do."""
TEXTS = ("counts", "ranks", "frame_time", "fixed_time", "bandwidth", "latency", "planner")
INPUT_BYTES, OUTPUT_BYTES = 2 * 3 * 2 * 14 * 14, 2 * (1280 + 3584 / 4)
"""Per patch, of Qwen2.5-VL in bf16: 3 x 2 x 14 x 14 numbers there; 1,280, and 3,584 for every 4
patches, back."""


@dataclass(frozen=True)
class FrameQuestion:
    """The fields of a view of frame balance.

    Attributes:
        counts: frames of every sample, '64 1 2 8'; with slashes between ranks, '64 1 / 2 8'.
        ranks: number of ranks; counts with slashes say it themselves.
        frame_time: of the encoder for a frame, '2 ms'.
        fixed_time: of the encoder on every rank, whatever frames it has.
        bandwidth: of a rank, '400 Gbit/s'.
        latency: of a collective, '20 us'.
        planner: one of `WAYS`.
        patches: of a frame.
        links: what travels per patch, and whether gradients do; its bandwidth and latency are
            those of the texts.
        names: the ranks of the world that each rank here represents.
        arranged: the counts with the slashes that another number of ranks has moved.
    """

    counts: str
    ranks: str = "4"
    frame_time: str = "2 ms"
    fixed_time: str = "0 ms"
    bandwidth: str = "400 Gbit/s"
    latency: str = "20 us"
    planner: str = "plan_frames"
    patches: int = 256
    links: FrameLinks = field(default=FrameLinks(1.0, 0.0, INPUT_BYTES, OUTPUT_BYTES))
    names: tuple[tuple[int, ...], ...] = ()
    arranged: str = ""

    @classmethod
    def of(cls, batch: BatchFrames, planner: str = "plan_frames") -> FrameQuestion:
        """Return the question that a plan answers for one of its encoders."""
        question = cls(
            counts_text(batch.counts),
            str(len(batch.counts)),
            planner=planner,
            patches=batch.patches,
            names=batch.ranks,
        )
        saving = batch.forecast
        if saving is None or saving.links is None:
            return question
        per_frame = (saving.plan.loads[0] if len(saving.plan.loads) else 0.0) or 0.0
        return replace(
            question,
            frame_time=_duration(float(per_frame)),
            bandwidth=f"{8e-9 * saving.links.bytes_per_second:.6g} Gbit/s",
            latency=_duration(saving.links.latency),
            links=saving.links,
            fixed_time=_duration(saving.base),
        )

    def asked(self, name: str, text: str) -> FrameQuestion:
        """Return the question with another text; a number of ranks moves the slashes."""
        texts: dict[str, Any] = {name: text.strip()[: MOST_CHARACTERS + 1]}
        changed = replace(self, **texts)
        if name == "ranks" and BETWEEN_RANKS in self.counts:
            return changed._dealt_anew()
        if name == "counts":
            changed = replace(changed, arranged="")
            if BETWEEN_RANKS in text:
                changed = replace(changed, ranks=str(text.count(BETWEEN_RANKS) + 1))
            return replace(changed, names=())
        return changed

    def _dealt_anew(self) -> FrameQuestion:
        arranged = self.arranged or self.counts
        try:
            count = _ranks(self.ranks)
            read = read_counts(arranged)
        except (FieldError, ConfigError):
            return self
        counts = arranged
        if count != len(read):
            counts = counts_text(dealt([frames for rank in read for frames in rank], count))
        return replace(self, counts=counts, names=(), arranged=arranged)

    def with_frames_of(self, other: FrameQuestion) -> FrameQuestion:
        """Return the question with the frames and the planner of another, on its own ranks."""
        counts = other.counts.replace(BETWEEN_RANKS, " ")
        return replace(self, counts=counts, planner=other.planner)

    def dragged(self, sample: int, frames: int) -> FrameQuestion:
        """Return the question in which a sample has other frames; unknown samples change nothing.

        Raises:
            ConfigError: the counts cannot be read.
        """
        ranks, place = read_counts(self.counts), sample
        for samples in ranks:
            if 0 <= place < len(samples):
                samples[place] = max(0, frames)
                return replace(self, counts=counts_text(ranks))
            place -= len(samples)
        return self


@dataclass(frozen=True)
class FrameAnswer:
    """What follows from a question.

    Attributes:
        counts: for each rank, the frames of its samples.
        forecast: what sharing them saves.
    """

    question: FrameQuestion
    counts: tuple[tuple[int, ...], ...]
    forecast: FrameForecast

    @property
    def batch(self) -> BatchFrames:
        """The same as a plan has it."""
        names = self.question.names or tuple((rank,) for rank in range(len(self.counts)))
        patches = self.question.patches
        return BatchFrames("", names, self.counts, patches, forecast=self.forecast)


class FieldError(ValueError):
    """A text that cannot be read, in one sentence."""

    def __init__(self, name: str, sentence: str) -> None:
        super().__init__(sentence)
        self.field = name


def answer(question: FrameQuestion) -> FrameAnswer:
    """Return what follows from a question.

    Raises:
        FieldError: a text cannot be read, or there are too many ranks.
    """
    if len(question.names) > MOST_RANKS:
        raise _too_many(len(question.names))
    if len(question.counts) > MOST_CHARACTERS:
        raise FieldError("counts", f"The frames have more than {MOST_CHARACTERS:,} characters.")
    try:
        counts = read_counts(question.counts)
    except ConfigError as error:
        raise FieldError("counts", error.problems[0].sentence) from None
    if len(counts) > MOST_RANKS:
        raise _too_many(len(counts))
    ranks = _ranks(question.ranks)
    if BETWEEN_RANKS not in question.counts:
        counts = dealt(counts[0], ranks)
    per_frame = _read(question, "frame_time", seconds_of)
    if not per_frame:
        raise FieldError("frame_time", "Time per frame: it is 0; write 2 ms.")
    base = _read(question, "fixed_time", seconds_of)
    links = replace(
        question.links,
        bytes_per_second=_read(question, "bandwidth", bits_per_second) / 8,
        latency=_read(question, "latency", seconds_of),
    )
    if question.planner not in WAYS:
        known = ", ".join(WAYS)
        raise FieldError("planner", f"Planner {shown(question.planner, 30)}: it is one of {known}.")

    def forecast(read: Sequence[Sequence[int]], planner: str) -> FrameForecast:
        return forecast_frames(
            [[question.patches] * sum(samples) for samples in read],
            FrameCost(per_patch=0.0, per_frame=per_frame),
            links,
            base=base,
            planner=planner,
        )

    if question.planner != ORDERED:
        saving = forecast(counts, question.planner)
    else:
        saving = replace(
            forecast(_ordered(counts), "none"),
            before=forecast(counts, "none").before,
            traffic_seconds=0.0,
        )
    return FrameAnswer(question, tuple(map(tuple, counts)), saving)


def _ordered(counts: Sequence[Sequence[int]]) -> list[list[int]]:
    if len(set(map(len, counts))) != 1:
        raise FieldError(
            "planner", "Samples are ordered only where every rank reads as many; give each as many."
        )
    samples = [frames for rank in counts for frames in rank]
    order = order_samples([SampleWork.of(samples, len(counts))])
    return dealt([samples[place] for place in order], len(counts))


def _too_many(ranks: int) -> FieldError:
    return FieldError("counts", f"There are {counted(ranks, 'rank')}; the view draws {MOST_RANKS}.")


def as_counts(counts: Any) -> str:
    """Return the text of counts: a text, numbers of samples, or those of each rank.

    Raises:
        TypeError: it is none of them.
    """
    if isinstance(counts, str):
        return counts
    ranks = list(counts)
    if all(isinstance(rank, Sequence) and not isinstance(rank, str) for rank in ranks) and ranks:
        return counts_text(ranks)
    if all(isinstance(rank, int) for rank in ranks):
        return counts_text([ranks])
    raise TypeError(
        f"Frames are {shown(counts)}; give a text such as '64 1 / 2', the frames of all samples, "
        "or a list of them for each rank."
    )


_LABELS = {
    "frame_time": "Time per frame",
    "fixed_time": "Fixed time",
    "bandwidth": "Bandwidth",
    "latency": "Latency",
}


def _read(question: FrameQuestion, name: str, reader: Callable[[str], float]) -> float:
    try:
        return reader(getattr(question, name))
    except ValueError as error:
        raise FieldError(name, f"{_LABELS[name]}, {str(error).rstrip('.')}.") from None


def _ranks(text: str) -> int:
    digits = text.replace(",", "")
    if not digits.isascii() or not digits.isdigit() or not 1 <= int(digits[:9]) <= MOST_RANKS:
        raise FieldError(
            "ranks", f"Ranks, {shown(text, 24)}: write a whole number from 1 to {MOST_RANKS}."
        )
    return int(digits[:9])


def _duration(seconds: float) -> str:
    value, unit = (seconds * 1e3, "ms") if seconds >= 1e-3 or not seconds else (seconds * 1e6, "us")
    return f"{value:.4g} {unit}"
