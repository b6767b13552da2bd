"""Files that no config can be are refused in a sentence each, before they cost anything.

That they cost nothing is checked by what is built and opened, not by the clock: a text that stands
for 10**9 values, a pipe without a writer and a device without an end would never return.
"""

import contextlib
import itertools
import json
import os
import socket
from pathlib import Path
from typing import Any, get_args

import pytest

import mimokit
from mimokit.architecture import from_hf
from mimokit.cli.layout_files import read_layout_file
from mimokit.config import (
    ConfigError,
    DataConfig,
    ModuleArchitecture,
    ModuleParallelismConfig,
    RuntimeConfig,
)
from mimokit.config.base import LARGEST_NUMBER, LARGEST_SIZE, ConfigModel
from mimokit.config.messages import MOST
from mimokit.config.sections import MOST_MODULES
from mimokit.config.text_file import read_text_file
from mimokit.config.yaml_file import MOST_CHARACTERS, MOST_IN_A_LINE, MOST_LEVELS, MOST_VALUES
from mimokit.config_files import config_from_mapping, load_experiment_config
from mimokit.config_files.loading import _stand_in
from mimokit.prediction.hardware import load_hardware
from tests.config.sections import network, only, problems, put, sections
from tests.config_files.test_files import sentence
from tests.rows import each, rows

ALIASES = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 10)
)
"""Each list holds the one before ten times: the last represents 9 x 10**9 values."""
MERGES = "m0: &m0 {k: 1, l: 2}\n" + "".join(
    f"m{level}: &m{level} {{<<: [{', '.join([f'*m{level - 1}'] * 10)}]}}\n"
    for level in range(1, 10)
)
CHAINED = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 2000))
BOMBS = {
    "in a field": ALIASES + "runtime: {pipeline_schedule: *a9}\nmodel: {}\ndata: {}\n",
    "in extends": ALIASES + "extends: *a9\n",
    "in a name": ALIASES + "name: *a9\n",
    "as a section": ALIASES + "model: *a9\n",
    "as a key": ALIASES + "model: {? *a9 : 1}\n",
    "in a sweep": ALIASES + "sweep: {data.num_microbatches: *a9}\n",
    "unused": ALIASES,
    "by merge keys": MERGES + "model: *m9\n",
    "in a list": "- " + ALIASES.replace("\n", "\n  ") + "\n",
    "of 30,000 keys": "".join(f"{number}:\n" for number in range(30_000)),
    "of 30,000 keys in few lines": "{" + ",\n".join(["k: "] * 30_000) + "}\n",
    "of 3,000 modules": "model: {module_parallelisms: {"
    + ",\n".join(f"m{n}: {{tensor_parallel: 1, data_parallel: 1}}" for n in range(3000))
    + "}}\n",
}


def refusal(path: str | os.PathLike[str]) -> str:
    """Return the only sentence of a refused file."""
    said = sentence(path)
    assert "\n" not in said
    assert len(said) < 400
    return said


DEEP = {
    "open brackets": "a: " + "[" * 10_000,
    "brackets": "a: " + "[" * 1000 + "]" * 1000,
    "mappings": "{a: " * 5000,
    "blocks": "".join(f"{'  ' * level}a:\n" for level in range(200)),
    "aliases of aliases": CHAINED,
}
TEXTS = {
    **{name: (text, f"it has more than {MOST_VALUES:,} values") for name, text in BOMBS.items()},
    **{name: (text, f"nested more than {MOST_LEVELS} levels deep") for name, text in DEEP.items()},
    **{
        said: (text, said)
        for said, text in {
            "line 1: an alias names what it is part of": "model: &a {x: *a}\n",
            "an alias names what it is part of": "a: &a {<<: *a}\n",
            "line 2: it has the tag": "model:\n  x: !!python/object/apply:os.system [touch {}]\n",
            "the tag !!python/name:os.system, and no tag is read": (
                "model: !!python/name:os.system\n"
            ),
            "it has the tag !mine": "model: !mine {a: 1}\n",
            "line 2: it has half a character": 'model:\n  x: "\\ud800"\n',
            "line 5: the key x is written twice": "b: &b {k: 1}\na:\n  <<: *b\n  x: 1\n  x: 2\n",
            "duplicate key": "a: 1\n0x1: 2\n1: 3\n",
            "line 4: the key a is written twice": "sweep:\n  layout:\n    a: {}\n    a: {}\n",
            "it is not YAML (Exceeds the limit": "data: {base_batch_size: " + "9" * 5000 + "}\n",
        }.items()
    },
}
"""Name -> a text, and words of the sentence that refuses it."""


def test_texts_that_are_no_config(tmp_path: Path, subtests: pytest.Subtests) -> None:
    path = tmp_path / "bad.yaml"

    def check(text: str, said: str) -> None:
        path.write_text(text.replace("{}]", f"{tmp_path / 'executed'}]"))
        assert said in refusal(path)

    each(subtests, TEXTS, check)
    assert not (tmp_path / "executed").exists()
    with pytest.raises(AssertionError):
        check("model: !mine {a: 1}\n", "it has the tag !yours")


def test_what_has_no_place_in_a_config_is_still_told() -> None:
    """A key that looks like a tag of pydantic's, and problems of the whole."""
    with pytest.raises(ConfigError, match="unknown key <img src=x onerror=a"):
        config_from_mapping({"<img src=x onerror=a()>": 1})
    assert not _stand_in({}, ())


def test_aliases_and_merge_keys_of_a_real_file_are_read(tmp_path: Path) -> None:
    path = tmp_path / "good.yaml"
    content = "{num_layers: 4, hidden_size: 64, num_attention_heads: 8, seq_length: 16}"
    path.write_text(
        f"model:\n  module_architectures:\n    images: &net {content[:-1]}, vocab_size: 0}}\n"
        "    language_module: {<<: *net, seq_length: 128, vocab_size: 1024}\n"
        "  module_parallelisms: {images: &sizes {data_parallel: 2}, language_module: *sizes}\n"
        "data: {base_batch_size: 2}\n"
    )
    config = load_experiment_config(path)
    assert config.model.get_architecture("language_module").hidden_size == 64
    assert config.model.get_parallelism("language_module").data_parallel == 2


Unreadable = dict[str, tuple[str, str]]


@pytest.fixture(scope="module")
def unreadable(tmp_path_factory: pytest.TempPathFactory) -> Unreadable:
    """Kind -> (a path, what the sentence says of it)."""
    folder = tmp_path_factory.mktemp("unreadable")
    os.mkfifo(folder / "pipe.yaml")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder / "socket.yaml"))
    listening.close()
    (folder / "large.yaml").write_text("#" * (MOST_CHARACTERS + 1))
    (folder / "keys.yaml").write_text("".join(f"key{number}: 1\n" for number in range(100_000)))
    (folder / "line.yaml").write_text("a: " + "!" * MOST_IN_A_LINE)
    with (folder / "sparse.yaml").open("wb") as file:
        file.truncate(2**40)
    (folder / "loop.yaml").symlink_to("loop.yaml")
    special = "it is a pipe, a socket or a device"
    large = f"it has more than {MOST_CHARACTERS:,} characters"
    return {
        "pipe": (str(folder / "pipe.yaml"), special),
        "socket": (str(folder / "socket.yaml"), "cannot be read"),
        "device": ("/dev/zero", special),
        "large": (str(folder / "large.yaml"), large),
        "100,000 keys": (str(folder / "keys.yaml"), large),
        "long line": (str(folder / "line.yaml"), "a line has more than 65,536 characters"),
        "a terabyte": (str(folder / "sparse.yaml"), large),
        "zero byte": ("a\0b.yaml", "no file can have this name"),
        "half a character": ("a\ud800.yaml", "no file can have this name"),
        "link to itself": (str(folder / "loop.yaml"), "symbolic links"),
    }


TEXTS_OF_SIZE = {"large", "100,000 keys", "long line"}
"""Kinds that other readers may read."""


def test_what_is_no_file_of_a_config(unreadable: Unreadable, subtests: pytest.Subtests) -> None:
    def check(path: str, said: str) -> None:
        assert said in refusal(path)

    each(subtests, unreadable, check)
    with pytest.raises(AssertionError):
        check("/dev/zero", "symbolic links")


def test_a_parent_that_is_no_file_of_a_config(
    unreadable: Unreadable, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    child = tmp_path / "child.yaml"

    def check(path: str, said: str) -> None:
        child.write_text(f'extends: "{path}"\n'.replace("\0", "\\0"))
        found = refusal(child)
        assert said in found
        assert f"({child} extends " in found

    written = {kind: row for kind, row in unreadable.items() if kind != "half a character"}
    each(subtests, written, check)
    with pytest.raises(AssertionError):
        check("/dev/zero", "symbolic links")


READERS = (from_hf, read_layout_file, load_hardware)


@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
def test_no_reader_waits_for_what_is_no_file(
    read: Any, unreadable: Unreadable, subtests: pytest.Subtests
) -> None:
    def check(path: str, said: str) -> None:
        with pytest.raises(ConfigError) as caught:
            read(path)
        only(caught.value.problems)

    none = {kind: row for kind, row in unreadable.items() if kind not in TEXTS_OF_SIZE}
    each(subtests, none, check)


def test_a_file_that_grew_is_read_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("x" * 10)
    assert read_text_file(path, most=10) == "x" * 10
    with pytest.raises(OSError, match="it has more than 9 characters"):
        read_text_file(path, most=9)


NETWORK = "model.module_architectures.images"
NUMBERS = {
    "one too many": ("data.num_microbatches", LARGEST_NUMBER + 1, "at most 9007199254740992"),
    "10**59": ("data.base_batch_size", 10**59, "it must be at most"),
    "10**5000": ("data.base_batch_size", 10**5000, "is a number of more than 60 digits"),
    "-10**5000": ("data.base_batch_size", -(10**5000), "is a number of more than 60 digits"),
    "1e300": ("data.base_batch_size", 1e300, "base_batch_size is 1e+300; write a whole number"),
    "a rate": ("runtime.learning_rate", 10**400, "learning_rate is a number of more than 60"),
    "infinity": ("runtime.learning_rate", float("inf"), "write a finite number"),
    "nan": ("runtime.learning_rate", float("nan"), "write a finite number"),
    "a token": ("model.special_token_ids.images", 2**64, "it must be at most"),
    "channels": (f"{NETWORK}.num_channels", 2**31, "it must be at most 2147483647"),
    "merged": (f"{NETWORK}.merge_size", 64, "no multiple of 64 x 64"),
    "a size": (f"{NETWORK}.hidden_size", 10**60, "it must be at most"),
    "digits": (f"{NETWORK}.hidden_size", int("9" * 4000), "more than 60 digits"),
    "a long key": ("k" * 100_000, 1, "unknown key kkk"),
}


def test_numbers_that_nothing_has(subtests: pytest.Subtests) -> None:
    def check(path: str, value: object, said: str) -> None:
        sentence = only(problems(put(sections(), path, value))).sentence
        assert said in sentence
        assert len(sentence) < 400

    each(subtests, NUMBERS, check)
    with pytest.raises(AssertionError):
        check("data.base_batch_size", 10**59, "write a finite number")


def test_many_wrong_values_are_told_up_to_a_number() -> None:
    found = problems(sections() | {f"key{number}": 1 for number in range(2000)})
    assert len(found) == MOST + 1
    assert "1,900 further values are wrong" in found[-1].sentence


def test_as_many_modules_as_a_model_may_have() -> None:
    content = sections({"data_parallel": 4}, {"data_parallel": 4})
    model = content["model"]
    for number in range(MOST_MODULES - 2):
        model["module_parallelisms"][f"m{number}"] = {"data_parallel": 4}
        model["module_architectures"][f"m{number}"] = network()
        model["special_token_ids"][f"m{number}"] = 2000 + number
    put(content, "data.seq_length", 16 * MOST_MODULES)
    put(content, "model.module_architectures.language_module.seq_length", 16 * MOST_MODULES)
    assert problems(content) == ()
    model["module_parallelisms"]["one_more"] = {"data_parallel": 4}
    with pytest.raises(ConfigError, match=r"module_parallelisms .* at most 128 entries"):
        config_from_mapping(content)


def whole_numbers(section: type[ConfigModel]) -> list[str]:
    """Return the fields of a section that may be whole numbers."""
    return [
        name
        for name, field in section.model_fields.items()
        if field.annotation is int or int in get_args(field.annotation)
    ]


PLACES = {
    "data": DataConfig,
    "runtime": RuntimeConfig,
    "model.module_architectures.images": ModuleArchitecture,
    "model.module_architectures.language_module": ModuleArchitecture,
    "model.module_parallelisms.images": ModuleParallelismConfig,
}


@rows("place, value", *itertools.product(PLACES, [LARGEST_NUMBER, LARGEST_SIZE]))
def test_any_number_at_its_largest_is_planned_and_predicted_or_refused(
    place: str, value: int
) -> None:
    fields = whole_numbers(PLACES[place])
    assert len(fields) > 4
    for field in fields:
        content = put(sections(), f"{place}.{field}", value)
        with contextlib.suppress(ConfigError):
            config = config_from_mapping(content)
            json.dumps(mimokit.plan(config).to_json())
            json.dumps(mimokit.predict(config, gpu="h100").to_json(), allow_nan=False)


def test_sizes_that_are_too_large_together() -> None:
    content = sections()
    for field in ("num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size"):
        put(content, f"model.module_architectures.language_module.{field}", 2**24)
    put(content, "model.module_architectures.language_module.kv_channels", 2)
    with pytest.raises(ConfigError, match=r"^Section 'model': the sizes give .* more than the"):
        mimokit.predict(config_from_mapping(content), gpu="h100")
