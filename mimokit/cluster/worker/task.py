"""The objects the client sends to an engine; calling one there does the work."""

from __future__ import annotations

import ctypes
import gc
import linecache
import sys
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mimokit.cluster.call_file import PackedCall
from mimokit.cluster.run_record import RankRecorder
from mimokit.cluster.worker.interference import interference, without_network
from mimokit.cluster.worker.membership import describe_rank
from mimokit.cluster.worker.sender import SampleSender
from mimokit.cluster.worker.session import EngineSession, RankInterrupted, RankRun, engine_session
from mimokit.cluster.world import EngineFacts, WorldSpec
from mimokit.import_path import find_in_working_directory, found

if TYPE_CHECKING:
    import torch

COMMUNICATION_SIGNS = (
    "gloo",
    "nccl",
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "process group has not been initialized",
    "invalid process group",
    "store",
    "socket",
)


@dataclass(frozen=True)
class Failure:
    """Why a function did not return."""

    type_name: str
    message: str
    traceback_text: str
    interrupted: bool
    """It ended because the client aborted the run."""
    communication: bool
    """It looks like the echo of another rank's failure."""


@dataclass(frozen=True)
class RankOutcome:
    """What came of a task on one rank."""

    value: bytes | None
    failure: Failure | None
    emitted: int
    """How many samples the rank has sent."""
    world_intact: bool


@dataclass(frozen=True)
class RankTask:
    """Join the world, call the function, report."""

    run_id: str
    spec: WorldSpec
    call: PackedCall
    sources: dict[str, list[str]] = field(default_factory=dict)
    """The text of notebook cells, so that tracebacks can show their lines."""
    record: str | None = None
    """The folder in which the rank records what it sends, for clients that come later."""

    def __call__(self) -> RankOutcome:
        """Run on the engine's main thread."""
        session = engine_session()
        record = RankRecorder(self.record, self.spec.rank) if self.record else None
        sender = SampleSender(session.kernel, record)
        for name, lines in self.sources.items():
            linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
        made, modes = session.membership.groups_made, TorchModes.now()
        with session.running(RankRun(self.run_id, sender)):
            value, failure = self._attempt(session)
            if failure is not None:
                session.membership.break_off()
                session.membership.leave()
                modes.restore()
        if failure is not None or session.membership.groups_made != made:
            release()
        sender.close()
        intact = session.membership.intact(self.spec)
        outcome = RankOutcome(value, failure, sender.emitted, intact)
        if record is not None:
            record.close(outcome)
        return outcome

    def _attempt(self, session: EngineSession) -> tuple[bytes | None, Failure | None]:
        # No name holds the exception or the result when this returns: they keep models alive.
        try:
            with session.interruptible():
                session.membership.join(self.spec)
                return self._compute(), None
        except BaseException as error:
            return None, explain_error(error, self.run_id in session.aborted)

    def _compute(self) -> bytes:
        import cloudpickle

        function, arguments, keywords = found(self.call.unpacked)
        if not _is_ours(function):  # and may import, when it is called, what lies there
            find_in_working_directory()
        value = function(*arguments, **keywords)
        try:
            return bytes(cloudpickle.dumps(value))
        except Exception as error:
            raise TypeError(f"the result cannot be sent back: {error}") from error


@dataclass(frozen=True)
class OpenStore:
    """Leave the world and host the store of the next one; returns the port."""

    address: str
    timeout: float

    def __call__(self) -> int:
        """Run on the engine's main thread."""
        return engine_session().membership.open_store(self.address, self.timeout)


@dataclass(frozen=True)
class InWorld:
    """Say whether the engine is still in a world; another client may have formed one since."""

    name: str

    def __call__(self) -> bool:
        """Run on the engine's main thread."""
        return engine_session().membership.stands(self.name)


@dataclass(frozen=True)
class LeaveWorld:
    """Leave the world."""

    def __call__(self) -> None:
        """Run on the engine's main thread."""
        engine_session().membership.leave()


@dataclass(frozen=True)
class Describe:
    """Say where the engine sits."""

    def __call__(self) -> EngineFacts:
        """Run on the engine's main thread."""
        return describe_rank()


def _is_ours(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).partition(".")[0] == "mimokit"


def explain_error(error: BaseException, aborted: bool) -> Failure:
    """The failure behind an exception, as text."""
    cause, echo = None, _is_communication(error) or (aborted and _broken_off(error))
    if not aborted:
        cause = without_network(error) or (interference() if echo else None)
    return Failure(
        type_name=type(error).__name__,
        message=_text(error) + (f"; {cause}" if cause else ""),
        traceback_text=_traceback_text(error),
        interrupted=aborted or isinstance(error, RankInterrupted),
        communication=echo and cause is None,
    )


def _broken_off(error: BaseException) -> bool:
    while (context := error.__context__) is not None:
        if _is_communication(context):
            return True
        error = context
    return False


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(its message cannot be shown)"


def _is_communication(error: BaseException) -> bool:
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"DistError", "DistBackendError", "DistNetworkError", "ConnectionError"}:
        return True
    text = _text(error).lower()
    return isinstance(error, RuntimeError | ValueError) and any(
        sign in text for sign in COMMUNICATION_SIGNS
    )


def _traceback_text(error: BaseException) -> str:
    trace: Any = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace or error.__traceback__)
    return "".join(lines)


@dataclass(frozen=True)
class TorchModes:
    """Modes of the calling thread.

    An interrupt can come while `torch.no_grad` and its kin change back what they have changed. The
    next run on the engine would then train without gradients.

    Attributes:
        gradients: whether operations are recorded for the backward pass.
    """

    gradients: bool
    dtype: torch.dtype

    @classmethod
    def now(cls) -> TorchModes:
        """Return the modes as they are."""
        import torch

        return cls(torch.is_grad_enabled(), torch.get_default_dtype())

    def restore(self) -> None:
        """Change the modes back."""
        import torch

        torch.set_grad_enabled(self.gradients)
        torch.set_default_dtype(self.dtype)


def release() -> None:
    """Free objects in reference cycles, and return what allocators keep for later.

    A model is full of cycles, and each of its process groups keeps threads that poll.
    """
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    _trim()


def _trim() -> None:
    """Have the C library return free memory to the system (glibc; elsewhere nothing)."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
