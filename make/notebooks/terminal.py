"""What a person at a terminal sees while a notebook is executed."""

import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from mimokit_widgets.live.rows import EVALUATION, STEP

SECONDS_BETWEEN_LINES = 5.0
INDENT = "        "


class Terminal:
    """Prints headings, text and one moving line of progress.

    Where the output is no terminal (a log file) the moving line becomes a separate line every
    five seconds.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._moves = self._stream.isatty()
        self._started = time.monotonic()
        self._last_progress = 0.0
        self._unsaid = ""
        self._on_moving_line = False
        self._at_line_start = True

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    def heading(self, text: str) -> None:
        """Print what begins now, with the seconds since the start."""
        self._say_last_progress()
        self._fresh_line()
        self._print(f"{self.seconds:5.0f} s  {text}\n")

    def text(self, text: str) -> None:
        """Print text of a cell as it comes, indented."""
        if self._on_moving_line:
            self._fresh_line()
        for line in text.splitlines(keepends=True):
            shown = line.rstrip("\r\n")
            if self._at_line_start and shown:
                self._print(INDENT)
            self._print(shown)
            self._at_line_start = line.endswith(("\n", "\r"))
            if self._at_line_start:
                self._print("\n")

    def progress(self, text: str) -> None:
        """Show how far something is, in place of what was shown before."""
        if self._moves:
            width = shutil.get_terminal_size().columns - 1
            if not self._on_moving_line:
                self._fresh_line()
            self._print(f"\r\033[K{(INDENT + text)[:width]}")
            self._on_moving_line = True
            return
        self._unsaid = text
        if time.monotonic() - self._last_progress > SECONDS_BETWEEN_LINES:
            self._say_last_progress()

    def _say_last_progress(self) -> None:
        if self._unsaid:
            self._last_progress = time.monotonic()
            unsaid, self._unsaid = self._unsaid, ""
            self.text(f"{unsaid}\n")

    def _fresh_line(self) -> None:
        if self._on_moving_line or not self._at_line_start:
            self._print("\n")
        self._on_moving_line = False
        self._at_line_start = True

    def _print(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class TrainingProgress:
    """Follows the messages of a live monitor and says in a line how far the training is."""

    def __init__(self) -> None:
        self._total = 0
        self._monitors: set[str] = set()
        self._header: Mapping[str, Sequence[str]] = {}
        self._first: tuple[int, float] | None = None
        self._parts: dict[str, str] = {}

    def opened(self, content: Mapping[str, Any]) -> None:
        """Note a widget that was opened, if it is a live monitor."""
        state = content.get("data", {}).get("state", {})
        if state.get("_anywidget_id") == "mimokit_widgets.live_monitor.LiveMonitor":
            self._monitors.add(content["comm_id"])
            self._total = int(state["total_iterations"])
            self._header = state["_header"]
            self._first, self._parts = None, {}

    def line(self, content: Mapping[str, Any]) -> str | None:
        """Return a line for a message of a live monitor, None for any other."""
        message = content.get("data", {}).get("content", {})
        if content.get("comm_id") not in self._monitors or message.get("type") != "append":
            return None
        for row in message["rows"]:
            self._read(row)
        return " · ".join(self._parts.values())

    def _read(self, row: Sequence[Any]) -> None:
        if row[0] == STEP:
            step = dict(zip(self._header["step"], row[1:], strict=True))
            self._parts["done"] = f"iteration {step['iteration'] + 1} of {self._total}"
            if step["loss"] is not None:
                self._parts["loss"] = f"loss {step['loss']:.3f}"
            self._read_pace(int(step["iteration"]), float(step["time"]))
        elif row[0] == EVALUATION:
            test = dict(zip(self._header["evaluation"], row[1:], strict=True))
            self._parts["right"] = f"right {test['exact_match']:.0%}"

    def _read_pace(self, iteration: int, now: float) -> None:
        if self._first is None:
            self._first = (iteration, now)
        done = iteration - self._first[0]
        if done:
            left = (now - self._first[1]) / done * (self._total - 1 - iteration)
            self._parts["left"] = f"about {left:.0f} s left"
