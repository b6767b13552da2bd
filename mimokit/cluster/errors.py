"""What a run on a cluster may raise; each message begins with one clear sentence."""

from mimokit.cluster.symptoms import sentence
from mimokit.sentence_error import SentenceError

STARTED_AGAIN = "the next run starts it again"
"""What becomes of an engine that this process has started."""
WAITED_FOR = "the next run waits until it can be reached again"
"""What becomes of an engine on a host that cannot be spoken to."""
NEEDS_ANOTHER = "the next run needs another engine in its place: start one where the cluster runs"
"""What becomes of an engine that others have started."""


class ClusterError(SentenceError, RuntimeError):
    """The cluster cannot do what was asked of it.

    Attributes:
        rank: the rank of the world that failed, None if it was no single rank.
        traceback: the traceback of that rank as text, None if there is none.
    """

    rank: int | None = None
    traceback: str | None = None


class EngineInUse(ClusterError):  # noqa: N818
    """Another client runs something on an engine."""


class RunAborted(ClusterError):  # noqa: N818
    """The run was aborted by `ClusterRun.abort` before it had a result."""


class EnginesMissing(ClusterError):  # noqa: N818
    """Engines that others have started are gone or out of reach; they can come back."""


class RankError(ClusterError):
    """A rank raised: the root cause, not the broken connections of its neighbours.

    Attributes:
        traceback_text: that rank's own traceback, which is also `traceback`.
    """

    rank: int

    def __init__(self, rank: int, type_name: str, message: str, traceback_text: str) -> None:
        self.rank = rank
        self.type_name = type_name
        self.message = message
        self.traceback = self.traceback_text = traceback_text
        super().__init__(rank, type_name, message, traceback_text)

    def __str__(self) -> str:
        cause = f"{self.type_name}: {self.message}" if self.message else self.type_name
        return f"rank {self.rank} raised {cause}\n\n{self.traceback_text}".rstrip()


class RankAbsent(RankError):  # noqa: N818
    """Other ranks waited for this one until their collective timed out.

    Attributes:
        traceback_text: where the rank was at that time, which is also `traceback`.
    """

    def __init__(self, rank: int, waited: str, traceback_text: str) -> None:
        message = f"did not come to a collective of other ranks ({waited}); it was here"
        super().__init__(rank, "RankAbsent", message, traceback_text)
        self.args = (rank, waited, traceback_text)

    def __str__(self) -> str:
        return f"rank {self.rank} {self.message}:\n\n{self.traceback_text}".rstrip()


class RankDied(ClusterError):  # noqa: N818
    """The process of a rank is gone.

    Attributes:
        signal: the name of the signal that ended it ("SIGKILL"), with the reason where Linux ended
            it for lack of memory; None if it exited by itself or the cause is not known.
        status: with which it exited by itself, None if it did not or that is not known.
        host: the name of its host, None if that is this one or not known.
    """

    rank: int

    def __init__(
        self,
        rank: int,
        pid: int | None,
        signal: str | None,
        remedy: str = STARTED_AGAIN,
        host: str | None = None,
        status: int | None = None,
    ) -> None:
        self.rank = rank
        self.pid = pid
        self.signal = signal
        self.status = status
        self.host = host
        self._remedy = remedy
        super().__init__(rank, pid, signal, remedy, host, status)

    def __str__(self) -> str:
        process = f" (process {self.pid})" if self.pid is not None else ""
        place = f" on host {self.host}" if self.host is not None else ""
        return f"rank {self.rank}{process}{place} {self._cause()}; {self._remedy}"

    def _cause(self) -> str:
        if self.signal:
            return sentence("killed", signal=self.signal)
        return sentence("died" if self.status is None else "exited", status=self.status)


class RankFrozen(RankDied):
    """A rank was there but did not run or did not answer any more, and was killed.

    Attributes:
        how: what was seen of it, as the predicate of a sentence.
        traceback: where it was, None where that is not known.
    """

    def __init__(
        self,
        rank: int,
        pid: int | None,
        how: str,
        remedy: str = STARTED_AGAIN,
        stack: str | None = None,
        host: str | None = None,
    ) -> None:
        super().__init__(rank, pid, None, remedy, host)
        self.how = how
        self.traceback = stack
        self.args = (rank, pid, how, remedy, stack, host)

    def __str__(self) -> str:
        where = "" if self.traceback is None else f". It was here:\n\n{self.traceback}"
        return f"{super().__str__()}{where}".rstrip()

    def _cause(self) -> str:
        return self.how
