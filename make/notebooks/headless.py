"""Executes a notebook without a browser and reports its progress on a terminal."""

import asyncio
import contextlib
import os
import re
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

from make.notebooks.page import exporter
from make.notebooks.terminal import Terminal, TrainingProgress
from mimokit.import_path import module_command

FAILED, INTERRUPTED = 1, 130
"""Exit codes of a notebook that failed, and of one that Ctrl-C ended."""

COLOR_CODES = re.compile(r"\x1b\[[0-9;]*m")
FAILING_LINE = re.compile(r"^-+>\s*(\d+)\s?(.*)$", re.MULTILINE)
HEADING = re.compile(r"^#+\s+(.+?)\s*$", re.MULTILINE)
MOST_ERROR_LINES = 12
LONGEST_SOCKET = "kernel-ipc-5"
"""What jupyter_client calls the last socket of the kernel of `kernel.json`."""
KERNEL_OPTIONS = [
    # Its warning that sockets on this machine are not encrypted is noise between the cells.
    "--IPKernelApp.log_level=ERROR",
    # Modules next to the notebook are found, after all others.
    "--IPKernelApp.exec_lines=__import__('sys').path.append('')",
]


class HeadlessNotebook:
    """Runs the cells of a notebook; outputs go into the notebook that was given."""

    def __init__(self, notebook: Any, file: Path, terminal: Terminal) -> None:
        self._terminal = terminal
        self._headings = _headings(notebook.cells)
        self._said = ""
        self._client = _Client(
            notebook,
            terminal=terminal,
            timeout=None,
            kernel_name="python3",
            extra_arguments=KERNEL_OPTIONS,
            store_widget_state=False,
            # Progress bars rewrite their line; only what it said last belongs on the page.
            coalesce_streams=True,
            resources={"metadata": {"path": str(file.parent)}},
            on_cell_execute=self._announce,
        )

    def run(self, leave: Callable[[], object] = lambda: None) -> int:
        """Run all cells; return 0, FAILED or INTERRUPTED.

        Args:
            leave: called once no output comes any more, while the kernel ends.
        """
        self._client.leave = leave
        try:
            with tempfile.TemporaryDirectory(prefix="mimokit-kernel-") as folder:
                self._client.sockets = Path(folder)
                self._client.execute()
        except CellExecutionError as error:
            if self._client.interrupts:
                return INTERRUPTED
            self._explain(error)
            return FAILED
        except DeadKernelError:
            if self._client.interrupts:
                return INTERRUPTED
            self._terminal.text("The kernel died while it ran this cell.\n")
            return FAILED
        return 0

    def _announce(self, cell: Any, cell_index: int) -> None:
        heading = self._headings[cell_index]
        if cell.cell_type == "code" and heading != self._said:
            self._said = heading
            self._terminal.heading(heading)

    def _explain(self, error: CellExecutionError) -> None:
        place = FAILING_LINE.search(COLOR_CODES.sub("", error.traceback))
        if place is not None:
            self._terminal.text(f"\nin line {place[1]}: {place[2].strip()}\n")
        lines = COLOR_CODES.sub("", f"{error.ename}: {error.evalue}").splitlines()
        self._terminal.text("\n".join(lines[:MOST_ERROR_LINES]) + "\n")


class _Client(NotebookClient):  # type: ignore[misc]
    """Hands text and progress to the terminal the moment they arrive.

    Ctrl-C interrupts the cell, as the stop button of a notebook does, so that a run can end and a
    cluster close; a second one ends the kernel.

    Attributes:
        sockets: folder for the files through which the kernel is reached. A TCP port that is free
            can be another process's before the kernel binds it.
        leave: called in a thread while the kernel ends.
    """

    sockets: Path
    leave: Callable[[], object]

    def __init__(self, notebook: Any, terminal: Terminal, **options: Any) -> None:
        super().__init__(notebook, **options)
        self._terminal = terminal
        self._training = TrainingProgress()
        self.interrupts = 0

    def create_kernel_manager(self) -> Any:
        manager = super().create_kernel_manager()
        if len(os.fsencode(self.sockets / LONGEST_SOCKET)) <= zmq.IPC_PATH_MAX_LEN:
            manager.transport = "ipc"
        manager.connection_file = str(self.sockets / "kernel.json")
        manager.kernel_spec.argv = module_command("ipykernel_launcher", "-f", "{connection_file}")
        return manager

    async def async_start_new_kernel_client(self) -> Any:
        asyncio.get_running_loop().run_in_executor(None, exporter)  # as long as the kernel starts
        client = await super().async_start_new_kernel_client()
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # not main thread
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._interrupt)
        return client

    async def _async_cleanup_kernel(self) -> None:
        left = asyncio.get_running_loop().run_in_executor(None, self.leave)
        self.leave = lambda: None
        await super()._async_cleanup_kernel()
        await left

    def _interrupt(self) -> None:
        self.interrupts += 1
        end = self.km.interrupt_kernel() if self.interrupts == 1 else self.km.shutdown_kernel(True)
        self._interrupting = asyncio.ensure_future(end)

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        content = msg["content"]
        if msg["msg_type"] == "stream":
            self._terminal.text(content["text"])
        elif msg["msg_type"] == "comm_open":
            self._training.opened(content)
        elif msg["msg_type"] == "comm_msg":
            line = self._training.line(content)
            if line:
                self._terminal.progress(line)
        return super().process_message(msg, cell, cell_index)


def _headings(cells: list[Any]) -> list[str]:
    current = "Start"
    outputs = []
    for cell in cells:
        if cell.cell_type == "markdown":
            titles = HEADING.findall(cell.source)
            current = titles[-1] if titles else current
        outputs.append(current)
    return outputs
