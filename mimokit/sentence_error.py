"""Errors whose message says it all: a notebook shows them without mimokit's own frames."""

import itertools
from types import FrameType

SHELLS = ("IPython", "ipykernel")
OURS = ("mimokit", "mimokit_widgets")


class SentenceError(Exception):
    """What was asked cannot be done; the message is for whoever asked, and says why.

    It is never raised for a fault in mimokit, whose frames would be needed.
    """

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows: the caller's frames and the message.

        An error that came of another one, such as one in a user's function, is shown whole.
        """
        import traceback  # takes 2 ms, and every package of mimokit imports this file

        if self.__cause__ is not None or (self.__context__ and not self.__suppress_context__):
            return _lines(traceback.format_exception(self))
        frames = traceback.walk_tb(self.__traceback__)
        asked = itertools.dropwhile(lambda at: _package(at[0]) in SHELLS, frames)
        callers = itertools.takewhile(lambda at: _package(at[0]) not in OURS, asked)
        shown = traceback.StackSummary.extract(callers)
        said = (f"{type(self).__name__}: {self}", *getattr(self, "__notes__", ()))
        return _lines([*shown.format(), "\n".join(said)])


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _lines(parts: list[str]) -> list[str]:
    return "".join(parts).splitlines()
