"""The system's Chromium: found, or installed where that is possible.

    python -m tests.browser.chromium

Exits 0 once there is one; else says in one sentence what to do, and exits 1.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
MISSING = (
    "The browser tests need Chromium, and none of the commands "
    f"{', '.join(NAMES)} is there; install it with: apt-get install chromium"
)


class NoChromiumError(RuntimeError):
    """There is no Chromium on this machine."""


def find_chromium() -> Path:
    """Return the browser's command.

    Raises:
        NoChromiumError: if there is none.
    """
    for name in NAMES:
        found = shutil.which(name)
        if found is not None:
            return Path(found)
    raise NoChromiumError(MISSING)


def can_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install() -> None:
    """Install Chromium; whether that went well is seen when it is looked for again."""
    quietly = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for step in (["update", "-qq"], ["install", "-qq", "--yes", "chromium"]):
        subprocess.run(["apt-get", *step], env=quietly, stdout=subprocess.DEVNULL, check=False)


def main() -> int:
    try:
        find_chromium()
    except NoChromiumError:
        if can_install():
            install()
    try:
        find_chromium()
    except NoChromiumError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
