"""The store of a torchrun job, and what ranks send each other through it: JSON, never pickles.

The store is open to every process of the network, so nothing that is read from it is executed.
"""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from mimokit.cluster.worker.task import Failure, RankOutcome
from mimokit.cluster.world import EngineFacts
from mimokit.samples import (
    CalibrationSample,
    EvaluationSample,
    HealthSample,
    ProfileSample,
    RankFacts,
    RankHardware,
    Sample,
    TraceSample,
    from_wire,
    to_wire,
)

_STEP = "step"
_RECORDS: Mapping[str, type[Any]] = {
    kind.__name__: kind
    for kind in (EvaluationSample, TraceSample, HealthSample, ProfileSample, CalibrationSample)
}


@dataclass(frozen=True)
class RankWork:
    """The one thing that a job does on its ranks, as often as it is submitted.

    Every process knows it before the job begins, so no code crosses.

    Attributes:
        to_json: the arguments of `function` -> values that `json.dumps` takes. It raises
            ClusterError for arguments that cannot cross.
        run: does the work on a rank, given these values and the number of ranks.
    """

    function: Callable[..., Any]
    to_json: Callable[..., Any]
    run: Callable[[Any, int], None]


@dataclass(frozen=True)
class Task:
    """What the ranks of a job do next; the default ends the job.

    Attributes:
        world_size: the first ranks, which take part.
    """

    arguments: Any = None
    world_size: int = 0
    last: bool = True

    def to_text(self) -> str:
        """Return the task as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str | bytes) -> Task:
        """Return the task of `to_text`."""
        return cls(**json.loads(text))


def message_to_json(message: Mapping[str, Any]) -> Any:
    """Return a message of `samples.to_wire` as values that `json.dumps` takes."""
    if _STEP in message:
        return {_STEP: message[_STEP]}
    sample = from_wire(message)
    fields = asdict(sample)
    if isinstance(sample, ProfileSample):
        fields["content"] = base64.b64encode(sample.content).decode()
    return {type(sample).__name__: fields}


def message_from_json(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message of `message_to_json`.

    Raises:
        KeyError: it is not one.
    """
    if _STEP in content:
        return {_STEP: content[_STEP]}
    ((name, fields),) = content.items()
    return to_wire(_sample(name, dict(fields)))


def _sample(name: str, fields: dict[str, Any]) -> Sample:
    if name == RankFacts.__name__:
        return RankFacts(**{**fields, "hardware": RankHardware(**fields["hardware"])})
    if name == ProfileSample.__name__:
        fields["content"] = base64.b64decode(fields["content"])
    if name == TraceSample.__name__:
        fields["events"] = tuple(tuple(event) for event in fields["events"])
    sample: Sample = _RECORDS[name](**fields)
    return sample


def outcome_to_json(outcome: RankOutcome) -> str:
    """Return how a task ended on a rank, without its value, as JSON."""
    failure = None if outcome.failure is None else asdict(outcome.failure)
    return json.dumps([failure, outcome.emitted, outcome.world_intact])


def outcome_from_json(text: str | bytes) -> RankOutcome:
    """Return the outcome of `outcome_to_json`."""
    failure, emitted, intact = json.loads(text)
    return RankOutcome(None, None if failure is None else Failure(**failure), emitted, intact)


POLL_SECONDS = 0.02
START_TIMEOUT = timedelta(minutes=5)


class JobStore:
    """Keys and texts that all ranks of a job see.

    A wait polls: a blocking call of torch's client would keep all other threads from the store.
    """

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store = store
        self.rank = rank
        self.size = size

    @classmethod
    def from_environment(cls) -> JobStore:
        """Connect to the store that torchrun describes in the environment."""
        from torch.distributed.rendezvous import rendezvous

        store, rank, size = next(rendezvous("env://", timeout=START_TIMEOUT))
        return cls(store, rank, size)

    def put(self, key: str, text: str) -> None:
        """Leave a text."""
        self._store.set(key, text)

    def take(self, key: str) -> bytes | None:
        """Return a text and remove it; None if there is none yet."""
        text = self.look(key)
        if text is not None:
            self._store.delete_key(key)
        return text

    def look(self, key: str) -> bytes | None:
        """Return a text; None if there is none yet."""
        return bytes(self._store.get(key)) if self._store.check([key]) else None

    def wait(self, key: str, given_up: Callable[[], bool] = lambda: False) -> bytes | None:
        """Wait for a text; None if it is given up meanwhile."""
        while (text := self.look(key)) is None:
            if given_up():
                return None
            time.sleep(POLL_SECONDS)
        return text

    def exchange_facts(self, facts: EngineFacts) -> tuple[EngineFacts, ...]:
        """Tell the others where this rank sits, and return where all sit, in rank order."""
        self.put(f"facts/{self.rank}", json.dumps(asdict(facts)))
        texts = [self.wait(f"facts/{rank}") for rank in range(self.size)]
        return tuple(EngineFacts(**json.loads(text)) for text in texts if text is not None)


def started_by_torchrun() -> bool:
    """Return whether the environment describes a job."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
