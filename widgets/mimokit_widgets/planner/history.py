"""Undo and redo."""

from __future__ import annotations

from mimokit_widgets.planner.draft import Draft

MOST_KEPT = 500


class History:
    """The drafts so far and where in them we are.

    Edits of one field that follow each other, as the letters of a word do, are one step; `settle`
    ends the word.
    """

    def __init__(self, draft: Draft) -> None:
        self._drafts = [draft]
        self._place = 0
        self._open: object = None

    @property
    def draft(self) -> Draft:
        """The draft that is shown."""
        return self._drafts[self._place]

    @property
    def can_undo(self) -> bool:
        """Whether there is an earlier draft."""
        return self._place > 0

    @property
    def can_redo(self) -> bool:
        """Whether there is a later draft."""
        return self._place < len(self._drafts) - 1

    def record(self, draft: Draft, field: object = None) -> None:
        """Take the next draft; one with the same field as the last replaces it."""
        del self._drafts[self._place + 1 :]
        if field is not None and field == self._open and self._place:
            self._drafts[self._place] = draft
        else:
            self._drafts.append(draft)
            del self._drafts[: max(0, len(self._drafts) - MOST_KEPT)]
            self._place = len(self._drafts) - 1
        self._open = field

    def settle(self) -> None:
        """Make the next edit a separate step, whichever field it changes."""
        self._open = None

    def undo(self) -> None:
        """Go back one step, if there is one."""
        self._place = max(0, self._place - 1)
        self._open = None

    def redo(self) -> None:
        """Go forward one step, if there is one."""
        self._place = min(len(self._drafts) - 1, self._place + 1)
        self._open = None
