"""The sessions of a stepper on its ranks: opened, asked, closed."""

import contextlib
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from mimokit.cluster import ClusterError, EngineCluster
from mimokit.experiment.stepping import on_rank
from mimokit.sentence_error import SentenceError


class StepperError(SentenceError, RuntimeError):
    """A request to a stepper that cannot be fulfilled; the message is one sentence."""


class RankSessions:
    """The models of a stepper on its ranks.

    Attributes:
        ended: why they can be asked nothing more, None while they can.
    """

    def __init__(self, cluster: EngineCluster, world_size: int, opening: tuple[Any, ...]) -> None:
        self.ended: str | None = None
        self._cluster, self._size, self._opening = cluster, world_size, opening
        self._name = uuid.uuid4().hex
        self.open()

    def open(self) -> None:
        """Build the models, in place of those that were open on the cluster."""
        self._run(on_rank.open_stepper, *self._opening)
        self._engines = self._cluster.ranks

    def ask(self, method: str, *args: Any, ranks: Sequence[int] | None = None) -> list[Any]:
        """Return what a method of the session of every rank returns, or of the given ranks.

        Raises:
            StepperError: a rank no longer has its model.
            RankError: a rank raised.
        """
        options = {} if ranks is None else {"ranks": list(ranks)}
        answers = self._run(on_rank.ask_stepper, method, *args, **options)
        if any(answer is None for answer in answers):
            self.ended = f"the ranks no longer have its model, because {self._why_released()}"
            self.check_open()
        return [answer for (answer,) in answers]

    def check_open(self) -> None:
        """Raise a StepperError that says why the stepper has ended, if it has."""
        if self.ended is not None:
            raise StepperError(f"This stepper has ended: {self.ended}; open a new one.")

    def close(self) -> None:
        """Release the models; may be called again."""
        if self.ended is None:
            with contextlib.suppress(ClusterError):
                self._run(on_rank.close_stepper)
            self.ended = "it was closed"

    def _why_released(self) -> str:
        ranks = zip(self._engines, self._cluster.ranks, strict=False)
        gone = [
            f"rank {rank}" + ("" if before.pid is None else f" (process {before.pid})")
            for rank, (before, now) in enumerate(ranks)
            if before.engine_id != now.engine_id
        ]
        if gone:
            return f"{' and '.join(gone)} had died, or stood still, and was replaced"
        return "another stepper was opened or their world has been formed anew"

    def _run(self, function: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
        self.check_open()
        try:
            return self._cluster.run(function, self._name, *args, world_size=self._size, **options)
        except KeyboardInterrupt:
            self.ended = "it was interrupted during a step"
            raise
        except ClusterError as error:
            self.ended = str(error).strip().splitlines()[0]
            raise
