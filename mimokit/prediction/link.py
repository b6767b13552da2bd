"""A link between two ranks or nodes, read from texts with units."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from mimokit.config.errors import ConfigError, Problem
from mimokit.units import bits_per_second, rate_text, seconds_of, seconds_text


@dataclass(frozen=True)
class Link:
    """One direction between two nodes; both directions work at once.

    Attributes:
        bandwidth: bit/s.
        latency: seconds until the first bit arrives.
        jitter: seconds by which a message may be later than that, evenly spread from 0.
    """

    bandwidth: float
    latency: float = 0.0
    jitter: float = 0.0

    @classmethod
    def of(cls, bandwidth: str, latency: str = "0 ms", jitter: str = "0 ms") -> Self:
        """Return a link from texts with units: `Link.of("1 Gbit/s", "30 ms")`.

        Raises:
            ConfigError: a unit is missing or unknown, the bandwidth is not above 0, or a duration
                is negative.
        """
        return cls(
            _read("bandwidth", bits_per_second, bandwidth),
            _read("latency", seconds_of, latency),
            _read("jitter", seconds_of, jitter),
        )

    def seconds(self, payload: float, messages: int = 1) -> float:
        """Return how long a message of `payload` bytes takes, the last of `messages` at once."""
        late = self.jitter * messages / (messages + 1)
        return self.latency + late + 8 * payload / self.bandwidth

    def __str__(self) -> str:
        return f"{rate_text(self.bandwidth)}, {seconds_text(self.latency)}"


def _read(field: str, reader: Callable[[str], float], text: str) -> float:
    try:
        return reader(text)
    except ValueError as error:
        sentence = f"network.{field} is {error}."
        raise ConfigError([Problem("network", field, text, sentence)]) from None
