"""Public names of a package that load on first use.

A package writes its public names once, as imports for type checking:

    if TYPE_CHECKING:
        from mimokit.cluster.run import ClusterRun as ClusterRun
    else:
        __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)

Type checkers, editors and import graphs read these imports as ordinary code. At run time an import
runs when its name is first used. `lazy_loader.attach_stub` does the same from a second file, a
`.pyi`, but it rejects names of other packages and grimp does not read that file.
"""

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from mimokit.extra_rooms import MissingRoomError, is_there, room_of
from mimokit.pip_extras import asked_for

_IMPORT = re.compile(r"^    from (\S+) import[\s(]+(\w+) as", re.MULTILINE)
"""To parse the file instead would take a tenth of `import mimokit`."""


def lazy_names(
    package: str, file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package.

    A submodule that has the name of a public object would hide the object once it is imported, so
    a package must not have one; `tests/test_faces.py` checks that.

    A name of a room beside the core that is not installed is not listed, and raises
    `MissingRoomError` when it is used; a name whose packages are not installed raises
    `NotInstalledError`.

    Args:
        package: `__name__` of the package.
        file: `__file__` of the package. Its `if TYPE_CHECKING:` block lists the names as
            `from module import name as name`; `from package import name as name` names a submodule.
    """
    source = Path(file).read_text(encoding="utf-8")
    homes = {name: module for module, name in _IMPORT.findall(source)}
    rooms = {name: room_of(f"{home}.{name}") for name, home in homes.items()}
    missing = {name: room for name, room in rooms.items() if room and not is_there(room)}
    there = homes.keys() - missing.keys()

    def load(name: str) -> Any:
        if name in missing:
            raise MissingRoomError(f"{package}.{name}", missing[name])
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with asked_for(f"{package}.{name}"):
            if homes[name] == package:
                return import_module(f"{package}.{name}")
            return getattr(import_module(homes[name]), name)

    def listed() -> list[str]:
        return sorted({*vars(import_module(package)), *there})

    return load, listed, sorted(name for name in there if homes[name] != package)
