"""`SweepMonitor`: the experiments of a sweep while they run, with buttons to stop and to skip."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import traitlets

from mimokit.experiment.sweeps.records import ExperimentRecord
from mimokit.tables import html_sections
from mimokit_widgets._widget import EndOfCell, PersistentWidget
from mimokit_widgets.view_models.sweep_rows import (
    COLUMNS,
    Medians,
    sweep_head,
    sweep_rows,
    sweep_section,
)

if TYPE_CHECKING:
    from mimokit.prediction.task import HardwareSource

STYLES = ("shared.css", "sweep_monitor.css")
SECONDS_BETWEEN_PICTURES = 0.25
SECONDS_BETWEEN_LOOKS = 1.0
ROWS_OF_A_PICTURE = 50
"""Of more rows a picture is sent less often, so that watching costs the same."""
SECONDS_BETWEEN_MEMORIES = 10.0


class Sweep(Protocol):
    """What a sweep monitor needs of a sweep; `mimokit.experiment.sweep` returns one."""

    @property
    def experiments(self) -> Sequence[ExperimentRecord]:
        """All experiments, in the order in which they run."""

    @property
    def done(self) -> bool:
        """Whether the sweep has ended."""

    def on_change(self, callback: Callable[..., None], /) -> object:
        """Call back when an experiment has changed, from any thread."""

    def stop(self) -> object:
        """End the experiments that run after their iteration, and begin no other."""

    def skip(self, name: str | None = None) -> object:
        """End one experiment, or do not begin it; the sweep goes on."""


class SweepMonitor(PersistentWidget, entry="sweep_monitor.js", styles=STYLES):
    """A table of the experiments of a sweep that follows them, and stays when they are over.

        run = sweep(cluster, "configs/ablations/digits", results_dir="runs")
        SweepMonitor(run)

    Each row has the status of an experiment, how far it is, its loss and time, and the medians of
    its last iterations after the warm-up: tokens per second, the step next to the predicted one,
    and the shares of it in which a mean rank communicates and waits for other ranks. What failed
    says in a sentence why, with its rank.

    The buttons work as long as the kernel is free, or has subshells as under JupyterLab. Below the
    widget lies the same table as a page that needs no kernel: a saved notebook shows it. A sweep
    that has ended or was resumed is shown alike. `RunsView(run)` shows the curves of its
    experiments.
    """

    _shown = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        sweep: Sweep,
        *,
        hardware: HardwareSource | None = None,
        **options: Any,
    ) -> None:
        """Show a sweep.

        Args:
            sweep: that `mimokit.experiment.sweep` has returned.
            hardware: to predict the steps for, which are drawn as lines, as for `LiveMonitor`.
        """
        self._sweep = sweep
        self._medians = Medians(hardware)
        self._news = threading.Event()
        self._drawing = threading.Lock()
        self._error = ""
        self._stopping = False
        super().__init__(**options)
        sweep.on_change(self._hear)
        self._end_of_cell = EndOfCell(self._keep)
        self._draw()
        if not sweep.done:
            threading.Thread(target=self._follow, name="SweepMonitor", daemon=True).start()

    def wait(self) -> None:
        """Wait until the sweep has ended and the table that stays shows it."""
        while not self._sweep.done:
            time.sleep(self._pause())
        self._keep()

    def _hear(self, *_: object) -> None:
        self._news.set()

    def _follow(self) -> None:
        remembered = time.monotonic()
        while not self._sweep.done:
            self._news.wait(SECONDS_BETWEEN_LOOKS)
            self._news.clear()
            statuses = [row["status"] for row in self._shown["rows"]]
            self._draw()
            changed = statuses != [row["status"] for row in self._shown["rows"]]
            if changed or time.monotonic() - remembered > SECONDS_BETWEEN_MEMORIES:
                remembered = time.monotonic()
                self._saved.draw_now()
            time.sleep(SECONDS_BETWEEN_PICTURES)
        self._keep()

    def _pause(self) -> float:
        rows = len(self._shown["rows"])
        return SECONDS_BETWEEN_PICTURES * max(1.0, rows / ROWS_OF_A_PICTURE)

    def _draw(self) -> None:
        with self._drawing:
            done = self._sweep.done  # before the records, which are final once it is true
            rows = sweep_rows(self._sweep.experiments, self._medians)
            head = {**sweep_head(rows, done, self._stopping), "error": self._error}
            self._shown = {"columns": list(COLUMNS), "rows": rows, "head": head}

    def _keep(self) -> None:
        self._draw()
        self._saved.draw_now()
        if self._shown["head"]["done"]:
            self._end_of_cell.forget()

    def _in_html(self) -> str:
        return html_sections([sweep_section(self._shown)])

    def _on_message(self, _: Any, content: Mapping[str, Any], __: Any) -> None:
        self._error = ""
        try:
            if content.get("type") == "stop":
                self._sweep.stop()
                self._stopping = True
            elif content.get("type") == "skip":
                self._sweep.skip(str(content["name"]))
        except Exception as error:
            self._error = (str(error).strip() or type(error).__name__).splitlines()[0]
        self._draw()
