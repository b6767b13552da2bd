"""Whether a thread goes round in a loop, and what that loop sees.

A loop that polls for something sees the same each time; one that works changes what it sees: a
counter, the length of a list, a tensor. The thread is looked at several times from another one.
"""

import dis
import gc
import hashlib
import linecache
import re
import sys
import threading
import time
import types
import zlib
from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from inspect import CO_OPTIMIZED
from typing import Any, Literal, NamedTuple, TypeAlias

LOOKS, PAUSE_SECONDS = 10, 0.02
"""At a thread that may be in a loop, and the time between two of them."""
SLEEPING = re.compile(r"\b(sleep|acquire|poll|select|get)\(")
"""What a line calls that lets a thread sleep."""
WITHIN_PYTHON = re.compile(r"JUMP|RESUME|NOP")
"""Instructions at which no function is called: a thread is seen there only if it runs Python."""
SEEN_CALLS = 3
"""Innermost calls whose values are looked at."""
MOST_OBJECTS, DEEPEST = 2000, 3
"""That are looked at from a call, and how far; of longer lists only the length is."""
MOST_ENTRIES = 4096
"""Of an array or a text that are compared."""
FEW_ENTRIES = 16
"""Of a tensor that are compared: a new one may lie where the last one was."""
REFERENCES_OF_A_COPY = 3
"""To the values of a frame, as `sys.getrefcount` counts: the frame, a name here, its argument."""
A_TIME = 60.0
"""A number so close to a clock's, in seconds, is the time, which says nothing of work."""

Rounds: TypeAlias = Literal["", "sleeps", "runs"]

_PASSED_OVER = (
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.CodeType,
    types.FrameType,
    type,
    threading.Condition,  # who waits on it comes and goes as a loop polls
)
_NUMBERS = (int, float, bool, complex)
_TEXTS = (str, bytes, bytearray, type(None))
_LISTS = (list, tuple, dict, set, frozenset, deque)


class Call(NamedTuple):
    """A call that is in progress at every look.

    Attributes:
        position: of the instruction, None if it was not the same at each look.
        values: the same with numbers, and which objects they are.
    """

    frame: int
    position: int | None
    form: str = ""
    values: str = ""


class Look(NamedTuple):
    """What one look at a thread shows.

    Attributes:
        in_python: whether it is at an instruction of `WITHIN_PYTHON`.
    """

    calls: tuple[tuple[int, int], ...]
    in_python: bool


def frames_within(frame: types.FrameType, callers: Collection[str]) -> list[types.FrameType]:
    """Return a frame and those that have called it, the outermost first.

    Args:
        callers: files; those of their calls that are in one, and what is outside, are left out.
    """
    frames: list[types.FrameType] = []
    at: types.FrameType | None = frame
    while at is not None and at.f_code.co_filename not in callers:
        frames.append(at)
        at = at.f_back
    return frames[::-1]


def rounds_of(thread: int, callers: Collection[str]) -> tuple[Rounds, Sequence[Call]]:
    """Return whether a thread goes round in a loop, and the calls of that.

    Args:
        callers: see `frames_within`.
    """
    looks: list[Look] = []
    frames: list[types.FrameType] = []
    sleeping = 0
    for number in range(LOOKS):
        if number:
            time.sleep(PAUSE_SECONDS)
        frame = sys._current_frames().get(thread)
        if frame is None:
            return "", ()
        sleeping += _sleeps(frame)
        now = frames_within(frame, callers)
        looks.append(Look(tuple((id(call), call.f_lasti) for call in now), _runs_python(frame)))
        if looks[-1] == Counter(looks).most_common(1)[0][0]:
            frames = now
    kept = _without_an_odd_one(looks)
    calls = _calls(frames, [look.calls for look in kept])
    if 2 * sleeping >= LOOKS:
        return "sleeps", calls
    moves = len(set(kept)) > 1 or kept[0].in_python
    return ("runs" if moves else ""), calls


def _without_an_odd_one(looks: Sequence[Look]) -> Sequence[Look]:
    """Leave out the only look that differs from the others.

    On a busy machine a thread that computes is seen, once in a while, between two computations.
    """
    commonest, times = Counter(looks).most_common(1)[0]
    return [commonest] * times if times == LOOKS - 1 else looks


def _sleeps(frame: types.FrameType) -> bool:
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno, frame.f_globals)
    return bool(SLEEPING.search(line))


def _runs_python(frame: types.FrameType) -> bool:
    instruction = dis.opname[frame.f_code.co_code[max(frame.f_lasti, 0)]]
    return bool(WITHIN_PYTHON.search(instruction))


def _calls(
    frames: Sequence[types.FrameType], looks: Sequence[Sequence[tuple[int, int]]]
) -> Sequence[Call]:
    common: list[Call] = []
    for together in zip(*looks, strict=False):
        if len({frame for frame, _ in together}) > 1:
            break
        positions = {position for _, position in together}
        common.append(Call(together[0][0], positions.pop() if len(positions) == 1 else None))
        if common[-1].position is None:
            break
    first = max(0, len(common) - SEEN_CALLS)
    seen = zip(common[first:], frames[first:], strict=False)
    return [*common[:first], *(_seen_by(call, frame) for call, frame in seen)]


def _seen_by(call: Call, frame: types.FrameType) -> Call:
    code, values = frame.f_code, frame.f_locals
    names = (name for name in code.co_names if name in frame.f_globals)
    form, numbers = _digests([*values.values(), *(frame.f_globals[name] for name in names)])
    if sys.version_info < (3, 13) and code.co_flags & CO_OPTIMIZED:
        # The frame keeps this copy, and with it what its function frees later. If others refer to
        # it, the user has called `locals()`.
        if sys.getrefcount(values) <= REFERENCES_OF_A_COPY:
            values.clear()
    return call._replace(form=form, values=numbers)


def _digests(roots: Iterable[object]) -> tuple[str, str]:
    """Return digests of objects and of what they refer to, without and with numbers."""
    form: list[object] = []
    numbers: list[object] = []
    waiting, seen = deque((root, 0) for root in roots), set[int]()
    for _ in range(MOST_OBJECTS):
        if not waiting:
            break
        value, depth = waiting.popleft()
        kind = type(value)
        if issubclass(kind, _PASSED_OVER) or id(value) in seen:
            continue
        if kind in _NUMBERS:
            numbers.append(_number(value))
            continue
        form += [kind.__qualname__, content := _content(value, kind)]
        if kind not in _TEXTS:
            seen.add(id(value))
            numbers.append(id(value))
            if depth < DEEPEST and not (isinstance(content, int) and content > MOST_OBJECTS):
                waiting.extend((inner, depth + 1) for inner in gc.get_referents(value))
    return _digest(form), _digest([form, numbers])


def _number(value: Any) -> object:
    clocks = (time.time(), time.monotonic())
    if type(value) is float and min(abs(value - clock) for clock in clocks) < A_TIME:
        return "a time"
    return value


def _content(value: Any, kind: type) -> object:
    """Return what may change in an object: the length of a list, and what refers to no others."""
    if kind in _TEXTS:
        return value and (len(value), value[:MOST_ENTRIES])
    if kind in _LISTS:
        return len(value)
    names = {f"{parent.__module__}.{parent.__name__}" for parent in kind.__mro__}
    if "torch.Tensor" in names:
        try:
            row = value.detach()
            while row.dim() > 1:
                row = row[0]
            entries = row.reshape(-1)[:FEW_ENTRIES].tolist() if row.device.type == "cpu" else None
            return value._version, entries
        except Exception:  # an inference tensor, or a class of the user's: it may have changed
            return time.monotonic()
    if "numpy.ndarray" in names and not value.dtype.hasobject:
        return zlib.crc32(value.flat[:MOST_ENTRIES].tobytes())
    return None


def _digest(content: object) -> str:
    return hashlib.sha256(repr(content).encode(errors="replace")).hexdigest()
