"""The data of a run, as its ranks make it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mimokit.config.user_code import UserCode

if TYPE_CHECKING:
    from mimokit.engine.data.sources import DataSource


def data_of_code(code: UserCode) -> DataSource:
    """Return the data of the user's, else that of the config."""
    from mimokit.engine.data.sources import default_data

    return code.data or default_data
