"""The state of a view of frame balance, without a browser: takes edits, keeps the last forecast."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mimokit.config import ConfigError
from mimokit.prediction.frames import MOST_FRAMES
from mimokit.units import bytes_text, counted, seconds_text, span_text
from mimokit_widgets.view_models.frame_question import (
    TEXTS,
    WAYS,
    FieldError,
    FrameAnswer,
    FrameQuestion,
    answer,
)

MOST_SAMPLES = 256
LABELS = {
    "plan_frames": "balanced",
    "lpt": "LPT",
    "order": "order samples",
    "none": "none",
}
"""Of planners, as on their buttons."""


def frame_fields(question: FrameQuestion) -> dict[str, Any]:
    """Return the texts of the fields, and the planners to choose from."""
    return {
        "fields": {name: getattr(question, name) for name in TEXTS},
        "planners": [[name, LABELS[name], what] for name, what in WAYS.items()],
    }


def frame_loads(answer: FrameAnswer) -> tuple[dict[str, Any], bytes]:
    """Return samples and ranks with their loads, and bytes between ranks.

    Returns:
        What is drawn, and the matrix as 32-bit floats, row by row: a row per reading rank, a
        column per encoding rank.
    """
    forecast = answer.forecast
    longest = max(*forecast.before, *forecast.after, 1e-12)
    mean = sum(forecast.after) / len(forecast.after)
    matrix = _bytes_between(answer)
    encoded = forecast.patches_of_pairs.sum(axis=0) // answer.question.patches
    kept = forecast.patches_of_pairs.diagonal() // answer.question.patches
    rows = [
        {"rank": rank, "frames": frames}
        for rank, samples in enumerate(answer.counts)
        for frames in samples
    ]
    picture = {
        "samples": rows[:MOST_SAMPLES],
        "more": max(0, len(rows) - MOST_SAMPLES),
        "ranks": [
            _rank(answer, rank, longest, int(encoded[rank]), int(kept[rank]))
            for rank in range(len(answer.counts))
        ],
        "mean": mean / longest,
        "mean_text": f"mean {seconds_text(mean)}",
        "ticks": [[share, seconds_text(share * longest)] for share in (0.5, 1.0)],
        "fixed": forecast.base / longest,
        "sentence": str(forecast),
        "good": forecast.worth_it,
        "words": _in_words(answer),
        "traffic": _traffic(answer, matrix),
    }
    return picture, matrix.astype(np.float32).tobytes()


def _rank(answer: FrameAnswer, rank: int, longest: float, frames: int, kept: int) -> dict[str, Any]:
    forecast = answer.forecast
    after = forecast.after[rank] / longest
    fixed = forecast.base / longest
    here = (after - fixed) * (kept / frames if frames else 0.0)
    read = sum(answer.counts[rank])
    received = frames - kept
    return {
        "before": forecast.before[rank] / longest - fixed,
        "kept": here,
        "received": after - fixed - here,
        "title": (
            f"rank {span_text(answer.batch.ranks[rank])}: reads {counted(read, 'frame')}, "
            f"{seconds_text(forecast.before[rank])}; encodes {frames:,}, "
            f"{seconds_text(forecast.after[rank])}"
            + (f", {received:,} of them from other ranks" if received else "")
        ),
        "label": span_text(answer.batch.ranks[rank]),
    }


def _bytes_between(answer: FrameAnswer) -> np.ndarray:
    links = answer.question.links
    between = answer.forecast.patches_between
    passes = 2 if links.trained else 1
    away = between - np.diag(np.diag(between))
    matrix: np.ndarray = away * (links.input_bytes + passes * links.output_bytes)
    return matrix


def _traffic(answer: FrameAnswer, matrix: np.ndarray) -> dict[str, Any]:
    largest = float(matrix.max(initial=0.0))
    ranks = len(answer.counts)
    words = "Traffic: no frame travels."
    if largest:
        sender, receiver = np.unravel_index(int(matrix.argmax()), matrix.shape)
        words = (
            f"Traffic of frames: {bytes_text(round(float(matrix.sum())))} between ranks, most from "
            f"rank {sender} to rank {receiver}, {bytes_text(round(largest))}."
        )
    return {
        "blocks": ranks,
        "noun": "rank",
        "labels": [span_text(names) for names in answer.batch.ranks],
        "kind": "all",
        "by_node": False,
        "can_choose": False,
        "kinds": [],
        "largest": largest,
        "words": words,
        "note": (
            "Bytes of a micro-batch: patches there, embeddings back, and their gradients. A row "
            "reads the frames, a column encodes them."
        ),
        "per": "a micro-batch",
    }


def _in_words(answer: FrameAnswer) -> str:
    forecast = answer.forecast
    return (
        f"Encoder time of {counted(len(answer.counts), 'rank')}: as read at most "
        f"{seconds_text(max(forecast.before))}, with the planner at most "
        f"{seconds_text(max(forecast.after))}."
    )


class FrameSession:
    """What a view of frame balance knows.

    Attributes:
        question: what is asked, also if it cannot be answered.
        found: the answer to the last question that had one; None if none ever had.
        problem: why the question has none, and in which field; None if it has one.
        edited: whether frames of samples were typed or dragged.
    """

    def __init__(self, question: FrameQuestion) -> None:
        self.question = question
        self.found: FrameAnswer | None = None
        self.problem: FieldError | None = None
        self.edited = False
        self.take(question)

    def take(self, question: FrameQuestion) -> None:
        """Ask another question."""
        self.question = question
        try:
            self.found, self.problem = answer(question), None
        except FieldError as error:
            self.problem = error

    def handle(self, message: Mapping[str, Any]) -> None:
        """Do what a message from the browser says; one of an older state changes nothing."""
        name = str(message.get("field"))
        self.edited = self.edited or name in ("counts", "sample")
        if name in TEXTS:
            self.take(self.question.asked(name, str(message.get("text", ""))))
        elif name == "sample" and self.problem is None:
            frames = min(max(0, int(message["frames"])), MOST_FRAMES)
            try:
                self.take(self.question.dragged(int(message["sample"]), frames))
            except ConfigError as error:
                self.problem = FieldError("counts", error.problems[0].sentence)

    def picture(self) -> tuple[dict[str, Any], bytes]:
        """Return what is drawn, and the matrix of traffic: of the last question with an answer."""
        picture: dict[str, Any] = frame_fields(self.question)
        problem = self.problem
        picture["problem"] = problem and {"field": problem.field, "sentence": str(problem)}
        if self.found is None:
            return {**picture, "samples": [], "ranks": []}, b""
        loads, matrix = frame_loads(self.found)
        return {**picture, **loads}, matrix
