from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mimokit
from mimokit.config import ConfigError
from mimokit.planning import validate_heterogeneous_batch_config
from tests.planning.layouts import layout, sizes

DIVISORS_OF_12 = st.sampled_from([1, 2, 3, 4, 6, 12])


def test_sizes_per_module() -> None:
    # Trap T18: base 4, language DP 2, encoder DP 8.
    config = layout("colocated", sizes(tp=4, dp=2), 4, 8, images=sizes(dp=8))
    plan = mimokit.plan(config)
    assert plan.batch.samples_per_microbatch == 8
    assert plan.batch.num_microbatches == 8
    found = {name: batch.micro_batch_size for name, batch in plan.batch.modules.items()}
    assert found == {"images": 1, "language": 4}
    assert validate_heterogeneous_batch_config(config.model, config.data) == 8


def test_a_batch_that_is_not_dealt_out_evenly() -> None:
    # Trap T18: base 3, language DP 2, encoder DP 4.
    config = layout("colocated", sizes(tp=2, dp=2), 4, images=sizes(dp=4))
    config.data.base_batch_size = 3
    with pytest.raises(ConfigError, match=r"'images'.*the 6 samples of a micro-batch"):
        validate_heterogeneous_batch_config(config.model, config.data)
    with pytest.raises(ConfigError, match=r"'images'.*the 6 samples of a micro-batch"):
        mimokit.plan(config)


@given(encoder=DIVISORS_OF_12, language=DIVISORS_OF_12, times=st.integers(1, 3))
def test_samples_are_contiguous(encoder: int, language: int, times: int) -> None:
    # Trap T19, by brute force: replica r computes [r * B / dp, (r + 1) * B / dp).
    if max(encoder, language) % min(encoder, language):
        return
    modules = {"images": sizes(12 // encoder, encoder), "language": sizes(12 // language, language)}
    base = times * max(1, encoder // language)
    config = layout("colocated", modules["language"], base, images=modules["images"])
    plan = mimokit.plan(config)
    total = plan.batch.samples_per_microbatch
    assert total == base * language
    fewest = min(encoder, language)
    for name, replicas in (("images", encoder), ("language", language)):
        batch = plan.batch.modules[name]
        assert batch.loads == tuple(range(12))
        for rank in range(12):
            replica = plan.modules[name].coordinates(rank)["dp"]
            width = total // replicas
            assert batch.samples[rank] == (replica * width, (replica + 1) * width)
            # Read at the smaller data parallelism; what is computed lies within what is read.
            start, stop = batch.loaded[rank]
            assert stop - start == total // fewest
            assert start <= batch.samples[rank][0]
            assert batch.samples[rank][1] <= stop
    images, language_batch = plan.batch.modules["images"], plan.batch.modules["language"]
    assert images.loaded == language_batch.loaded


def test_only_the_ends_of_pipelines_read() -> None:
    config = layout(
        "heterogeneous", sizes(tp=2, dp=2, pp=3, offset=8), 2, images=sizes(tp=2, dp=2, pp=2)
    )
    plan = mimokit.plan(config)
    images, language = plan.batch.modules["images"], plan.batch.modules["language"]
    assert images.loads == (0, 1, 2, 3)
    assert language.loads == (8, 9, 10, 11, 16, 17, 18, 19)
    assert dict(images.loaded) == {0: (0, 2), 1: (0, 2), 2: (2, 4), 3: (2, 4)}
    assert language.samples[15] == (2, 4)
    assert 12 not in language.loaded
    assert len(language.samples) == 12
    assert language.loaded[18] == (2, 4)


def test_ranges_are_mappings() -> None:
    plan = mimokit.plan(layout("colocated", sizes(tp=2, dp=1), 2, images=sizes(dp=2)))
    samples = plan.batch.modules["images"].samples
    assert samples == {0: (0, 1), 1: (1, 2)}
    assert samples != {0: (0, 1), 1: (0, 2)}
    assert list(samples) == [0, 1]
    with pytest.raises(KeyError):
        samples[2]


def test_a_plan_counts_its_microbatches_once() -> None:
    """The count of the batch is that of the schedule, and the engine reads no other."""
    plan = mimokit.plan(layout("heterogeneous", sizes(pp=2, offset=1), 2, 6, images=sizes()))
    assert plan.pipeline is not None
    assert plan.batch.num_microbatches == plan.pipeline.schedule.num_microbatches == 6
    engine = Path(mimokit.__file__).parent / "engine"
    reading = {
        file.relative_to(engine).as_posix()
        for file in engine.rglob("*.py")
        if "data.num_microbatches" in file.read_text()
    }
    assert reading == {
        "data/sources.py"
    }  # how often a guess is right, which depends on the data alone
