"""A cluster of one node that runs in a thread of this process: fits without engines."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import cloudpickle

from mimokit.cluster import RankError
from mimokit.cluster.rank import set_current
from mimokit.config.user_modules import ReadAfresh


class OneNode:
    """What `Trainer` needs of an `EngineCluster` of one engine."""

    is_local = True

    def __len__(self) -> int:
        return 1

    def submit(self, function: Callable[..., Any], *args: Any, world_size: int) -> ThreadRun:
        assert world_size == 1
        # An engine would import the files of the tests afresh; this process has them in use.
        sent = tuple(one.value if isinstance(one, ReadAfresh) else one for one in args)
        return ThreadRun(*pickle.loads(cloudpickle.dumps((function, sent))))


class ThreadRun:
    """What `FitRun` needs of a `ClusterRun`; also the side of the rank."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.samples: list[Any] = []
        self.stopping = False
        self._callbacks: list[Callable[[Any], object]] = []
        self._lock = threading.RLock()
        self._begun = time.monotonic()
        self._value: list[Any] = []
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(function, args), daemon=True)
        self._thread.start()

    def _run(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        set_current(self)
        try:
            self._value = [function(*args)]
        except Exception as error:
            self._error = RankError(0, type(error).__name__, str(error), "a traceback")
        finally:
            set_current(None)

    def emit(self, sample: Mapping[str, Any]) -> None:
        kept = pickle.loads(pickle.dumps(dict(sample)))
        with self._lock:
            self.samples.append(kept)
            for callback in self._callbacks:
                callback(kept)

    def flush(self) -> None: ...

    def on_sample(self, callback: Callable[[Any], object]) -> None:
        with self._lock:
            for sample in self.samples:
                callback(sample)
            self._callbacks.append(callback)

    def drain(self, timeout: float | None = None) -> None: ...

    @property
    def sample_count(self) -> int:
        return len(self.samples)

    def each_sample(self) -> Iterator[Any]:
        return iter(self.samples)

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._begun

    def stop(self) -> None:
        self.stopping = True

    abort = stop

    def wait_ended(self, timeout: float | None = None) -> bool:
        self._thread.join(timeout)
        return self.done

    def result(self, timeout: float | None = None) -> list[Any]:
        if not self.wait_ended(timeout):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._value
