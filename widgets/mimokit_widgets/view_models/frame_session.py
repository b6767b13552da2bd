"""The state of a view of frame balance, without a browser: takes edits, keeps the last forecast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mimokit.config import ConfigError
from mimokit.prediction.frames import MOST_FRAMES
from mimokit_widgets.view_models.frame_loads import frame_fields, frame_loads
from mimokit_widgets.view_models.frame_question import (
    TEXTS,
    FieldError,
    FrameAnswer,
    FrameQuestion,
    answer,
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
