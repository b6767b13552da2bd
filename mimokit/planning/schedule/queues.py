"""Programs that send and receive: run as far as they can, over queues that keep an order."""

from collections import defaultdict, deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from mimokit.planning.schedule.actions import Action, ScheduleError


@dataclass(frozen=True, slots=True)
class Post:
    """One end of a message, which is started and not waited for.

    Attributes:
        peer: index of the program with the other end.
        queue: between two programs the messages of a queue are exchanged one after another, in the
            order in which both ends post them, in both directions.
        message: the same at both ends, and at no other.
    """

    sends: bool
    peer: int
    queue: Hashable
    message: Hashable
    action: Action

    def __str__(self) -> str:
        return str(self.action)


@dataclass(frozen=True, slots=True)
class Await:
    """A program goes on when a message that it has posted is exchanged."""

    post: Post


class QueuedPrograms:
    """How far programs come."""

    def __init__(self, programs: Sequence[Sequence[Post | Await]]) -> None:
        self.programs = programs
        self.at = [0] * len(programs)
        self._queues: dict[tuple[int, int, Hashable], deque[Post]] = defaultdict(deque)
        self._exchanged: list[set[Post]] = [set() for _ in programs]

    def run(self) -> list[int]:
        """Run all programs until none advances; return those that have not ended.

        Raises:
            ScheduleError: two messages of a queue are posted in different orders at its ends.
        """
        awake = list(range(len(self.programs)))
        while awake:
            awake += self._advance(awake.pop())
        return [each for each, program in enumerate(self.programs) if self.at[each] < len(program)]

    def _advance(self, each: int) -> Iterator[int]:
        program = self.programs[each]
        while self.at[each] < len(program):
            operation = program[self.at[each]]
            if isinstance(operation, Await):
                if operation.post not in self._exchanged[each]:
                    return
            else:
                self._queues[each, operation.peer, operation.queue].append(operation)
                yield from self._exchange(each, operation)
            self.at[each] += 1

    def _exchange(self, each: int, posted: Post) -> Iterator[int]:
        here = self._queues[each, posted.peer, posted.queue]
        there = self._queues[posted.peer, each, posted.queue]
        while here and there and here[0].sends != there[0].sends:
            if here[0].message != there[0].message:
                raise ScheduleError(
                    f"{here[0]} meets {there[0]} in one queue, which would mix them up."
                )
            self._exchanged[each].add(here.popleft())
            self._exchanged[posted.peer].add(there.popleft())
            yield posted.peer

    def waiting(self, each: int) -> tuple[Post, Post]:
        """Return what a program that has not ended waits for, and what its queue is held by."""
        operation = self.programs[each][self.at[each]]
        assert isinstance(operation, Await), "a program waits for nothing else"
        return operation.post, self._queues[each, operation.post.peer, operation.post.queue][0]

    def waiting_text(self, each: int) -> str:
        """Return the action in which a program waits, and what it waits behind."""
        post, held_by = self.waiting(each)
        return f"{post}" if held_by == post else f"{post} behind its {held_by}"

    def cycle(self, each: int) -> list[int]:
        """Return programs that wait for each other, from one that has not ended.

        It begins with the last of a chain instead, if that waits for a program that has ended.
        """
        path: list[int] = []
        while each not in path:
            path.append(each)
            each = self.waiting(each)[0].peer
            if self.at[each] == len(self.programs[each]):
                return path[-1:]
        return path[path.index(each) :]
