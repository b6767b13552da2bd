"""A run that hands its samples over when the test says so."""

from collections.abc import Callable
from types import SimpleNamespace

from mimokit.cluster.errors import RunAborted
from mimokit.experiment.restarts import Restart
from mimokit.samples import Sample
from tests.charts.plans import plan


class FakeRun:
    def __init__(self, num_iterations: int = 40) -> None:
        runtime = SimpleNamespace(num_iterations=num_iterations, warmup_iterations=2)
        self.config = SimpleNamespace(runtime=runtime)
        self.plan = plan()
        self.samples: list[Sample] = []
        self.done = False
        self.stopped = 0
        self.error: Exception | None = None
        self.wrong: tuple[str, ...] = ()
        self.restarts: tuple[Restart, ...] = ()
        self._callbacks: list[Callable[[Sample], None]] = []

    def give(self, samples: list[Sample]) -> None:
        for sample in samples:
            self.samples.append(sample)
            for callback in self._callbacks:
                callback(sample)

    def end(self, error: Exception | None = None) -> None:
        self.error = error
        self.done = True

    def on_sample(self, callback: Callable[[Sample], None]) -> None:
        for sample in self.samples:
            callback(sample)
        self._callbacks.append(callback)

    def drain(self, timeout: float | None = None) -> None: ...

    def result(self, timeout: float | None = None) -> None:
        if self.error is not None:
            raise self.error

    def health(self) -> SimpleNamespace:
        return SimpleNamespace(wrong=self.wrong)

    def stop(self) -> None:
        self.stopped += 1
        self.done = True

    def abort(self) -> None:
        self.end(RunAborted("the run was aborted after 1.0 s"))
