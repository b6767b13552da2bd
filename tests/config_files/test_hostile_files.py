"""Files that no config can be are refused in a sentence each, before they cost anything.

That they cost nothing is checked by what is built and opened, not by the clock: a text that stands
for 10**9 values, a pipe without a writer and a device without an end would never return.
"""

from __future__ import annotations

import contextlib
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
from mimokit.config.model import MOST_MODULES
from mimokit.config.text_file import read_text_file
from mimokit.config.yaml_file import MOST_CHARACTERS, MOST_IN_A_LINE, MOST_LEVELS, MOST_VALUES
from mimokit.config_files import config_from_mapping, load_experiment_config
from mimokit.config_files.loading import _stand_in
from mimokit.prediction.calibration import load_calibration
from mimokit.prediction.hardware import load_hardware
from tests.config.sections import network, only, problems, put, sections

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
    with pytest.raises(ConfigError) as caught:
        load_experiment_config(path)
    sentence = only(caught.value.problems).sentence
    assert "\n" not in sentence
    assert len(sentence) < 400
    return sentence


@pytest.mark.parametrize("where", BOMBS)
def test_a_text_that_stands_for_more_than_a_config_holds(where: str, tmp_path: Path) -> None:
    path = tmp_path / "bomb.yaml"
    path.write_text(BOMBS[where])
    assert f"it has more than {MOST_VALUES:,} values" in refusal(path)


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "[" * 10_000,
        "a: " + "[" * 1000 + "]" * 1000,
        "{a: " * 5000,
        "".join(f"{'  ' * level}a:\n" for level in range(200)),
        CHAINED,
    ],
    ids=["open brackets", "brackets", "mappings", "blocks", "aliases of aliases"],
)
def test_deep_nesting(text: str, tmp_path: Path) -> None:
    path = tmp_path / "deep.yaml"
    path.write_text(text)
    assert f"it is nested more than {MOST_LEVELS} levels deep" in refusal(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model: &a {x: *a}\n", "line 1: an alias names what it is part of"),
        ("a: &a {<<: *a}\n", "line 1: an alias names what it is part of"),
        ("model:\n  x: !!python/object/apply:os.system [touch {}]\n", "line 2: it has the tag"),
        ("model: !!python/name:os.system\n", "the tag !!python/name:os.system, and no tag is read"),
        ("model: !mine {a: 1}\n", "it has the tag !mine"),
        ('model:\n  x: "\\ud800"\n', "line 2: it has half a character"),
        ("b: &b {k: 1}\na:\n  <<: *b\n  x: 1\n  x: 2\n", "line 5: the key x is written twice"),
        ("a: 1\n0x1: 2\n1: 3\n", "duplicate key"),
        ("sweep:\n  layout:\n    a: {}\n    a: {}\n", "line 4: the key a is written twice"),
        ("data: {base_batch_size: " + "9" * 5000 + "}\n", "it is not YAML (Exceeds the limit"),
    ],
)
def test_texts_that_say_too_little_or_too_much(text: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text.replace("{}]", f"{tmp_path / 'executed'}]"))
    assert expected in refusal(path)
    assert not (tmp_path / "executed").exists()


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


@pytest.fixture
def unreadable(tmp_path: Path) -> dict[str, tuple[str, str]]:
    """Kind -> (a path, what the sentence says of it)."""
    os.mkfifo(tmp_path / "pipe.yaml")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "socket.yaml"))
    listening.close()
    (tmp_path / "large.yaml").write_text("#" * (MOST_CHARACTERS + 1))
    (tmp_path / "keys.yaml").write_text("".join(f"key{number}: 1\n" for number in range(100_000)))
    (tmp_path / "line.yaml").write_text("a: " + "!" * MOST_IN_A_LINE)
    with (tmp_path / "sparse.yaml").open("wb") as file:
        file.truncate(2**40)
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    special = "it is a pipe, a socket or a device"
    large = f"it has more than {MOST_CHARACTERS:,} characters"
    return {
        "pipe": (str(tmp_path / "pipe.yaml"), special),
        "socket": (str(tmp_path / "socket.yaml"), "cannot be read"),
        "device": ("/dev/zero", special),
        "large": (str(tmp_path / "large.yaml"), large),
        "100,000 keys": (str(tmp_path / "keys.yaml"), large),
        "long line": (str(tmp_path / "line.yaml"), "a line has more than 65,536 characters"),
        "a terabyte": (str(tmp_path / "sparse.yaml"), large),
        "zero byte": ("a\0b.yaml", "no file can have this name"),
        "half a character": ("a\ud800.yaml", "no file can have this name"),
        "link to itself": (str(tmp_path / "loop.yaml"), "symbolic links"),
    }


KINDS = (
    "pipe", "socket", "device", "large", "100,000 keys", "long line", "a terabyte",
    "zero byte", "half a character", "link to itself",
)  # fmt: skip
NO_FILES = [kind for kind in KINDS if kind not in ("large", "100,000 keys", "long line")]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_of_a_config(kind: str, unreadable: dict[str, tuple[str, str]]) -> None:
    path, expected = unreadable[kind]
    assert expected in refusal(path)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "half a character"])
def test_a_parent_that_is_no_file_of_a_config(
    kind: str, unreadable: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    path, expected = unreadable[kind]
    child = tmp_path / "child.yaml"
    child.write_text(f'extends: "{path}"\n'.replace("\0", "\\0"))
    found = refusal(child)
    assert expected in found
    assert f"({child} extends " in found


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize(
    "read",
    [from_hf, read_layout_file, load_hardware, load_calibration],
    ids=["Hugging Face", "layout", "hardware", "calibration"],
)
def test_no_reader_waits_for_what_is_no_file(
    read: Any, kind: str, unreadable: dict[str, tuple[str, str]]
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(unreadable[kind][0])
    assert len(caught.value.problems) == 1


def test_a_file_that_grew_is_read_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("x" * 10)
    assert read_text_file(path, most=10) == "x" * 10
    with pytest.raises(OSError, match="it has more than 9 characters"):
        read_text_file(path, most=9)


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("data.num_microbatches", LARGEST_NUMBER + 1, "it must be at most 9007199254740992"),
        ("data.base_batch_size", 10**59, "it must be at most"),
        ("data.base_batch_size", 10**5000, "is a number of more than 60 digits"),
        ("data.base_batch_size", -(10**5000), "is a number of more than 60 digits"),
        ("data.base_batch_size", 1e300, "base_batch_size is 1e+300; write a whole number"),
        ("runtime.learning_rate", 10**400, "learning_rate is a number of more than 60 digits"),
        ("runtime.learning_rate", float("inf"), "write a finite number"),
        ("runtime.learning_rate", float("nan"), "write a finite number"),
        ("model.special_token_ids.images", 2**64, "it must be at most"),
        ("model.module_architectures.images.num_channels", 2**31, "it must be at most 2147483647"),
        ("model.module_architectures.images.merge_size", 64, "no multiple of 64 x 64"),
        ("model.module_architectures.images.hidden_size", 10**60, "it must be at most"),
        ("model.module_architectures.images.hidden_size", int("9" * 4000), "more than 60 digits"),
        ("k" * 100_000, 1, "unknown key kkk"),
    ],
    ids=lambda value: value[:50] if isinstance(value, str) else "number",
)
def test_numbers_that_nothing_has(path: str, value: object, expected: str) -> None:
    sentence = only(problems(put(sections(), path, value))).sentence
    assert expected in sentence
    assert len(sentence) < 400


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


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("value", [LARGEST_NUMBER, LARGEST_SIZE])
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
