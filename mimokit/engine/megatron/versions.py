"""Which megatron-core the engine is tested with.

What one version needs alone is in this package, with the reason at its line. No line asks for the
version: each is right in all of them.
"""

import os
import sys
from collections.abc import Mapping

from packaging.version import InvalidVersion, Version

from mimokit.versions import version_of

OLDEST, NEWEST = "0.16.1", "0.19.2"
UNTESTED_ALLOWED = "MIMOKIT_UNTESTED_MEGATRON"
"""The environment variable that lets other versions of megatron-core run."""


def installed_version() -> str:
    """Return the version of megatron-core in this environment.

    Raises:
        ImportError: if there is none.
    """
    installed = version_of("megatron-core")
    if installed is None:
        raise ImportError(
            "megatron-core is not installed; mimokit's engine needs "
            f"{OLDEST} on Python 3.11, {NEWEST} on newer ones: pip install megatron-core."
        )
    return installed


def check_version(installed: str, environment: Mapping[str, str] = os.environ) -> None:
    """Reject a megatron-core that the engine was not tested with, unless the environment allows it.

    Raises:
        ImportError: a sentence with the installed and the tested versions.
    """
    try:
        public = Version(Version(installed).public)  # without "+local"
        is_tested = Version(OLDEST) <= public <= Version(NEWEST)
    except InvalidVersion:
        is_tested = False
    if is_tested:
        return
    sentence = (
        f"megatron-core {installed} is installed, but mimokit is tested with {OLDEST} to {NEWEST}"
    )
    if environment.get(UNTESTED_ALLOWED) != "1":
        raise ImportError(
            f"{sentence}: install one of these, or set {UNTESTED_ALLOWED}=1 to go on all the same."
        )
    print(f"{sentence}; going on, as {UNTESTED_ALLOWED}=1 says.", file=sys.stderr)
