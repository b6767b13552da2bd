"""Megatron-Bridge Python, out and in."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimokit.architecture.parallel_sizes import ParallelSizes
from mimokit.config import ConfigError
from mimokit.interop import from_bridge, to_bridge
from mimokit.prediction import Layout, Workload
from tests.interop.bridge_stand_in import built, finalized

POWER = st.sampled_from([1, 2, 4, 8])


@st.composite
def apart(draw: Any) -> Layout:
    """Draw a heterogeneous layout as Bridge takes it, one or two encoders."""
    own = ParallelSizes(
        draw(POWER), draw(st.integers(1, 5)), draw(st.integers(1, 4)), draw(POWER),
        draw(st.sampled_from([1, 2])), 2 * draw(POWER), draw(st.integers(1, 4)),
        draw(st.integers(0, 2)), draw(st.integers(1, 3)),
        draw(st.booleans()), draw(st.booleans()), draw(st.booleans()),
    )  # fmt: skip
    modules = {}
    for name in ("images", "sounds")[: draw(st.integers(1, 2))]:
        data = draw(st.sampled_from([1, 2]))
        samples = own.micro_batch * own.data // data
        modules[name] = ParallelSizes(
            draw(POWER), draw(st.integers(1, 3)), data=data, micro_batch=samples,
            recompute=draw(st.integers(0, 2)), instances=draw(st.integers(1, 2)),
        )  # fmt: skip
    return Layout("heterogeneous", {**modules, "language": own})


@given(apart(), st.integers(1, 9), st.sampled_from(["bf16", "fp8"]), st.booleans())
def test_what_goes_out_comes_back(
    layout: Layout, steps: int, precision: str, freezes: bool
) -> None:
    own = layout.modules["language"]
    frozen = frozenset({"images"} if freezes else ())
    rounds = own.pipeline if own.virtual > 1 else 1  # which Megatron-Core takes whole
    samples = own.data * own.micro_batch * steps * rounds
    workload = Workload(4096, samples, precision, frozen=frozen)
    source = to_bridge(layout, workload)
    back = from_bridge(source)
    assert back.layout == layout
    assert list(back.layout.modules) == list(layout.modules)
    assert back.workload == workload
    assert back.notes == ()
    assert built(source) == finalized(layout)


ASIDE = """
TRANSFORMER_OVERRIDES = {"language": {"fp8": "hybrid", "recompute_granularity": "full",
    "recompute_method": "uniform", "recompute_num_layers": 1}, "sounds": {"sequence_parallel": 1}}
"""


def test_what_is_ignored_is_reported() -> None:
    found = from_bridge(WRITTEN_BY_HAND + ASIDE)
    assert found.layout.modules["language"].recompute == 2
    assert "TRANSFORMER_OVERRIDES of 'language': fp8 was ignored." in found.notes
    assert any("'sounds', which is not a module" in note for note in found.notes)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('DDP_OVERRIDES = {"language": {"use_megatron_fsdp": 3}}', "must be True or False"),
        ('TRANSFORMER_OVERRIDES = {"language": {"recompute_granularity": "x"}}', "selective, full"),
        (
            'DDP_OVERRIDES = {"images": {"num_distributed_optimizer_instances": 0}}',
            "a whole number of at least 1",
        ),
        ("PRECISION = 8", "PRECISION is not text"),
        ("FROZEN_MODULES = 'images'", "not a list of names"),
    ],
)
def test_overrides_that_say_nothing(line: str, sentence: str) -> None:
    lines = [WRITTEN_BY_HAND, "SEQ_LENGTH = 9", "GLOBAL_BATCH_SIZE = 8", "MICRO_BATCH_SIZE = 8"]
    with pytest.raises(ConfigError, match=sentence):
        from_bridge("\n".join([*lines, line]))


def test_the_language_module_gets_the_name_that_bridge_wants() -> None:
    modules = {"images": ParallelSizes(data=2), "llava-1.5-7b language": ParallelSizes(2, data=4)}
    source = to_bridge(Layout("heterogeneous", modules), Workload(4096, 8))
    assert list(built(source).module_parallelisms) == ["images", "language"]


@pytest.mark.parametrize(
    ("mode", "encoder", "own", "sentence"),
    [
        ("colocated", ParallelSizes(data=8), ParallelSizes(data=8), "this layout is colocated"),
        ("heterogeneous", ParallelSizes(3), ParallelSizes(), "must be a power of two"),
        ("heterogeneous", ParallelSizes(data=2), ParallelSizes(data=3), "one must divide"),
        ("heterogeneous", ParallelSizes(2, expert=2), ParallelSizes(), "encoders are dense"),
        (
            "heterogeneous",
            ParallelSizes(),
            ParallelSizes(2, 4, expert=4),
            "does not divide the 2 ranks of a pipeline stage",
        ),
    ],
)
def test_what_bridge_refuses_is_refused(
    mode: Any, encoder: ParallelSizes, own: ParallelSizes, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        to_bridge(Layout(mode, {"images": encoder, "language": own}), Workload(4096, 48))


FEW = st.integers(1, 4)


@settings(max_examples=300)
@given(st.tuples(FEW, FEW, FEW, FEW), st.tuples(FEW, FEW, FEW, FEW, FEW))
def test_bridge_takes_what_is_written_and_nothing_else(
    encoder: tuple[int, ...], own: tuple[int, ...]
) -> None:
    """Sizes are tensor, pipeline, expert, data, and the language model's context."""
    images = ParallelSizes(encoder[0], encoder[1], expert=encoder[2], data=encoder[3])
    language = ParallelSizes(own[0], own[1], context=own[4], expert=own[2], data=own[3])
    layout = Layout("heterogeneous", {"images": images, "language": language})
    try:
        source = to_bridge(layout, Workload(4096, 12))
    except ConfigError:
        with pytest.raises((AssertionError, ValueError)):
            finalized(layout)
    else:
        assert built(source) == finalized(layout)


WRITTEN_BY_HAND = """
import os
from megatron.bridge.models.megatron_mimo import megatron_mimo_config as mimo
from megatron.core.models.mimo.config.role import MIMO_LANGUAGE_MODULE_KEY

GPUS = 8
HALF = GPUS // 2

def build():
    raise RuntimeError("this must not run")
    return mimo.MegatronMIMOParallelismConfig(
        module_parallelisms={
            MIMO_LANGUAGE_MODULE_KEY: mimo.ModuleParallelismConfig(
                int(os.environ.get("TP", 4)), data_parallel_size=int(os.getenv("DP", "1")),
            ),
            "images": mimo.ModuleParallelismConfig(
                tensor_model_parallel_size=HALF, data_parallel_size=1, rank_offset=HALF,
            ),
        },
    )

build()
"""


def test_files_that_people_write_are_read_and_not_run() -> None:
    found = from_bridge(WRITTEN_BY_HAND)
    assert found.layout == Layout(
        "heterogeneous", {"images": ParallelSizes(4), "language": ParallelSizes(4)}
    )
    assert found.workload is None
    assert any("defaults" in note for note in found.notes)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("HALF = GPUS // 2", "HALF = half()", "line 7 has 'half()'"),
        ("rank_offset=HALF", "ranks=HALF", "the field ranks, which"),
        ("data_parallel_size=1, ", "", "'images' has no data_parallel_size"),
        ("MIMO_LANGUAGE_MODULE_KEY:", '"llm":', "calls the language module 'language'"),
        ('"images":', "NAME:", "a module whose name is not text"),
        ("data_parallel_size=1,", "data_parallel_size=0,", "it must be positive"),
        ("ModuleParallelismConfig", "Other", "has no dictionaries"),
        ("def build():", "def build(:", "is not Python"),
    ],
)
def test_files_that_cannot_be_read(old: str, new: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        from_bridge(WRITTEN_BY_HAND.replace(old, new))
    assert sentence in str(refused.value)
    assert len(refused.value.problems) == 1


NINES = "9" * 5000
STEP = "SEQ_LENGTH = 9\nGLOBAL_BATCH_SIZE = 8\nMICRO_BATCH_SIZE = 8\n"


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ("TRANSFORMER_OVERRIDES = {[]: 1}", "not a dictionary of modules"),
        ("DDP_OVERRIDES = {'images': {{}: 1}}", "not a dictionary of modules"),
        ("FROZEN_MODULES = {[]: 1}", "not a list of names"),
        (f"SEQ_LENGTH = int('{NINES}')", "where a whole number is read"),
        (f"SEQ_LENGTH = {NINES}", "is not Python"),
        (f"SEQ_LENGTH = 0x{NINES}", "a number above 1,099,511,627,776"),
        (f"SEQ_LENGTH = -0x{NINES}", "where a whole number is read"),
        ("SEQ_LENGTH = " + "1 + " * 3000 + "1", "nested too deeply"),
        ("SEQ_LENGTH = " + "(" * 3000 + "1" + ")" * 3000, "Python"),
        ("A = 2**40\nSEQ_LENGTH = A", "where a whole number is read"),
        ("A = 1099511627776\nSEQ_LENGTH = A * A", "a number above"),
        (
            f"DDP_OVERRIDES = {{'images': {{'num_distributed_optimizer_instances': 0x{NINES}}}}}",
            "too large to show",
        ),
    ],
    ids=range(12),
)
def test_values_that_no_layout_has(more: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        from_bridge(f"{WRITTEN_BY_HAND}\n{STEP}{more}\n")


def test_zero_bytes_are_refused() -> None:
    with pytest.raises(ConfigError, match="Python"):
        from_bridge("A = 1\0")


PARTS = re.findall(r"\w+|\W", f"{WRITTEN_BY_HAND}{ASIDE}{STEP}")
TOKENS = st.sampled_from(
    ["", "None", "True", "[]", "{[]: 1}", "{1: {2: 3}}", "-1", "0", "1.5", "'x'", "(", "\0", "\n",
     f"0x{NINES}", f"int('{NINES}')", "*a", "**b", "lambda: 0", "...", "os.environ.get('A', '3')"]
)  # fmt: skip


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, len(PARTS) - 1), TOKENS), min_size=1, max_size=4))
def test_any_file_is_read_or_refused(changes: list[tuple[int, str]]) -> None:
    parts = list(PARTS)
    for place, token in changes:
        parts[place] = token
    with contextlib.suppress(ConfigError):
        assert from_bridge("".join(parts)).layout.gpus > 0
