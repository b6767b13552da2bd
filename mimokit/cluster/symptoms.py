"""What tells that a rank is in trouble: one table of how long it lasts and what is said of it."""

from typing import NamedTuple

KILLED = "SIGKILL"
NO_MEMORY = f"{KILLED}, as this machine had no memory left"
"""The signal of a process that Linux has ended for lack of memory."""
NO_DESCRIPTOR = "as it had no descriptor left (ulimit -n)"
"""Why gloo ends a process by a signal; connections of others may have taken the last one."""


class Symptom(NamedTuple):
    """A row of the table.

    Attributes:
        after: seconds that it lasts before it is acted on; longer on a busy machine, except for
            processes that are stopped.
    """

    after: float
    sentence: str


SYMPTOMS = {
    # Its peers are patient for longer: their collectives wait for 30 s by default.
    "stopped": Symptom(10.0, "was stopped by a signal, did not go on and was killed"),
    # Beyond what a step takes. One that does not answer is known by then, too.
    "idle": Symptom(6.0, "did nothing for {silence:.0f} s, where a step takes {step:.2g} s"),
    "still": Symptom(
        60.0,
        "no rank has reported anything for {silence:.0f} s, and before that each did so every "
        "{step:.2g} s",
    ),
    # After the run has failed elsewhere or was aborted: before that it may be at work.
    "silent": Symptom(3.0, "did not answer and was killed"),
    "away": Symptom(3.0, "cannot be reached"),
    "lost": Symptom(0.0, "has died or cannot be reached"),
    "died": Symptom(0.0, "has died"),
    "exited": Symptom(0.0, "has ended with exit status {status}"),
    "killed": Symptom(0.0, "was killed by {signal}"),
}


def sentence(symptom: str, **values: object) -> str:
    """Return what is said of a symptom."""
    return SYMPTOMS[symptom].sentence.format(**values)
