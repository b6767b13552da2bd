"""A trait that tells its observers of every new object, and never compares two of them."""

from __future__ import annotations

from typing import Any

import traitlets


class ByIdentity(traitlets.Any):  # type: ignore[misc]
    """Any value; another object is a change, however equal.

    Comparing two plans of many ranks entry by entry takes longer than making one.
    """

    def set(self, obj: Any, value: Any) -> None:
        """Set the value and notify unless it is the very same object."""
        new = self._validate(obj, value)
        old = obj._trait_values.get(self.name, self.default_value)
        obj._trait_values[self.name] = new
        if new is not old:
            obj._notify_trait(self.name, old, new)
