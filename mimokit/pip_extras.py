"""What `pip install mimokit` leaves out, and the sentence that says how to install it.

The core plans, predicts, searches, draws and shows widgets. `mimokit[run]` adds what trains and
verifies layouts, `mimokit[data]` what reads tables of samples, `mimokit[lab]` what opens and
exports notebooks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mimokit.sentence_error import SentenceError

_IMPORTED = {
    "run": "absl captcha cloudpickle einops ipyparallel megatron numba packaging psutil "
    "safetensors sklearn torch",
    "data": "pyarrow",
    "lab": "PIL jupyterlab nbclient nbconvert nbformat tensorboard vl_convert zmq",
}
IMPORTED = {extra: frozenset(packages.split()) for extra, packages in _IMPORTED.items()}
"""Extra -> the packages that are imported of it; `pyproject.toml` has its distributions."""


class NotInstalledError(SentenceError, ImportError):
    """What was asked for needs packages that an extra of mimokit installs."""

    def __init__(self, what: str, package: str) -> None:
        (extra,) = (extra for extra, packages in IMPORTED.items() if package in packages)
        super().__init__(
            f"{what} needs {package}, which is not installed; run pip install 'mimokit[{extra}]'.",
            name=package,
        )


@contextmanager
def asked_for(what: str) -> Iterator[None]:
    """Raise `NotInstalledError` where an import fails for want of an extra.

    Args:
        what: was asked for, as it begins the sentence. Of several, the sentence has the outermost,
            which the user wrote.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if not any(package in packages for packages in IMPORTED.values()):
            raise
        raise NotInstalledError(what, package) from None
    except NotInstalledError as error:
        raise NotInstalledError(what, str(error.name)) from None
