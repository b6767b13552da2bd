"""Ranks show each other that they have the key of their world, before any number is exchanged.

gloo takes the first connection to the port of a rank for that of the rank that it expects. Where
other processes reach such ports, each pair of a new group answers a question of the other with the
key: a process that took the place of a rank cannot. No rank connects to the rank it displaced, so
such a process need not answer: a rank that waits looks who is connected to it.
"""

import contextlib
import functools
import hmac
import secrets
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d

from mimokit.cluster.worker.interference import interference, strangers_here

SIZE = 32
"""Bytes of a question, and of its answer."""
PATIENCE, AGAIN = 5.0, 1.0
"""Seconds for which a rank waits for the others of a new group before it looks who is connected to
it, and between two looks. Ranks that are late, on a busy machine, have the time that gloo gives."""


class ForeignRankError(RuntimeError):
    """Another process took the place of a rank."""


class Handshake:
    """What new groups of this process do first; nothing without a key."""

    def __init__(self) -> None:
        self.key: bytes | None = None
        self.break_off: Callable[[], object] = int  # any thread may call it
        make = c10d._new_process_group_helper

        @functools.wraps(make)
        def made(*arguments: Any, **keywords: Any) -> Any:
            if self.key is None:
                return make(*arguments, **keywords)
            with watched(self.break_off):
                group, store = make(*arguments, **keywords)
                if group is not c10d.GroupMember.NON_GROUP_MEMBER:
                    shake_hands(group, self.key)
            return group, store

        c10d._new_process_group_helper = made


@functools.cache
def handshake() -> Handshake:
    """Return that of this process; torch calls it from then on."""
    return Handshake()


@contextlib.contextmanager
def watched(break_off: Callable[[], object]) -> Iterator[None]:
    """While a group is formed, break off once ranks wait and another user is connected to this one.

    Raises:
        ForeignRankError: that was so, or a connection broke and the system says who interferes.
    """
    formed, causes = threading.Event(), list[str]()

    def look() -> None:
        seconds = PATIENCE
        while not formed.wait(seconds):
            if cause := strangers_here():
                causes.append(cause)
                break_off()
                return
            seconds = AGAIN

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    broken: RuntimeError | None = None
    try:
        yield
    except ForeignRankError:
        raise
    except RuntimeError as error:
        broken = error
    finally:
        formed.set()
        watcher.join()
    cause = causes[0] if causes else interference() if broken else None
    if cause is not None:
        raise ForeignRankError(f"a group cannot be formed: {cause}") from broken
    if broken is not None:
        raise broken


def shake_hands(group: Any, key: bytes) -> None:
    """Ask every other member of a group for its key, and answer. Collective over the group.

    Raises:
        ForeignRankError: one has another key.
    """
    backend = _gloo(group)
    if backend is None or group.size() < 2:
        return
    rank, size = group.rank(), group.size()
    asked = [secrets.token_bytes(SIZE) for _ in range(size)]
    questions = _exchanged(backend, asked)
    answers = _exchanged(backend, [_answer(key, rank, to, questions[to]) for to in range(size)])
    for member, answer in enumerate(answers):
        right = _answer(key, member, rank, asked[member])
        if not hmac.compare_digest(answer, right):
            raise ForeignRankError(
                f"what is connected to this rank in the place of rank {member} of a group does not "
                f"have the key of this world: {interference() or 'another process interferes'}"
            )


def _gloo(group: Any) -> Any:
    try:
        backend = group._get_backend(torch.device("cpu"))
    except RuntimeError:  # NCCL alone
        return None
    return backend if backend.name() == "gloo" else None


def _exchanged(backend: Any, messages: list[bytes]) -> list[bytes]:
    sent = torch.frombuffer(bytearray(b"".join(messages)), dtype=torch.uint8)
    received = torch.empty_like(sent)
    backend.alltoall_base(received, sent, [], []).wait()
    content = bytes(received.tolist())
    return [content[start : start + SIZE] for start in range(0, len(content), SIZE)]


def _answer(key: bytes, rank: int, to: int, question: bytes) -> bytes:
    return hmac.digest(key, b"%d %d %s" % (rank, to, question), "sha256")
