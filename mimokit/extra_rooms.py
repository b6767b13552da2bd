"""Which rooms next to the core there are, and how the core asks one for something by name.

The folder `mimokit/extras` may be deleted, whole or in part.
"""

from importlib import import_module
from pathlib import Path
from types import ModuleType

from mimokit.sentence_error import SentenceError

PACKAGE = f"{__package__}.extras"
FOLDER = Path(__file__).with_name("extras")


class MissingRoomError(SentenceError, ImportError):
    """What was asked for is in a room next to the core that is not installed."""

    def __init__(self, what: str, room: str) -> None:
        super().__init__(
            f"{what} needs the folder mimokit/extras/{room}, which is not there; install all of "
            "mimokit."
        )


def room_of(module: str) -> str | None:
    """Return the room next to the core that a module is in; None: it is in the core."""
    inside = module.removeprefix(f"{PACKAGE}.")
    return None if inside == module else inside.partition(".")[0]


def is_there(room: str) -> bool:
    """Return whether a room next to the core is installed."""
    return (FOLDER / room / "__init__.py").is_file()


def import_extra(module: str, what: str) -> ModuleType:
    """Return a module of a room next to the core.

    Args:
        module: inside of `mimokit.extras`, such as `"strategies.section"`.
        what: was asked for, as it begins the sentence of the error.

    Raises:
        MissingRoomError: the room is not installed.
    """
    room = module.partition(".")[0]
    if not is_there(room):
        raise MissingRoomError(what, room)
    return import_module(f"{PACKAGE}.{module}")
