"""The socket files of a controller."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TRANSPORT = "ipc://"


def name_sockets(connection: Mapping[str, Any]) -> None:
    """Give socket files also the names under which ipyparallel's engines and clients look for them.

    Its controller joins interface and number by a hyphen, the others join them by a colon.
    """
    if not connection["interface"].startswith(TRANSPORT):
        return
    path = connection["interface"].removeprefix(TRANSPORT)
    for value in connection.values():
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int):
                with contextlib.suppress(FileExistsError):
                    Path(f"{path}:{number}").symlink_to(f"{path}-{number}")
