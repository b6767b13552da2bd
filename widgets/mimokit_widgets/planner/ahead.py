"""What the next key at a field will show, told to the browser before it is pressed."""

from collections.abc import Sequence
from itertools import product
from typing import Any

from mimokit_widgets._widget import asked
from mimokit_widgets.planner.screen import screen_of
from mimokit_widgets.planner.session import Session


def screens_ahead(session: Session, path: Sequence[str]) -> dict[str, Any]:
    """Return the `screens` of a session after keys that step the number of a field.

    `after` has the index of each: the message of the key, as the browser writes it -> index.
    """
    screens: list[dict[str, Any]] = []
    after: dict[str, int] = {}
    for doubling, by in product((False, True), (1, -1)):
        message = {"type": "step", "path": [*path], "doubling": doubling, "by": by}
        then = session.at_rest()
        then.verdicts = session.verdicts  # nothing is predicted twice
        then.handle(message)
        screen = screen_of(then)
        screens += [] if screen in screens else [screen]
        after[asked(**message)] = screens.index(screen)
    return {"screens": screens, "after": after}
