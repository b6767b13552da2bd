"""Token ids as text, where a tokenizer lies next to the weights."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

TOKENIZER = "tokenizer.json"
"""The file of the `tokenizers` library."""


def decoded(directory: Path, rows: Sequence[Sequence[int]]) -> list[str] | None:
    """Return the text of every row; None without a tokenizer file or its library.

    Args:
        directory: of the checkpoint.
        rows: of token ids.

    Raises:
        OSError: the file is damaged.
    """
    file = directory / TOKENIZER
    if not file.is_file() or find_spec("tokenizers") is None:
        return None
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare exceptions
        raise OSError(f"{file}: it is not a tokenizer ({error})") from None
    return [str(tokenizer.decode(list(row))) for row in rows]
