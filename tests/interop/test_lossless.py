"""An exported experiment loses nothing: loaded again it predicts the same to the last digit."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mimokit.architecture import (
    AudioEncoder,
    LanguageModel,
    Model,
    MultimodalModel,
    VisionEncoder,
    load_model,
    model_names,
)
from mimokit.architecture.from_config import branch_of_config, model_of_config
from mimokit.config import ConfigError, ExperimentConfig, ProjectorArchitecture
from mimokit.config.sizes import ParallelSizes
from mimokit.config_files import load_experiment_config, load_preset
from mimokit.interop import (
    config_of_layout,
    layout_of_config,
    to_bridge,
    to_yaml,
    workload_of_config,
)
from mimokit.interop.experiment import lost_of_layout, lost_of_model, lost_of_workload
from mimokit.layout_search import Constraints, search
from mimokit.prediction import EncoderInput, Layout, Workload, predict
from mimokit.prediction.workload import branches_of, language_of
from tests.rows import rows

WORKLOAD = Workload(4096, 256)


def of_length(model: Model, workload: Workload) -> Workload:
    """Return a workload whose sequences have a learned position for every token."""
    positions = language_of(model).positions or workload.seq_length
    return replace(workload, seq_length=min(workload.seq_length, positions))


TO_A_FILE = 4
"""Of so many found layouts one is read back from a file, since YAML is what takes the time."""


def loaded(text: str, folder: Path) -> ExperimentConfig:
    file = folder / "layout.yaml"
    file.write_text(text, encoding="utf-8")
    return load_experiment_config(file)


def check_same(
    model: Model, layout: Layout, workload: Workload, gpu: str, folder: Path
) -> ExperimentConfig:
    """Export, load and predict; everything is the same as before."""
    config = loaded(to_yaml(layout, workload, model=model), folder)
    check_predicts_the_same(config, model, layout, workload, gpu)
    return config


def check_predicts_the_same(
    config: ExperimentConfig, model: Model, layout: Layout, workload: Workload, gpu: str
) -> None:
    before = predict(model, layout, workload, gpu)
    after = predict(
        model_of_config(config.model), layout_of_config(config), workload_of_config(config), gpu
    )
    assert after.seconds == before.seconds
    assert after.peak_memory == before.peak_memory
    assert after.parts == before.parts
    assert after.utilisation == before.utilisation
    lines = [list(parts.values()) for parts in (before.memory, after.memory)]
    assert lines[0] == lines[1]


@pytest.mark.parametrize(
    ("name", "gpus", "gpu", "mode"),
    [
        ("llama-3-8b", 16, "h100", "homogeneous"),
        ("gpt2", 8, "a100", "homogeneous"),
        ("qwen3-30b-a3b", 32, "h100", "homogeneous"),
        ("deepseek-v3", 512, "b200", "homogeneous"),
        ("llava-1.5-7b", 16, "h100", "heterogeneous"),
        ("qwen2.5-vl-7b", 32, "h100", "colocated"),
        ("qwen3-vl-30b-a3b", 64, "h200", "heterogeneous"),
    ],
)
def test_layouts_that_a_search_found(
    name: str, gpus: int, gpu: str, mode: Any, tmp_path: Path
) -> None:
    model = load_model(name)
    workload = of_length(model, WORKLOAD)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of dimensions that were cut
        found = search(
            model,
            gpus=gpus,
            hardware=gpu,
            workload=workload,
            constraints=Constraints(modes=(mode,)),
        )
    for number, one in enumerate(found.finalists):
        if number % TO_A_FILE == 0:
            check_same(model, one.layout, workload, gpu, tmp_path)
        else:
            config = config_of_layout(one.layout, workload, model=model)
            check_predicts_the_same(config, model, one.layout, workload, gpu)


@rows("precision", "bf16", "fp8")
def test_everything_that_no_search_varies(precision: str, tmp_path: Path) -> None:
    model = load_model("qwen2.5-vl-7b")
    language = model.language.name  # type: ignore[union-attr]
    sizes = ParallelSizes(
        4, 2, 2, data=4, micro_batch=2, recompute=2, instances=2, sequence_parallel=False
    )
    layout = Layout(
        "heterogeneous",
        {
            "images": ParallelSizes(2, data=8, recompute=1, distributed_optimizer=False),
            language: replace(sizes, fully_sharded=True),
        },
    )
    workload = Workload(
        8192, 64, precision, {"images": EncoderInput(1000, 1.7, 1.3)}, frozenset({language})
    )
    config = check_same(model, layout, workload, "h100", tmp_path)
    assert workload_of_config(config).inputs["images"] == EncoderInput(1000, 1.7, 1.3)
    assert workload_of_config(config).frozen == {"language"}


@rows("name", *model_names())
def test_every_shipped_model(name: str) -> None:
    model = load_model(name)
    if isinstance(model, VisionEncoder | AudioEncoder):
        own = load_model("llama-3-8b")
        assert isinstance(own, LanguageModel)
        projector = ProjectorArchitecture(hidden_sizes=[8192])
        network = model.network.model_copy(update={"projector": projector})
        model = MultimodalModel(name, own, (branch_of_config("encoder", network, own.network),))
    language = language_of(model).name
    modules = dict.fromkeys((branch.name for branch in branches_of(model)), ParallelSizes())
    layout = Layout("colocated", {**modules, language: ParallelSizes()})
    # Wherever anything of the model were lost, this would refuse it.
    config = config_of_layout(layout, of_length(model, Workload(4096, 1)), model=model)
    assert model_of_config(config.model).parameters == model.parameters


def test_what_a_file_does_not_need_is_not_in_it() -> None:
    for name in ("llava_7b_colocated", "llava_7b_heterogeneous", "llava_7b_homogeneous"):
        config = load_preset(name)
        back = config_of_layout(
            layout_of_config(config), workload_of_config(config), experiment=config
        )
        assert back.to_mapping() == config.to_mapping()
        assert set(config.to_mapping()) == {"name", "model", "data", "runtime"}


def test_another_step_of_an_experiment_is_written(tmp_path: Path) -> None:
    config = load_preset("llava_7b_heterogeneous")
    workload = replace(
        workload_of_config(config), seq_length=8192, precision="fp8", frozen=frozenset({"images"})
    )
    layout = layout_of_config(config)
    back = loaded(to_yaml(layout, workload, experiment=config), tmp_path)
    assert workload_of_config(back) == workload
    supposed = {"gpu": "b200", "price_per_gpu_hour": 3.5, "software": None}
    written = config_of_layout(layout, workload, experiment=config, supposed=supposed)
    assert written.to_mapping()["prediction"] == {"gpu": "b200", "price_per_gpu_hour": 3.5}


def test_a_loss_would_be_seen() -> None:
    """Planted: what is read back differs in every kind of thing that is compared."""
    config = load_preset("llava_7b_heterogeneous")
    layout, workload = layout_of_config(config), workload_of_config(config)
    model = model_of_config(config.model)
    assert not list(lost_of_layout(config, layout))
    assert not list(lost_of_workload(config, layout, workload, model))
    assert not list(lost_of_model(config, model))
    changed = {name: replace(one, fully_sharded=True) for name, one in layout.modules.items()}
    lost = list(lost_of_layout(config, replace(layout, modules=changed)))
    assert {problem.field for problem in lost} == {"fully_sharded"}
    other = replace(
        workload, precision="fp8", inputs={"images": EncoderInput(7)}, frozen=frozenset({"images"})
    )
    fields = [one.field for one in lost_of_workload(config, layout, other, model)]
    assert fields == ["precision", "frozen", "length"]
    causal = replace(model.branches[0].encoder.net, causal=True)
    branch = replace(model.branches[0], encoder=replace(model.branches[0].encoder, net=causal))
    (problem,) = lost_of_model(config, replace(model, branches=(branch,)))
    assert problem.field == "causal"
    assert "an experiment of its layout cannot state" in problem.sentence


def test_what_no_experiment_can_say_is_refused() -> None:
    model = load_model("llava-1.5-7b")
    own = ParallelSizes(pipeline=2, data=2)
    spread = ParallelSizes(pipeline=2, data=2)
    layout = Layout("homogeneous", {"images": spread, "language": own})
    with pytest.raises(ConfigError, match="pipeline is 2, which an experiment"):
        config_of_layout(layout, Workload(4096, 8), model=model)
    uneven = Layout("homogeneous", dict.fromkeys(layout.modules, ParallelSizes(data=3)))
    with pytest.raises(ConfigError, match="Step: global_batch_size is 8"):
        config_of_layout(uneven, Workload(4096, 8), model=model)


@rows("name, module", ("adapter", "adapter"), ("decoder", "writer"))
def test_adapters_and_decoders_are_written_with_their_graph(
    name: str, module: str, tmp_path: Path
) -> None:
    config = load_experiment_config(f"configs/digits_{name}.yaml")
    model, layout = model_of_config(config.model), layout_of_config(config)
    workload = workload_of_config(config)
    alone = check_same(model, layout, workload, "h100", tmp_path)
    kept = config_of_layout(layout, workload, experiment=config)
    check_predicts_the_same(kept, model, layout, workload, "h100")
    for written in (alone, kept):
        assert written.model.module_topology == config.model.module_topology
    with pytest.raises(ConfigError, match=f"module '{module}' takes what another one computes"):
        to_bridge(layout, workload)
