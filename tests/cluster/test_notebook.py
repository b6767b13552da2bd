"""The cluster inside a real Jupyter kernel: cells, tracebacks, and the stop button."""

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import KernelManager


@dataclass
class Notebook:
    """A kernel that cells are sent to."""

    manager: Any
    client: Any
    outputs: list[str] = field(default_factory=list)

    def begin(self, code: str) -> str:
        return str(self.client.execute(code))

    def finish(self, cell: str, timeout: float = 300.0) -> tuple[str, str]:
        """Returns what the cell printed and the error it ended with."""
        printed, error = "", ""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            message = self.client.get_iopub_msg(timeout=timeout)
            if message["parent_header"].get("msg_id") != cell:
                continue
            content = message["content"]
            if message["msg_type"] == "stream":
                printed += content["text"]
            elif message["msg_type"] == "error":
                error = "\n".join(content["traceback"])
            elif content.get("execution_state") == "idle":
                return printed, error
        raise TimeoutError(cell)

    def wait_for(self, text: str, cell: str, timeout: float = 300.0) -> None:
        """Wait until something prints a text while a cell runs; what came before is dropped."""
        printed = ""
        while text not in printed:
            message = self.client.get_iopub_msg(timeout=timeout)
            content = message["content"]
            if message["msg_type"] == "stream":
                printed += content["text"]
            ended = content.get("execution_state") == "idle"
            assert not (ended and message["parent_header"].get("msg_id") == cell), "the cell ended"

    def run(self, code: str) -> tuple[str, str]:
        return self.finish(self.begin(code))


@pytest.fixture(scope="module")
def notebook() -> Iterator[Notebook]:
    with tempfile.TemporaryDirectory(prefix="kernel") as folder:
        yield from in_a_kernel(Path(folder) / "kernel.json")


def in_a_kernel(connection: Path) -> Iterator[Notebook]:
    # A TCP port that is free can be another test's before the kernel binds it.
    manager = KernelManager(transport="ipc", connection_file=str(connection))
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    book = Notebook(manager, client)
    try:
        client.wait_for_ready(timeout=600)
        _, error = book.run(
            "import torch, torch.distributed as dist\n"
            "from mimokit.cluster import EngineCluster, emit\n"
            "def total(start):\n"
            "    t = torch.tensor([start + dist.get_rank()])\n"
            "    dist.all_reduce(t)\n"
            "    return int(t)\n"
            "cluster = EngineCluster(n=2, preload=['torch'], progress=False)"
        )
        assert not error
        yield book
        book.run("cluster.close()")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_a_function_of_a_cell(notebook: Notebook) -> None:
    printed, error = notebook.run(
        "def product(start):\n"
        "    t = torch.tensor([start + dist.get_rank()])\n"
        "    dist.all_reduce(t, op=dist.ReduceOp.PRODUCT)\n"
        "    return int(t)\n"
        "print(cluster.run(product, 10))"
    )
    assert (printed.strip(), error) == ("[110, 110]", "")


def test_a_traceback_shows_the_line_of_the_cell(notebook: Notebook) -> None:
    _, error = notebook.run(
        "def fail():\n"
        "    if dist.get_rank() == 1:\n"
        "        raise ValueError('no digits')  # the line to show\n"
        "    dist.barrier()\n"
        "cluster.run(fail)"
    )
    assert "rank 1 raised ValueError: no digits" in error
    assert "raise ValueError('no digits')  # the line to show" in error.split("rank 1 raised")[1]


def test_the_stop_button(notebook: Notebook) -> None:
    cell = notebook.begin(
        "def endless():\n"
        "    while True:\n"
        "        dist.all_reduce(torch.ones(1))\n"
        "        emit({'step': 1})\n"
        "def tell_that_it_runs():\n"
        "    while not (cluster.current_run and cluster.current_run.samples):\n"
        "        time.sleep(0.05)\n"
        "    print('it runs', flush=True)\n"
        "import threading, time\n"
        "threading.Thread(target=tell_that_it_runs).start()\n"
        "cluster.run(endless)"
    )
    notebook.wait_for("it runs", cell)
    notebook.manager.interrupt_kernel()
    _, error = notebook.finish(cell)
    assert "KeyboardInterrupt" in error
    printed, error = notebook.run("print(cluster.run(total, 20))")
    assert (printed.strip(), error) == ("[41, 41]", "")


def test_samples_arrive_while_cells_come_and_go(notebook: Notebook) -> None:
    notebook.run(
        "import time\n"
        "def slow():\n"
        "    from mimokit.cluster import should_stop\n"
        "    steps = 0\n"
        "    while not should_stop():\n"
        "        emit({'step': steps})\n"
        "        steps += 1\n"
        "        time.sleep(0.05)\n"
        "    return steps\n"
        "run = cluster.submit(slow)"
    )
    notebook.run("while not run.samples: time.sleep(0.05)")
    printed, error = notebook.run("print(len(run.samples) > 0, run.done)")
    assert (printed.strip(), error) == ("True False", "")
    printed, error = notebook.run("run.stop(); print(sum(run.result()) == len(run.samples) > 0)")
    assert (printed.strip(), error) == ("True", "")
