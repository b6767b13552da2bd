"""Changes a file into one that is almost right; the same numbers make the same changes.

What is inserted would leave a file behind if anything ran it.
"""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

CANARY = "fuzz-canary"
"""A file of this name in the working directory: something was executed."""
RUNS = (
    f"!!python/object/apply:os.system ['touch {CANARY}']",
    f"__import__('os').system('touch {CANARY}')",
    f"$(touch {CANARY})",
    f"cposix\nsystem\n(S'touch {CANARY}'\ntR.",
)
NUMBERS = (0, -1, 1, 3, 7, 2**31, 2**63, 10**18, 10**40, 0.5, -0.0, 1e-320, 1e308)
ODD = (float("nan"), float("inf"), -float("inf"), None, True, False, "", " ", "x" * 300, "x" * 5000)
TEXTS = (
    "../../etc/passwd",
    "\x00",
    "\x1b[2J",
    "\ud800",
    "images\n",
    "<img src=x onerror=a()>",
    "é",
)
VALUES: tuple[Any, ...] = (*NUMBERS, *ODD, *TEXTS, *RUNS, [], {}, [[]], {"": None}, [1, "a", None])
TOKENS = (
    *("&a ", "*a ", "<<: *a\n", "? ", "- ", ": ", "{", "}", "[", "]", "'", '"', ",", "\n", "\t"),
    *("\x00", "#", "%", "---\n", "...\n", "9" * 400, "1e999", "0x", "-", "(", ")", "lambda: 0"),
    *("/dev/zero", "extends: /dev/zero\n", "~", "=", "@", "`", "|", ">", "!", "\ud7ff", *RUNS),
    *("[" * 20_000, '{"a":' * 20_000),
)
DEPTHS = (2, 50, 200)


def changed_tree(random: Random, tree: Any) -> Any:
    """Return a tree of dictionaries and lists with one to three changes, mostly one."""
    tree = copy.deepcopy(tree)
    for _ in range(random.choice((1, 1, 2, 3))):
        places = _places(tree)
        if places:
            holder, key = random.choice(places)
            random.choice(_TREE_CHANGES)(random, tree, holder, key)
    return tree


def changed_text(random: Random, text: str) -> str:
    """Return a text with one to four changes of its characters."""
    for _ in range(random.choice((1, 1, 2, 4))):
        start = random.randint(0, len(text))
        stop = min(len(text), start + random.choice((0, 1, 5, 40)))
        put = random.choice((random.choice(TOKENS), text[start:stop] * 2, ""))
        text = text[:start] + put + text[stop:]
    return text[: random.randint(0, len(text))] if random.random() < 0.1 else text


def as_json(tree: Any) -> str:
    """Return a tree as JSON; half characters stay escaped."""
    return json.dumps(tree, indent=1)


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """Return (holder, key) of every value in a tree, from the root down."""
    found, waiting = [], [tree]
    while waiting:
        holder = waiting.pop()
        keys = holder if isinstance(holder, dict) else range(len(holder))
        for key in keys:
            found.append((holder, key))
            if isinstance(holder[key], dict | list):
                waiting.append(holder[key])
    return found


def _replace(random: Random, tree: Any, holder: Any, key: Any) -> None:
    holder[key] = copy.deepcopy(random.choice(VALUES))


def _scale(random: Random, tree: Any, holder: Any, key: Any) -> None:
    if isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
        holder[key] = holder[key] * random.choice((2, 3, -1, 1000, 0.5))
    elif isinstance(holder[key], str):
        holder[key] = holder[key][: random.randint(0, 3)] + random.choice(TEXTS)


def _remove(random: Random, tree: Any, holder: Any, key: Any) -> None:
    del holder[key]


def _rename(random: Random, tree: Any, holder: Any, key: Any) -> None:
    name = random.choice((*TEXTS, "images", "language_module", "extends", "sweep", "name"))
    value = holder.pop(key)
    if isinstance(holder, dict):
        holder[name] = value
    else:
        holder.append({name: value})


def _move(random: Random, tree: Any, holder: Any, key: Any) -> None:
    other, place = random.choice(_places(tree))
    other[place] = copy.deepcopy(holder[key])


def _deepen(random: Random, tree: Any, holder: Any, key: Any) -> None:
    value = holder[key]
    for _ in range(random.choice(DEPTHS)):
        value = [value] if random.random() < 0.5 else {"a": value}
    holder[key] = value


_TREE_CHANGES: tuple[Callable[[Random, Any, Any, Any], None], ...] = (
    *(_replace, _replace, _replace),
    *(_scale, _scale, _remove, _rename, _move, _deepen),
)


def written(file: Path, text: str) -> Path:
    """Write a mutant, also one that is no UTF-8."""
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    return file
