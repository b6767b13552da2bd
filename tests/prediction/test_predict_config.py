"""`predict` and `search` take an experiment in any form, and read its prediction section."""

from pathlib import Path
from typing import Any

import pytest

import mimokit
from mimokit.architecture import load_model
from mimokit.architecture.from_config import model_of_config
from mimokit.config import ConfigError, PredictionConfig, StrategyConfig
from mimokit.config.sizes import ParallelSizes
from mimokit.config_files import load_preset
from mimokit.layout_search import Constraints, search
from mimokit.prediction import EncoderInput, Layout, Workload, predict, predict_timeline
from mimokit.prediction.hardware import load_hardware, save_hardware
from mimokit.prediction.task import layout_of_config, workload_of_config
from tests.layouts import digits_config
from tests.rows import rows

PRESET = "llava_7b_heterogeneous"
WORKLOAD = Workload(2048, 64)
SECTION = PredictionConfig(gpu="b200", software="megatron-core", price_per_gpu_hour=4.0)


def by_hand(gpu: str, **options: Any) -> Any:
    config = load_preset(PRESET)
    model = model_of_config(config.model, config.name)
    return predict(model, layout_of_config(config), workload_of_config(config), gpu, **options)


def test_every_form_of_an_experiment_is_predicted_alike(tmp_path: Path) -> None:
    config, file = load_preset(PRESET), tmp_path / "experiment.yaml"
    config.save(file)
    expected = by_hand("a100")
    for source in (config, config.to_mapping(), file, str(file), f"preset:{PRESET}"):
        assert predict(source, gpu="a100") == expected
        assert predict(source, hardware="a100") == expected
    assert mimokit.predict(f"preset:{PRESET}", gpu="a100") == expected


def test_the_gpu_is_a_name_a_file_or_hardware(tmp_path: Path) -> None:
    hardware = load_hardware("h200")
    file = save_hardware(hardware, tmp_path / "mine.json")
    expected = by_hand("h200")
    for gpu in (hardware, file, str(file)):
        assert predict(f"preset:{PRESET}", gpu=gpu) == expected


@rows(
    "precision, says",
    ("bf16", "predicted in bf16; a config that does not say so trains in fp32"),
    ("mxfp8", "predicted in mxfp8; `mimokit run` does not train in mxfp8"),
    ("fp32", "predicted in fp32"),
)
def test_a_prediction_says_in_what_a_run_trains(precision: str, says: str) -> None:
    config = digits_config((1, 2), (2, 1), precision=precision)
    assert predict(config, gpu="b200").conditions() == says


def test_the_prediction_section_holds_unless_an_argument_is_given() -> None:
    config = load_preset(PRESET)
    config.prediction = SECTION
    assert predict(config) == by_hand("b200", software="megatron-core", price_per_gpu_hour=4.0)
    found = predict(config, gpu="h100", software="megatron-bridge", price_per_gpu_hour=1.0)
    assert found == by_hand("h100", software="megatron-bridge", price_per_gpu_hour=1.0)


def test_passes_of_encoders_trade_memory_for_bubbles() -> None:
    """Activations of two of eight micro-batches, for three more times that the pipeline fills."""
    config = digits_config((1, 4), (1, 4), num_microbatches=8)
    staged = config.with_layout("colocated", language_module={"pipeline_parallel": 2})
    flat = config.with_layout("colocated", images={"tensor_parallel": 2})
    for layout, bubbles in ((staged, 3), (flat, 0)):
        whole = predict(layout, gpu="a100")
        layout.runtime.encoder_microbatches = 8
        assert predict(layout, gpu="a100") == whole
        layout.runtime.encoder_microbatches = 2
        found = predict(layout, gpu="a100")
        filled = whole.parts["bubble"]
        assert found.seconds - whole.seconds == pytest.approx(bubbles * filled)
        assert bool(filled) is bool(bubbles)
        held = [
            next(line.bytes for line in each.lines["images"] if "activations" in line.part)
            for each in (whole, found)
        ]
        assert held[0] == pytest.approx(4 * held[1])
        assert found.peak_memory < whole.peak_memory


def test_the_defaults_are_those_of_the_prediction_config() -> None:
    section = PredictionConfig()
    expected = by_hand(section.chosen_gpu, software=section.chosen_software)
    assert predict(f"preset:{PRESET}") == expected
    model, sizes = load_model("llama-3-8b"), ParallelSizes(data=8)
    layout = Layout("homogeneous", {"llama-3-8b": sizes})
    found = search("llama-3-8b", gpus=8, workload=WORKLOAD)
    assert found.task.hardware == load_hardware(section.chosen_gpu)
    assert predict(model, layout, WORKLOAD) == predict(
        model, layout, WORKLOAD, section.chosen_gpu, software=section.chosen_software
    )


def test_a_search_reads_the_prediction_section() -> None:
    config = load_preset(PRESET)
    config.prediction = SECTION
    rules = Constraints(modes=("homogeneous",))
    task = search(config, gpus=8, constraints=rules).task
    assert (task.hardware, task.software.name) == (load_hardware("b200"), "megatron-core")
    assert task.price_per_gpu_hour == 4.0
    given = search(config.to_mapping(), gpus=8, gpu="h200", constraints=rules).task
    assert (given.hardware, given.software) == (load_hardware("h200"), task.software)


def test_an_open_data_parallel_takes_its_size_from_the_world() -> None:
    config = load_preset("llava_7b_homogeneous")
    expected = predict(config)
    ranks = expected.layout.gpus
    content = config.to_mapping()
    for sizes in content["model"]["module_parallelisms"].values():
        sizes.pop("data_parallel", None)
    found = predict(content, world_size=ranks)
    assert (found.layout.gpus, found.seconds) == (ranks, expected.seconds)
    with pytest.raises(ConfigError, match="data_parallel"):
        predict(content)


@rows(
    "strategy, bytes_each",
    ({"name": "diloco"}, 8),  # outer weight and momentum
    ({"name": "diloco", "outer_optimizer": {"name": "sgd", "lr": 1.0}}, 4),
    ({"name": "diloco", "outer_optimizer": {"name": "adam"}}, 12),
    ({"name": "fedavg"}, 0),
)
def test_what_a_strategy_keeps_is_in_the_memory_of_a_rank(
    strategy: dict[str, Any], bytes_each: int
) -> None:
    config = digits_config((1, 2), (2, 1))
    networks = dict(config.model.module_architectures)
    # Without it predictions pad a vocabulary as Megatron does by default, and runs do not.
    exact = {"make_vocab_size_divisible_by": 1}
    networks["language_module"] = networks["language_module"].model_copy(update=exact)
    config.model.module_architectures = networks
    before = predict(config)
    config.strategy = StrategyConfig(replicas=2, **strategy)
    found = predict(config)
    kept = sum(parts.get("strategy", 0) for parts in found.memory.values())
    planned = mimokit.plan(config).to_json()["strategy"]
    assert planned["outer_state_bytes"] == {"0": kept, "1": kept}
    assert kept == bytes_each * planned["parameters"]["0"]
    fewer = {
        name: before.memory[name]["optimizer"] - parts.get("optimizer", 0.0)
        for name, parts in found.memory.items()
    }
    assert found.peak_memory - before.peak_memory == kept - sum(fewer.values())
    assert found.seconds == before.seconds
    assert search(config, gpus=2).task.system.strategy_bytes == bytes_each


@rows(
    "field, precision, bytes_each",
    ("use_megatron_fsdp", "fp32", 4),
    ("use_distributed_optimizer", "bf16", 4),
    ("use_distributed_optimizer", "fp32", 0),  # weights are whole after each step,
)
def test_ranks_with_shards_gather_whole_weights_for_a_strategy(
    field: str, precision: str, bytes_each: int
) -> None:
    config = digits_config((1, 2), (1, 2), precision=precision)
    for sizes in config.model.module_parallelisms.values():
        setattr(sizes, field, True)
    config.strategy = StrategyConfig(replicas=2, name="fedavg")
    kept = sum(parts.get("strategy", 0) for parts in predict(config).memory.values())
    whole = digits_config((1, 2), (1, 2), precision=precision)
    whole.strategy = StrategyConfig(
        replicas=2, name="diloco", outer_optimizer={"name": "sgd", "lr": 1.0}
    )
    outer = sum(parts["strategy"] for parts in predict(whole).memory.values())
    assert kept * 4 == bytes_each * outer


@rows(
    "strategy",
    {"name": "diloco"},
    *(
        {"name": "fedavg", "inner_optimizer": {"name": name}}
        for name in ("adam", "sgd", "rmsprop", "adagrad")
    ),
    {"name": "fedavg", "inner_optimizer": {"name": "sgd", "momentum": 0.9}},
)
def test_the_optimizer_of_replicas_takes_what_torch_keeps_of_it(strategy: dict[str, Any]) -> None:
    """In bf16 next to an fp32 weight; without a strategy these are the 8 bytes of AdamW."""
    config = digits_config((1, 2), (2, 1))
    before = predict(config)
    config.strategy = StrategyConfig(replicas=2, **strategy)
    numbers = numbers_that_torch_keeps(config.strategy)
    for module, parts in predict(config).memory.items():
        wanted = before.memory[module]["optimizer"] * numbers / 2
        assert parts.get("optimizer", 0.0) == pytest.approx(wanted)
    config.runtime.precision = "bf16"
    found, kept = predict(config), 4 + 4 * numbers
    shown = [row for row in found.memory_rows() if row["part"] == "optimizer"]
    assert all(row["numbers"].startswith(f"{kept} ×") for row in shown)


def numbers_that_torch_keeps(strategy: StrategyConfig) -> int:
    import torch

    from mimokit.extras.strategies.nodes.optim import OptimSpec

    inner = strategy.inner_optimizer
    weight = torch.nn.Parameter(torch.ones(5))
    optimizer = (OptimSpec() if inner is None else OptimSpec.from_config(inner)).build([weight])
    weight.grad = torch.ones(5)
    optimizer.step()
    state = optimizer.state[weight].values()
    return sum(isinstance(value, torch.Tensor) and value.shape == (5,) for value in state)


@rows("delay", 0, 1)
def test_replicas_wait_for_exchanges_that_no_step_hides(delay: int) -> None:
    config = digits_config((1, 2), (2, 1))
    given = {"replicas": 2, "name": "sparta", "p_sparta": 1.0, "sparta_interval": 4, "delay": delay}
    config.strategy = StrategyConfig.model_validate(given)
    before = predict(config)
    assert before.exchange_seconds is None
    assert before.exchange_text() == ""
    line = {"bandwidth": "10 Mbit/s", "latency": "1 ms"}
    config.strategy = StrategyConfig.model_validate({**given, "network": line})
    found, exchange_seconds = predict(config), mimokit.plan(config).estimates.exchange_seconds
    assert found.seconds == before.seconds
    assert exchange_seconds is not None
    (each,) = exchange_seconds.values()
    hidden = delay * found.seconds
    assert hidden < each
    assert found.exchange_seconds == pytest.approx((each - hidden) / 4)
    share = found.seconds / (found.seconds + found.exchange_seconds)
    assert f"and compute {share:.1%} of the time" in str(found)


def test_an_exchange_that_steps_hide_costs_nothing() -> None:
    config = digits_config((1, 2), (2, 1))
    line = {"bandwidth": "1000 Gbit/s"}
    strategy = {"name": "sparta", "sparta_interval": 40, "delay": 9}
    config.strategy = StrategyConfig.model_validate({**strategy, "replicas": 2, "network": line})
    assert predict(config).exchange_seconds == 0


def test_a_timeline_takes_the_same() -> None:
    found = predict_timeline(f"preset:{PRESET}", gpu="h100")
    assert found is not None
    assert found.seconds == predict(f"preset:{PRESET}", gpu="h100").seconds


@rows("mode", "homogeneous", "colocated", "heterogeneous")
def test_the_order_of_modules_does_not_matter(mode: Any) -> None:
    """The layout names its language module, and encoders are found by their names."""
    model = model_of_config(load_preset("three_encoders_7b_heterogeneous").model, "three")
    names = [branch.name for branch in model.branches]  # type: ignore[union-attr]
    own = ParallelSizes(tensor=2, pipeline=2, data=2)
    chosen = {
        "homogeneous": [ParallelSizes(tensor=2, data=2)] * 3,
        "colocated": [ParallelSizes(data=8), ParallelSizes(2, data=4), ParallelSizes(4, data=2)],
        "heterogeneous": [ParallelSizes(data=4), ParallelSizes(2, data=2), ParallelSizes(data=2)],
    }[mode]
    sizes = dict(zip(names, chosen, strict=True))
    language = model.language.name  # type: ignore[union-attr]
    inputs = {name: EncoderInput(100 * (n + 1)) for n, name in enumerate(names)}
    workload = Workload(2048, 64, inputs=inputs)
    last = Layout(mode, {**sizes, language: own})
    assert last.language == language
    turned = {name: last.modules[name] for name in reversed(last.modules)}
    first = Layout(mode, turned, language)
    one, other = (predict(model, layout, workload) for layout in (last, first))
    assert (one.seconds, one.parts, one.lines) == (other.seconds, other.parts, other.lines)
    drawn = [predict_timeline(model, layout, workload) for layout in (last, first)]
    assert drawn[0] is not None
    assert drawn[0] == drawn[1]
