"""Reads a file that a user names, whatever lies there: a pipe, a device, gigabytes."""

import errno
import json
import os
import stat
from typing import IO, Any

MOST_CHARACTERS = 2**20
"""Of a file that a person or a program like Hugging Face's writes: configs, layouts."""
MOST_OF_RESULTS = 2**26
"""Of a JSON file of results, traces aside; a thousand configs have a tenth of it."""
_PIECE = 2**20


def read_text_file(path: str | os.PathLike[str], most: int = MOST_CHARACTERS) -> str:
    """Return the text of a regular file, quickly or not at all.

    Raises:
        OSError: it cannot be opened or read, is not a regular file, or has more characters than
            that; `strerror` says which.
        UnicodeDecodeError: it is not UTF-8.
    """
    pieces, left = [], most + 1
    with open_regular(path, encoding="utf-8") as file:
        # Python takes memory for as many characters as are asked for.
        while left and (piece := file.read(min(left, _PIECE))):
            pieces.append(piece)
            left -= len(piece)
    text = "".join(pieces)
    if len(text) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} characters")
    return text


def read_json(path: str | os.PathLike[str], most: int = MOST_OF_RESULTS) -> Any:
    """Return the content of a JSON file; half a character in its texts becomes a question mark.

    Raises:
        OSError: it cannot be read, is not a regular file, or has more characters than that.
        ValueError: it is not JSON in UTF-8, or nested too deeply.
    """
    text = read_text_file(path, most)
    try:
        content = json.loads(text)
        if "\\ud" in text.lower():
            whole = json.dumps(content, ensure_ascii=False).encode("utf-8", "replace")
            content = json.loads(whole)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return content


def open_regular(path: str | os.PathLike[str], mode: str = "r", **options: Any) -> IO[Any]:
    """Open a regular file to read, with options of `open`; raise `OSError` for any other."""
    try:
        file = open(path, mode, opener=_without_waiting, **options)  # noqa: SIM115
    except ValueError:  # of a zero byte or half a character in the name
        raise OSError(errno.EINVAL, "no file can have this name") from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is a pipe, a socket or a device")
    return file


def _without_waiting(name: str, flags: int) -> int:
    # A pipe without a writer opens too, and is rejected, instead of waiting.
    return os.open(name, flags | os.O_NONBLOCK)


def reason_of(error: OSError | UnicodeDecodeError) -> str:
    """Return why a file could not be read, as part of a sentence."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not a text in UTF-8"
    return error.strerror or str(error)
