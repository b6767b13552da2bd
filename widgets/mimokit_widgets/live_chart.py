"""`LiveChart`: a run's loss, speed and time per phase, moving while it trains."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import anywidget
import traitlets
from IPython.core.getipython import get_ipython
from IPython.display import DisplayHandle, display

from mimokit.charts.palette import ACCENT, LINE, PHASE_COLORS, forward_color, module_colors
from mimokit_widgets.final_picture import final_picture
from mimokit_widgets.live_rows import RowQueue, phase_names

SECONDS_BETWEEN_BATCHES = 0.12
SECONDS_TO_DRAIN = 2.0
SECONDS_FOR_THE_RESULT = 30.0
FIRST_SNAPSHOT = 64


class Run(Protocol):
    """What a live chart needs of a run; `mimokit.experiment.TrainingRun` has it."""

    config: Any
    plan: Any

    @property
    def samples(self) -> Sequence[Mapping[str, Any]]:
        """What the ranks have sent so far."""

    @property
    def done(self) -> bool:
        """Whether the run has ended, well or badly."""

    def on_sample(self, callback: Callable[[dict[str, Any]], None]) -> None:
        """Call back for every sample, earlier ones included, from a thread of its own."""

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the end; raise what ended the run."""

    def stop(self) -> None:
        """Ask all ranks to end after the iteration they are in."""


class LiveChart(anywidget.AnyWidget):  # type: ignore[misc]
    """A view of a run that moves while it trains; when it is over, a picture takes its place.

    New samples reach the browser about eight times a second and only once. The whole history is
    part of the widget's state, so that a view opened late, or a page loaded again, has it all; it
    is also sent whenever it has doubled, which heals a view that missed a message.

    The Stop button works as long as the kernel is free, or has subshells as under JupyterLab:
    start the run with `train`, which returns at once.

    Attributes:
        status: training, stopping, finished, stopped or failed.
        sentence: how the run ended, empty while it goes on.
        total_iterations: how many iterations the run is to have.
    """

    _esm = Path(__file__).parent / "live_chart.js"

    status = traitlets.Unicode("training").tag(sync=True)
    sentence = traitlets.Unicode("").tag(sync=True)
    total_iterations = traitlets.Int(0).tag(sync=True)
    warmup_iterations = traitlets.Int(0).tag(sync=True)
    _layout_in_words = traitlets.Unicode("").tag(sync=True)
    _phases = traitlets.List().tag(sync=True)
    _colors = traitlets.Dict().tag(sync=True)
    _history = traitlets.Any(None, allow_none=True).tag(
        sync=True, to_json=lambda _, widget: widget._rows.everything()
    )

    def __init__(self, run: Run, **options: Any) -> None:
        modules = list(run.plan.modules)
        names = phase_names(modules)
        self._rows = RowQueue(list(names.values()))
        self._run = run
        self._handles: list[DisplayHandle] = []
        self._picture: dict[str, Any] | None = None
        self._ending = threading.Lock()
        self._snapshot_at = FIRST_SNAPSHOT
        super().__init__(
            total_iterations=int(run.config.runtime.num_iterations),
            warmup_iterations=int(run.config.runtime.warmup_iterations),
            _layout_in_words=_layout_in_words(run.plan),
            _phases=_colored(names, modules),
            _colors={"line": LINE, "accent": ACCENT},
            **options,
        )
        self.on_msg(self._on_message)
        run.on_sample(self._rows.add)
        self._end_of_cell = _EndOfCell(self._end_if_done)
        threading.Thread(target=self._follow, name="LiveChart", daemon=True).start()

    def open(self) -> None:
        """Connect to the browser."""
        super().open()
        _let_the_browser_choose_the_shell(self.comm)

    def _ipython_display_(self) -> None:
        """Show the widget so that a picture can take its place later."""
        if self._picture is not None:
            display(self._picture, raw=True)
            return
        bundle, metadata = self._repr_mimebundle_()
        handle = display(bundle, metadata=metadata, raw=True, display_id=True)
        if handle is not None:
            self._handles.append(handle)

    def wait(self) -> None:
        """Wait for the end of the run and for the picture."""
        while self._picture is None:
            time.sleep(SECONDS_BETWEEN_BATCHES)
            self._end_if_done()

    # From the run to the browser.

    def _follow(self) -> None:
        while not self._run.done:
            time.sleep(SECONDS_BETWEEN_BATCHES)
            self._send_new_rows()
        self._end()

    def _send_new_rows(self) -> None:
        start, rows = self._rows.take()
        if rows:
            self.send({"type": "append", "start": start, "rows": rows})
        if len(self._rows) >= self._snapshot_at:
            self._snapshot_at = 2 * len(self._rows)
            self.send_state("_history")

    def _on_message(self, _: Any, content: Mapping[str, Any], __: Any) -> None:
        if content.get("type") == "stop" and not self._run.done:
            self.status = "stopping"
            self._run.stop()
        elif content.get("type") == "resync":
            self.send_state("_history")

    # The end.

    def _end_if_done(self) -> None:
        if self._run.done:
            self._end()

    def _end(self) -> None:
        with self._ending:
            if self._picture is not None:
                return
            failure = self._failure()
            self._drain()
            self.status, self.sentence = self._outcome(failure)
            self._picture = self._draw()
            for handle in self._handles:
                handle.update(self._picture, raw=True)
            self._end_of_cell.forget()

    def _draw(self) -> dict[str, Any]:
        title = f"Training {self.status}"
        try:
            return final_picture(self._run.samples, title, self.sentence, self.warmup_iterations)
        except Exception as error:  # what the run gave is worth more than its picture
            words = f"{title}. {self.sentence} Its charts could not be drawn: {error}"
            return {"text/plain": words}

    def _failure(self) -> BaseException | None:
        try:
            self._run.result(SECONDS_FOR_THE_RESULT)
        except BaseException as error:
            return error
        return None

    def _drain(self) -> None:
        """Send what the run gave last; its thread may still be handing samples over."""
        deadline = time.monotonic() + SECONDS_TO_DRAIN
        expected = sum(
            1 for sample in self._run.samples if sample.get("kind") in ("step", "evaluation")
        )
        while len(self._rows) < expected and time.monotonic() < deadline:
            time.sleep(0.02)
        self._send_new_rows()

    def _outcome(self, failure: BaseException | None) -> tuple[str, str]:
        steps = [sample for sample in self._run.samples if sample.get("kind") == "step"]
        done = 1 + max((int(sample["iteration"]) for sample in steps), default=-1)
        if failure is not None:
            return "failed", f"After {done} iterations: {_first_sentence(failure)}"
        seconds = _span(steps)
        if done < self.total_iterations:
            return "stopped", f"{done} of {self.total_iterations} iterations in {seconds:.0f} s."
        return "finished", f"{done} iterations in {seconds:.0f} s."


def _colored(names: Mapping[str, str], modules: Sequence[str]) -> list[dict[str, str]]:
    colors = dict(PHASE_COLORS)
    for module, color in module_colors(modules).items():
        colors[f"{module} forward"] = forward_color(color)
        colors[f"{module} backward"] = color
    return [{"name": name, "color": colors[name]} for name in [*names, "other"]]


def _layout_in_words(plan: Any) -> str:
    modules = ", ".join(
        f"{name} TP{layout.tensor_parallel}·DP{layout.data_parallel}"
        for name, layout in plan.modules.items()
    )
    return f"{plan.deployment_mode} on {plan.world_size} ranks: {modules}"


def _first_sentence(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _span(steps: Sequence[Mapping[str, Any]]) -> float:
    """Return the seconds from the start of the first step to the end of the last."""
    if not steps:
        return 0.0
    started = min(float(step["time"]) - float(step.get("total_time") or 0) for step in steps)
    return max(float(step["time"]) for step in steps) - started


def _let_the_browser_choose_the_shell(comm: Any) -> None:
    """Have messages from the browser handled by the subshell they ask for.

    From 7.4 on ipykernel hands them to the shell that sent last, which for a live chart is the
    main one; there Stop would wait for the very cell that waits for the run.
    """
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda data, asked_for: asked_for


class _EndOfCell:
    """Calls a function after every cell.

    A notebook that is executed headless listens only while a cell runs; a run that ends within a
    cell must therefore leave its picture before that cell ends.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._shell = get_ipython()
        if self._shell is not None:
            self._shell.events.register("post_run_cell", self._after_cell)

    def _after_cell(self, *_: Any) -> None:
        self._call()

    def forget(self) -> None:
        """Stop calling."""
        if self._shell is not None:
            with contextlib.suppress(ValueError):
                self._shell.events.unregister("post_run_cell", self._after_cell)
            self._shell = None
