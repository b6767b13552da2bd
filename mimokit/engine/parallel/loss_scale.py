"""What losses are multiplied by in fp16, so that small gradients do not become zero.

Micikevicius et al. 2018 (arXiv:1710.03740), section 3.2. There is one scale for all modules and
ranks: it follows from the norm over all gradients, which is the same on every rank. A scale per
module would follow from what overflows there, and gradients that cross a bridge would have the
scale of another module.
"""

GROWTH, BACKOFF, GROWTH_INTERVAL = 2.0, 0.5, 1000
"""Megatron's growth and backoff; its interval is `--loss-scale-window`, 1000 steps."""


class LossScale:
    """A scale that halves where gradients overflow and doubles after many steps without."""

    def __init__(self, initial: float) -> None:
        self.value = initial
        self.skipped = 0
        self._good = 0

    def update(self, overflowed: bool) -> None:
        """Follow a step."""
        if overflowed:
            self.skipped += 1
            self._good = 0
            self.value *= BACKOFF
            return
        self._good += 1
        if self._good == GROWTH_INTERVAL:
            self._good = 0
            self.value *= GROWTH

    def state_dict(self) -> dict[str, float]:
        """Return the state."""
        return {"value": self.value, "skipped": self.skipped, "good": self._good}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Go on from a state."""
        self.value, self.skipped = state["value"], int(state["skipped"])
        self._good = int(state["good"])
