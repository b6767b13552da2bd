"""What a run on a cluster may raise; each message begins with one clear sentence."""

from __future__ import annotations


class ClusterError(RuntimeError):
    """The cluster cannot do what was asked of it."""


class RunAborted(ClusterError):  # noqa: N818
    """The run was aborted by `ClusterRun.abort` before it had a result."""


class RankError(ClusterError):
    """A rank raised: the root cause, not the broken connections of its neighbours.

    Attributes:
        rank: the rank in the world that raised.
        type_name: the name of the exception's class.
        message: the exception's text.
        traceback_text: that rank's own traceback.
    """

    def __init__(self, rank: int, type_name: str, message: str, traceback_text: str) -> None:
        self.rank = rank
        self.type_name = type_name
        self.message = message
        self.traceback_text = traceback_text
        super().__init__(rank, type_name, message, traceback_text)

    def __str__(self) -> str:
        cause = f"{self.type_name}: {self.message}" if self.message else self.type_name
        return f"rank {self.rank} raised {cause}\n\n{self.traceback_text}".rstrip()


class RankDied(ClusterError):  # noqa: N818
    """The process of a rank is gone.

    Attributes:
        rank: the rank in the world whose process died.
        pid: the process id, None where it is not known.
        signal: the name of the signal that ended it ("SIGKILL"), None if it exited by itself or
            the cause is not known.
    """

    def __init__(self, rank: int, pid: int | None, signal: str | None) -> None:
        self.rank = rank
        self.pid = pid
        self.signal = signal
        super().__init__(rank, pid, signal)

    def __str__(self) -> str:
        process = f" (process {self.pid})" if self.pid is not None else ""
        cause = f"was killed by {self.signal}" if self.signal else "has died"
        return f"rank {self.rank}{process} {cause}; the next run starts it anew"
