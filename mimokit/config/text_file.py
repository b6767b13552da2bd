"""Reads a text file that a user names, whatever lies there: a pipe, a device, gigabytes."""

from __future__ import annotations

import errno
import os
import stat

MOST_CHARACTERS = 2**20
"""Of a file that a person or a program like Hugging Face's writes: configs, layouts."""


def read_text_file(path: str | os.PathLike[str], most: int = MOST_CHARACTERS) -> str:
    """Return the text of a regular file, quickly or not at all.

    Raises:
        OSError: it cannot be opened or read, is not a regular file, or has more characters than
            that; `strerror` says which.
        UnicodeDecodeError: it is not UTF-8.
    """
    try:
        with open(path, encoding="utf-8", opener=_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EINVAL, "it is a pipe, a socket or a device")
            text = file.read(most + 1)
    except UnicodeDecodeError:
        raise
    except ValueError:  # of a zero byte or half a character in the name
        raise OSError(errno.EINVAL, "no file can have this name") from None
    if len(text) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} characters")
    return text


def _without_waiting(name: str, flags: int) -> int:
    """Open a file; a pipe without a writer opens too, and is rejected, instead of waiting."""
    return os.open(name, flags | os.O_NONBLOCK)


def reason_of(error: OSError | UnicodeDecodeError) -> str:
    """Return why a file could not be read, as part of a sentence."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not a text in UTF-8"
    return error.strerror or str(error)
