"""What ranks of a torchrun job send each other through its store: signed JSON, never pickles."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mimokit.cluster.worker.task import Failure, RankOutcome
from mimokit.samples import (
    AnswersSample,
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
    for kind in (
        EvaluationSample,
        AnswersSample,
        TraceSample,
        HealthSample,
        ProfileSample,
        CalibrationSample,
    )
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
        for of_steps in ("events", "inside"):
            fields[of_steps] = tuple(tuple(event) for event in fields[of_steps])
    if name == AnswersSample.__name__:
        fields["answers"] = tuple((number, tuple(tokens)) for number, tokens in fields["answers"])
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
