"""`LiveMonitor`: a run's loss, speed, memory and time per phase, moving while it trains."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from html import escape
from typing import TYPE_CHECKING, Any, Protocol

import traitlets

from mimokit.charts._palette import ACCENT, LINE, module_colors
from mimokit.samples import Sample, module_column
from mimokit.units import counted
from mimokit_widgets._widget import EndOfCell, PersistentWidget
from mimokit_widgets.live.header import colored_phases, layout_in_words, predicted_for
from mimokit_widgets.live.rows import RowHeader, RowQueue, phase_columns

if TYPE_CHECKING:
    from mimokit.prediction.task import HardwareSource

SECONDS_FOR_COMPANY = 0.05
"""How long a row waits for others to travel with.

Ranks end a step together and send at once, but on fewer cores than ranks they do so one after
another. Every message is a new picture, for which the browser takes the time from them.
"""
SECONDS_BETWEEN_LOOKS = 0.25
SECONDS_TO_DRAIN = 2.0
SECONDS_FOR_THE_RESULT = 30.0
SECONDS_TO_REMEMBER = (2.0, 10.0, 30.0)
SECONDS_BETWEEN_MEMORIES = 60.0
"""JupyterLab saves a notebook every 120 s."""
FIRST_SNAPSHOT = 64
STYLES = ("shared.css", "live_monitor.css")


class Run(Protocol):
    """What a live monitor needs of a run; `mimokit.experiment.TrainingRun` has it."""

    config: Any
    plan: Any

    @property
    def done(self) -> bool:
        """Whether the run has ended, well or badly."""

    def on_sample(self, callback: Callable[[Sample], None]) -> None:
        """Call back for every sample, earlier ones included, from a separate thread."""

    def drain(self, timeout: float | None = None) -> None:
        """Wait until those who are called back have every sample."""

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the end; raise what ended the run."""

    def stop(self) -> None:
        """Ask all ranks to end after the iteration they are in."""

    def abort(self) -> None:
        """End the run at once."""


class LiveMonitor(PersistentWidget, entry="live_monitor.js", styles=STYLES):
    """A view of a run that moves while it trains, and stays in the notebook when it is over.

    New samples reach the browser as they come and only once. The history is part of the widget's
    state, so that a view opened late, or a page loaded again, has it; it is also sent whenever it
    has doubled, which heals a view that missed a message. Of a run of more than 20,000 samples it
    has every 2nd, 4th, 8th ... iteration.

    Below the widget lies the same view as a page that needs no kernel. It is hidden while the
    widget is there, follows it at a distance, and is what a saved notebook shows, in the middle of
    a run or after its end.

    The buttons work as long as the kernel is free, or has subshells as under JupyterLab: start the
    run with `train`, which returns at once.

    Attributes:
        status: training, stopping, finished, stopped, aborted or failed.
        sentence: how the run ended, empty while it goes on.
        health: what is wrong with what ranks hold, empty if nothing is.
        restarts: of each attempt that ended early, the step that failed, the step that the next one
            went on from, and the cause.
        total_iterations: how many iterations the run is to have.
        marks: iterations that are marked in all charts, sorted.
    """

    status = traitlets.Unicode("training").tag(sync=True)
    sentence = traitlets.Unicode("").tag(sync=True)
    health = traitlets.Unicode("").tag(sync=True)
    restarts = traitlets.List(traitlets.Dict()).tag(sync=True)
    total_iterations = traitlets.Int(0).tag(sync=True)
    warmup_iterations = traitlets.Int(0).tag(sync=True)
    marks = traitlets.List(traitlets.Int(min=0)).tag(sync=True)
    _zoomed = traitlets.List(traitlets.Int(min=0)).tag(sync=True)
    _layout_in_words = traitlets.Unicode("").tag(sync=True)
    _header = traitlets.Dict().tag(sync=True)
    _phases = traitlets.List().tag(sync=True)
    _modules = traitlets.List().tag(sync=True)
    _colors = traitlets.Dict().tag(sync=True)
    _planned = traitlets.Dict(None, allow_none=True).tag(sync=True)
    _history = traitlets.Any(None, allow_none=True).tag(
        sync=True, to_json=lambda _, widget: widget._rows.history()
    )

    def __init__(self, run: Run, *, hardware: HardwareSource | None = None, **options: Any) -> None:
        """Watch a run.

        Args:
            hardware: to predict the step for, which is drawn as a line: the file that
                `mimokit.calibrate` wrote on this machine, or a GPU. None takes `runtime.hardware`,
                and draws none without it.
        """
        modules = list(run.plan.modules)
        hues = module_colors(modules)
        self._rows = RowQueue(RowHeader.of(modules))
        self._run: Any = run
        self._ending = threading.Lock()
        self._sending = threading.RLock()  # rows leave in order, and nothing follows the end
        self._snapshot_at = FIRST_SNAPSHOT
        super().__init__(
            total_iterations=int(run.config.runtime.num_iterations),
            warmup_iterations=int(run.config.runtime.warmup_iterations),
            _layout_in_words=layout_in_words(run.plan),
            _header=self._rows.header.to_json(),
            _phases=colored_phases(phase_columns(modules), hues),
            _modules=[
                {"name": name, "color": hues[name], "rate": module_column(name, "tokens_per_sec")}
                for name in modules
            ],
            _colors={"line": LINE, "accent": ACCENT},
            _planned=predicted_for(run.config, hardware),
            **options,
        )
        self.observe(self._saved.follow, ["marks", "_zoomed"])
        run.on_sample(self._rows.add)
        self._end_of_cell = EndOfCell(self._end_if_done)
        threading.Thread(target=self._follow, name="LiveMonitor", daemon=True).start()

    def mark(self, iteration: int) -> None:
        """Mark an iteration in all charts, as a click on one does.

        Raises:
            ValueError: if it is not one of the run's iterations.
        """
        if not 0 <= iteration < self.total_iterations:
            raise ValueError(
                f"iteration {iteration} is none of this run's, which are 0 to "
                f"{self.total_iterations - 1}"
            )
        self.marks = sorted({*self.marks, iteration})

    def wait(self) -> None:
        """Wait for the end of the run and for its picture."""
        while self._run is not _OVER:
            time.sleep(SECONDS_FOR_COMPANY)
            self._end_if_done()

    # From the run to the browser.

    def _follow(self) -> None:
        started = time.monotonic()
        times = list(SECONDS_TO_REMEMBER)
        while not self._run.done:
            if self._rows.wait(SECONDS_BETWEEN_LOOKS):
                time.sleep(SECONDS_FOR_COMPANY)
            remember = time.monotonic() - started > times[0]
            if remember:
                due = times.pop(0)
                times = times or [due + SECONDS_BETWEEN_MEMORIES]
            self._look(remember)
        self._end()

    def _look(self, remember: bool) -> None:
        with self._sending:
            if self._run is _OVER:  # another thread has ended it meanwhile
                return
            self._send_new_rows()
            self.restarts = _restarts_of(self._run)
            if remember:
                self._saved.draw_now()

    def _send_new_rows(self) -> None:
        with self._sending:
            start, rows = self._rows.take()
            if rows:
                self.send({"type": "append", "start": start, "rows": rows})
                self.health = _wrong(self._run)
            if self._rows.count >= self._snapshot_at:
                self._snapshot_at = 2 * self._rows.count
                self.send_state("_history")

    def _in_words(self) -> str:
        if self.sentence:
            return f"Training {self.status}. {self.sentence}"
        done = 1 + self._rows.last
        return f"Training: {done} of {self.total_iterations} iterations when this was saved."

    def _still(self) -> str:
        return f"<p>{escape(self._in_words())}</p>"

    def _on_message(self, _: Any, content: Mapping[str, Any], __: Any) -> None:
        asked = content.get("type")
        if asked == "resync":
            with self._sending:
                self.send_state("_history")
        elif asked in ("stop", "abort") and not self._run.done:
            self.status = "stopping"
            (self._run.stop if asked == "stop" else self._run.abort)()

    # The end.

    def _end_if_done(self) -> None:
        if self._run.done:
            self._end()

    def _end(self) -> None:
        with self._ending:
            if self._run is _OVER:
                return
            failure = self._failure()
            self._drain()
            with self._sending:
                self.health = _wrong(self._run)
                self.restarts = _restarts_of(self._run)
                self.status, self.sentence = self._outcome(failure)
                self._saved.draw_now()
                self._end_of_cell.forget()
                self._run = _OVER  # Jupyter keeps widgets, which need not keep what ranks have sent

    def _failure(self) -> BaseException | None:
        try:
            self._run.result(SECONDS_FOR_THE_RESULT)
        except BaseException as error:
            return error
        return None

    def _drain(self) -> None:
        self._run.drain(SECONDS_TO_DRAIN)
        self._send_new_rows()

    def _outcome(self, failure: BaseException | None) -> tuple[str, str]:
        from mimokit.cluster.errors import RunAborted  # the run has imported it, a widget need not

        done, seconds = 1 + self._rows.last, self._rows.seconds
        progress = f"{done} of {self.total_iterations} iterations in {seconds:.0f} s."
        if isinstance(failure, RunAborted):
            return "aborted", progress
        if failure is not None:
            return "failed", f"After {counted(done, 'iteration')}: {_first_sentence(failure)}"
        if done < self.total_iterations:
            return "stopped", progress
        return "finished", f"{counted(done, 'iteration')} in {seconds:.0f} s."


class _Over:
    """In place of a run that has ended and is drawn."""

    done = True


_OVER: Any = _Over()


def _wrong(run: Any) -> str:
    return " ".join(run.health().wrong) if hasattr(run, "health") else ""


def _restarts_of(run: Any) -> list[dict[str, Any]]:
    return [
        {"step": restart.step, "resumed": restart.resumed, "cause": restart.cause}
        for restart in getattr(run, "restarts", ())
    ]


def _first_sentence(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
