"""Versions of installed packages."""

from importlib.metadata import PackageNotFoundError, version


def version_of(package: str) -> str | None:
    """Return the version of a package; None if it is not installed, as in a bare source tree."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
