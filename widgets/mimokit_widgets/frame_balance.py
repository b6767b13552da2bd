"""`FrameBalance`: frames of samples to type and drag, and the loads of ranks that follow."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any

import traitlets

from mimokit.planning.frames import FrameForecast, FramePlan
from mimokit.planning.report import PlannedLayout
from mimokit.planning.report.frames import frame_section
from mimokit.tables import html_sections
from mimokit_widgets._widget import Answers, ByIdentity, PersistentWidget, asked
from mimokit_widgets.view_models.frame_question import (
    TEXTS,
    FrameQuestion,
    as_counts,
)
from mimokit_widgets.view_models.frame_session import FrameSession

Counts = str | Sequence[int] | Sequence[Sequence[int]]


def _whole(picture: dict[str, Any], numbers: bytes) -> dict[str, Any]:
    return {**picture, "numbers": numbers}


class FrameBalance(
    PersistentWidget, entry="frame_balance.js", styles=("shared.css", "frame_balance.css")
):
    """How evenly the frames of a batch lie on ranks, and what it saves to share them.

        view = FrameBalance("64 64 48 32 8 4 2 1", ranks=4)
        view.forecast.saving               # seconds
        view.ask(bandwidth="1 Gbit/s")     # from code to the view
        FrameBalance(mimokit.plan(config)) # the frames of a config

    What cannot be read leaves everything at the last forecast, and `problem` says why.

    Attributes:
        forecast: what follows from the fields.
        problem: why the fields have none, as a sentence; empty if they have one.
    """

    forecast = ByIdentity(None, read_only=True)
    problem = traitlets.Unicode("", read_only=True)
    _picture = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        frames: Counts | PlannedLayout = "64 64 48 32 8 4 2 1",
        *,
        encoder: str | None = None,
        view_options: Mapping[str, Any] | None = None,
        **asked: Any,
    ) -> None:
        """Show frames.

        Args:
            frames: of every sample, as numbers or as text; with slashes (or a list for each rank)
                who reads them: '64 1 / 2 8'. Or a plan of a config with frames.
            encoder: of a plan with several.
            asked: `ranks`, `frame_time` ('2 ms'), `bandwidth` ('400 Gbit/s'), `latency`
                ('20 us') and `planner` (plan_frames, lpt, order or none), and `patches` of a frame.

        Raises:
            TypeError: a field does not exist, or frames have another type.
            ValueError: the plan has no frames, or a field cannot be read.
        """
        question = _question(frames, encoder)
        if "patches" in asked:
            question = replace(question, patches=_patches(asked.pop("patches")))
        self._session = FrameSession(_changed(question, asked))
        if self._session.found is None:
            raise ValueError(str(self._session.problem))
        super().__init__(**(view_options or {}))

    def open(self) -> None:
        """Connect to the browser, after the first picture is drawn."""
        self._draw()
        super().open()

    def ask(self, **fields: Any) -> None:
        """Change fields: counts, ranks, frame_time, bandwidth, latency, planner.

        Raises:
            TypeError: a field does not exist.
        """
        self._session.take(_changed(self._session.question, fields))
        self._draw()

    @property
    def plan(self) -> FramePlan:
        """Which rank encodes which frame."""
        forecast: FrameForecast = self.forecast
        return forecast.plan

    def _draw(self) -> None:
        session = self._session
        self._picture = _whole(*session.picture())
        with self.hold_trait_notifications():
            self.set_trait("problem", "" if session.problem is None else str(session.problem))
            self.set_trait("forecast", session.found and session.found.forecast)
        self._saved.follow()

    def _on_message(self, _: Any, content: Mapping[str, Any], __: Any) -> None:
        if content.get("type") == "frames":
            self._session.handle(content)
            self._draw()

    def _still(self) -> str:
        answer = self._session.found
        assert answer is not None, "the first question has an answer"
        said = f"<div>{escape(self.problem)}</div>" if self.problem else ""
        return said + html_sections([frame_section(answer.batch)])

    def _answers(self) -> Answers:
        answers = {}
        for name, *_ in self._picture["planners"]:
            session = FrameSession(self._session.question.asked("planner", name))
            if session.problem is None:
                message = asked(type="frames", field="planner", text=name)
                answers[message] = {"_picture": _whole(*session.picture())}
        return answers


def _question(frames: Counts | PlannedLayout, encoder: str | None) -> FrameQuestion:
    if not isinstance(frames, PlannedLayout):
        return FrameQuestion("").asked("counts", as_counts(frames))
    known = {batch.encoder: batch for batch in frames.estimates.frames}
    if not known:
        raise ValueError(
            "The plan has no frames; plan a config with data.modality_frames or "
            "runtime.patch_type by mimokit.plan."
        )
    name = encoder or next(iter(known))
    if name not in known:
        raise ValueError(f"The plan has no frames of {name!r}; it has those of {', '.join(known)}.")
    return FrameQuestion.of(known[name])


def _changed(question: FrameQuestion, fields: Mapping[str, Any]) -> FrameQuestion:
    for name, value in fields.items():
        if name not in TEXTS:
            raise TypeError(f"FrameBalance has no field {name!r}; it has {', '.join(TEXTS)}.")
        question = question.asked(name, as_counts(value) if name == "counts" else str(value))
    return question


def _patches(value: Any) -> int:
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"patches is {value!r}; a frame has a whole number of at least 1.")
    return value
