"""A progress bar for starting engines, in a notebook or a terminal."""

from __future__ import annotations

import warnings
from typing import Any


class Progress:
    """Shows how many of `total` engines are there; silent where `total` is 0."""

    def __init__(self, total: int) -> None:
        self._bar: Any = None
        if total:
            with warnings.catch_warnings():
                # Without ipywidgets tqdm falls back to text, and says so.
                warnings.simplefilter("ignore")
                from tqdm.auto import tqdm

                self._bar = tqdm(total=total, desc="Starting engines", unit="engine", leave=False)

    @classmethod
    def none(cls) -> Progress:
        """A progress that shows nothing."""
        return cls(0)

    def show(self, count: int) -> None:
        """Show that `count` engines are there."""
        if self._bar is not None and count != self._bar.n:
            self._bar.n = count
            self._bar.refresh()

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
