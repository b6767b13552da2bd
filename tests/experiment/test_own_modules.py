"""Encoders of the user's: trained, proven and stepped through; what breaks the rules is named."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import mimokit
from mimokit.cluster import EngineCluster, RankError
from mimokit.config import ConfigError, ExperimentConfig
from mimokit.config.checked_code import checked_code
from mimokit.experiment import Oracle, Stepper, compute_oracle, train, verify
from tests.cli.call import call
from tests.evaluations import QUICK
from tests.layouts import digits_config
from tests.layouts_apart import apart_multimodal_config, decoded_config, with_adapter
from tests.layouts_experts import BALANCED
from tests.layouts_multimodal import LANGUAGE
from tests.rows import rows

PAGE = Path(__file__).parents[2] / "docs" / "own_modules.md"
EXAMPLE = "tests.experiment.own_encoder:PatchEncoder"
STEPS = 2


def _config(
    encoder: tuple[int, int], language: tuple[int, int], builder: str | None = EXAMPLE
) -> ExperimentConfig:
    config = digits_config(encoder, language)
    config.model.module_architectures["images"].builder = builder
    return config


def _like_the_example(architecture: Any, groups: Any) -> Any:
    from tests.experiment.own_encoder import PatchEncoder

    return PatchEncoder(architecture, groups)


def _but(change: Callable[[Any], object]) -> Callable[[Any, Any], Any]:
    """Return what builds the encoder of the example, changed."""

    def build(architecture: Any, groups: Any) -> Any:
        encoder = _like_the_example(architecture, groups)
        change(encoder)
        return encoder

    return build


_partly_frozen = _but(lambda encoder: encoder.up.weight.requires_grad_(False))
_half_marked = _but(lambda encoder: delattr(encoder.up.weight, "partition_dim"))
_unmarked = _but(lambda encoder: setattr(encoder.up.weight, "tensor_model_parallel", False))
_cut_elsewhere = _but(lambda encoder: setattr(encoder.down.weight, "partition_dim", 0))
_too_few_rows = _but(
    lambda encoder: encoder.register_forward_hook(lambda module, given, output: output[:, 1:])
)


@_but
def _not_summed(encoder: Any) -> None:
    """Give the encoder a factor whose gradient every rank has in part."""
    import torch

    encoder.factor = torch.nn.Parameter(torch.ones(()))
    encoder.down.register_forward_pre_hook(lambda module, given: (given[0] * encoder.factor,))


@pytest.fixture(scope="module")
def oracle(shared_cluster: Any) -> Oracle:
    return compute_oracle(shared_cluster.get(), _config((1, 2), (1, 2)), steps=STEPS)


def test_the_page_shows_what_the_tests_run() -> None:
    found = re.search(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    assert found[1] == Path(__file__).with_name("own_encoder.py").read_text()


@pytest.mark.parametrize(
    "config",
    [
        _config((1, 2), (1, 2)),
        _config((2, 1), (1, 2)),
        _config((2, 1), (1, 2)).with_layout(
            "heterogeneous",
            images={"tensor_parallel": 2, "data_parallel": 1},
            language_module={"tensor_parallel": 1, "data_parallel": 2},
        ),
    ],
    ids=["TP1", "TP2-colocated", "TP2-heterogeneous"],
)
def test_it_computes_what_one_process_computes(
    config: ExperimentConfig, oracle: Oracle, cluster: EngineCluster
) -> None:
    report = verify(cluster, config, steps=STEPS, oracle=oracle)
    assert report.passed, report.verdict


def _in_full_shards(config: ExperimentConfig) -> ExperimentConfig:
    for sizes in config.model.module_parallelisms.values():
        sizes.use_megatron_fsdp = True
    return config


def test_its_weights_are_in_full_shards(cluster: EngineCluster) -> None:
    config = _in_full_shards(_config((1, 4), (1, 4)))
    config.data.modality_frames = {"images": [8, 8, 1, 2, 0, 0, 1, 5]}  # a replica has none
    modules = {"images": _partly_frozen, "language_module": _language_model}
    report = verify(cluster, config, steps=STEPS, modules=modules)
    assert report.passed, report.verdict
    config.runtime.patch_type = ["vit_frame_parallel"]
    assert verify(cluster, config, steps=1).passed


def _blocks(network: Any) -> Any:
    """Return the class of an encoder: Megatron's layers behind patches."""
    import torch

    from mimokit.engine import TransformerBlock

    class Blocks(torch.nn.Module):
        def __init__(self, config: Any, scale: int, layer: Any, pg_collection: Any) -> None:
            super().__init__()
            self.config, self.size = config, network.patch_size * scale
            pixels = network.num_channels * self.size**2
            self.embedding = torch.nn.Linear(pixels, network.hidden_size)
            self.layers = TransformerBlock(config, layer, pg_collection=pg_collection)

        def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
            side = pixel_values.shape[-2:]
            images = pixel_values.reshape(-1, network.num_channels, *side)
            patches = torch.nn.functional.unfold(images, self.size, stride=self.size)
            hidden = self.embedding(patches.transpose(1, 2)).transpose(0, 1).contiguous()
            return self.layers(hidden, None).transpose(0, 1)

    return Blocks


def _modality_of_blocks(config: ExperimentConfig, **scales: int) -> Any:
    """Return the spec of a whole modality: Megatron's layers behind patches, and its projector.

    Args:
        scales: encoder -> how many times as wide and high as the others' its images are.
    """
    import torch
    from megatron.core.models.vision.vit_layer_specs import get_vit_layer_with_local_spec
    from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.mlp import MLPSubmodules

    from mimokit import engine
    from mimokit.engine.megatron import TransformerConfig

    network = config.model.get_architecture("images")
    width = config.model.get_architecture("language_module").hidden_size
    sizes = {"num_layers": 2, "num_attention_heads": 4, "use_cpu_initialization": True}
    off = dict.fromkeys(
        ("masked_softmax_fusion", "bias_dropout_fusion", "bias_activation_fusion"), False
    )
    inner, outer = (
        TransformerConfig(
            hidden_size=hidden, hidden_dropout=0.0, attention_dropout=0.0, **sizes, **off
        )
        for hidden in (network.hidden_size, width)
    )

    class SideBySide(engine.VisionModalitySubmodules):
        def combine_embeddings(self, embeddings: list[torch.Tensor]) -> torch.Tensor:
            return torch.cat(embeddings, dim=-1)

    linear = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
    projector = {"config": outer, "submodules": linear, "projector_type": "mlp", "tp_group": None}
    projector["input_size"] = network.hidden_size * len(scales)
    layer = get_vit_layer_with_local_spec()
    blocks = {"config": inner, "layer": layer, "pg_collection": None}
    return engine.ModuleSpec(
        SideBySide,
        submodules={
            "encoders": {
                name: engine.ModuleSpec(_blocks(network), params={**blocks, "scale": scale})
                for name, scale in scales.items()
            },
            "input_projections": [engine.ModuleSpec(engine.MultimodalProjector, params=projector)],
        },
    )


def _images_in_two_sizes(config: ExperimentConfig) -> Any:
    """Return strips of digits whose images are those of two encoders, `plain` and `large`."""
    from mimokit.engine.data.sources import default_data

    data = default_data(config)
    collate = data.collate_fn

    def in_two_sizes(samples: list[Any]) -> dict[str, Any]:
        batch: dict[str, Any] = collate(samples)
        images = batch["modality_inputs"]["images"]
        plain = images.pop("vit_encoder")["pixel_values"]
        large = plain.repeat_interleave(2, -1).repeat_interleave(2, -2)
        images |= {"plain": {"pixel_values": plain}, "large": {"pixel_values": large}}
        return batch

    return replace(data, collate_fn=in_two_sizes)


@pytest.mark.parametrize(
    ("scales", "data"),
    [
        pytest.param({"plain": 1}, None, id="one encoder"),
        pytest.param({"plain": 1, "large": 2}, _images_in_two_sizes, id="two encoders"),
    ],
)
def test_layers_of_a_whole_modality_are_in_full_shards(
    scales: dict[str, int], data: Any, cluster: EngineCluster
) -> None:
    """Also on a replica that has no images, on shared ranks and on separate ones."""
    together = _in_full_shards(_config((1, 4), (1, 4), None))
    together.data.modality_frames = {"images": [8, 8, 1, 2, 0, 0, 1, 5]}
    one = {"data_parallel": 4, "tensor_parallel": 1}
    apart = together.with_layout("heterogeneous", images=one, language_module=one)
    modules = {"images": _modality_of_blocks(together, **scales)}
    for config in (together, apart):
        report = verify(cluster, config, data, steps=STEPS, modules=modules)
        assert report.passed, report.verdict


def _mixture(architecture: Any, groups: Any, own: bool = False) -> Any:
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.vision.vit_layer_specs import get_vit_layer_with_local_spec

    from mimokit.engine import experts_spec, layer_config

    layer = get_vit_layer_with_local_spec()
    megatrons = get_gpt_layer_local_spec(num_experts=architecture.num_moe_experts).submodules.mlp
    layer.submodules.mlp = megatrons if own else experts_spec(architecture)
    return _blocks(architecture)(layer_config(architecture, groups), 1, layer, groups)


def _with_mixture(dispatcher: str | None = None) -> ExperimentConfig:
    """Return images, of which a replica has none, that balanced experts of two ranks read."""
    config = _config((1, 4), (2, 2), None)
    config.data.modality_frames = {"images": [8, 8, 1, 2, 0, 0, 1, 5]}
    experts = {"num_moe_experts": 4, "moe_ffn_hidden_size": 24, **BALANCED}
    networks, sizes = config.model.module_architectures, config.model.module_parallelisms
    networks["images"] = networks["images"].model_copy(update=experts)
    chosen = {"expert_parallel": 2, "moe_token_dispatcher_type": dispatcher}
    sizes["images"] = sizes["images"].model_copy(update=chosen)
    return config


@pytest.mark.parametrize("dispatcher", [None, "allgather"])
def test_its_experts_are_on_ranks_without_images_too(
    dispatcher: str | None, cluster: EngineCluster
) -> None:
    config = _with_mixture(dispatcher)
    if dispatcher is None:
        sizes = config.model.module_parallelisms
        fields = ("tensor_parallel", "data_parallel", "expert_parallel")
        same = {name: own.model_dump(include={*fields}) for name, own in sizes.items()}
        config = config.with_layout("heterogeneous", **same)
    else:
        config = _in_full_shards(config)
    report = verify(cluster, config, steps=STEPS, modules={"images": _mixture})
    assert report.passed, report.verdict


def test_experts_that_depend_on_the_layout_are_named(cluster: EngineCluster) -> None:
    modules = {"images": partial(_mixture, own=True)}
    with pytest.raises(RankError, match="its Blocks has a TopKRouter, which chooses by the tokens"):
        compute_oracle(cluster, _with_mixture(), steps=1, modules=modules)


def _means(architecture: Any, groups: Any) -> Any:
    """Return an adapter that adds the mean of an item's rows to each of them."""
    import torch

    from mimokit.engine import ColumnParallelLinear, RowParallelLinear, layer_config

    width, config = architecture.hidden_size, layer_config(architecture, groups)
    same = {"config": config, "init_method": config.init_method, "tp_group": groups.tp}
    same |= {"bias": True, "skip_bias_add": False}

    class Means(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = ColumnParallelLinear(width, 4 * width, gather_output=False, **same)
            self.down = RowParallelLinear(4 * width, width, input_is_parallel=True, **same)

        def forward(self, rows: torch.Tensor, grid_thw: torch.Tensor) -> torch.Tensor:
            items = rows.split(grid_thw.prod(1).tolist())
            hidden = torch.cat([rows[:0], *(own + own.mean(0) for own in items)])
            moved: torch.Tensor = self.down(torch.nn.functional.gelu(self.up(hidden)[0]))[0]
            return moved

    return Means()


def test_an_adapter_gets_the_rows_of_items_and_their_grids(cluster: EngineCluster) -> None:
    sizes = {"qwen": (1, 1, 2), LANGUAGE: (1, 1, 1)}
    config = with_adapter(apart_multimodal_config(sizes, 2), (2, 1, 1), "qwen")
    report = verify(cluster, config, steps=1, modules={"adapter": _means})
    assert report.passed, report.verdict
    with pytest.raises(ConfigError, match=r"whole modality\) is refused with modal_type rows"):
        checked_code(config, {"adapter": _modality_of_blocks(_config((1, 1), (1, 1)), plain=1)})


def test_rows_of_a_whole_modality_reach_an_adapter(cluster: EngineCluster) -> None:
    together = _config((1, 2), (1, 2), None)
    together.data.modality_frames = {"images": [8, 8, 1, 2, 0, 0, 1, 5]}
    two = {"data_parallel": 2, "tensor_parallel": 1}
    apart = together.with_layout("heterogeneous", images=two, language_module=two)
    width = together.model.get_architecture(LANGUAGE).hidden_size
    modules = {"images": _modality_of_blocks(together, plain=1)}
    config = with_adapter(apart, (1, 1, 2), hidden_size=width)
    report = verify(cluster, config, steps=1, modules=modules)
    assert report.passed, report.verdict


def _images_encoded(plan: Any, config: ExperimentConfig) -> int:
    from mimokit.engine.run_of_rank import RunOfRank
    from mimokit.engine.steps import exhaust
    from mimokit.engine.training.optimizer_step import prepared, training_step

    images = []
    with prepared(RunOfRank(plan, config)) as state:
        encoder = state.model.modules()["images"].module.encoders["vit_encoder"].module
        encoder.register_forward_pre_hook(
            lambda module, given, named: images.append(len(named["pixel_values"])), with_kwargs=True
        )
        exhaust(training_step(state))
    return sum(images)


def test_replicas_share_its_images(cluster: EngineCluster) -> None:
    """Replicas read 16, 3, 0 and 6 images."""
    config = _config((1, 4), (1, 4))
    config.runtime.patch_type = ["vit_frame_parallel"]
    config.data.modality_frames = {"images": [8, 8, 1, 2, 0, 0, 1, 5]}
    report = verify(cluster, config, steps=STEPS)
    assert report.passed, report.verdict
    assert sorted(cluster.run(_images_encoded, mimokit.plan(config), config)) == [6, 6, 6, 7]


def test_its_parameters_are_those_of_the_user(oracle: Oracle, cluster: EngineCluster) -> None:
    names = [name for name in oracle.steps[0].weights["images"] if "encoders" in name]
    assert {name.rsplit(".", 2)[-2] for name in names} == {"up", "down"}
    ours = compute_oracle(cluster, _config((1, 2), (1, 2), None), steps=1)
    assert abs(ours.losses[0] - oracle.losses[0]) > 1e-4


def _spec_of_the_example(config: ExperimentConfig) -> Any:
    from mimokit.engine import ModuleSpec
    from tests.experiment.own_encoder import PatchEncoder

    class FromSpec(PatchEncoder):
        def __init__(self, architecture: Any, pg_collection: Any) -> None:
            super().__init__(architecture, pg_collection)

    architecture = config.model.get_architecture("images")
    return ModuleSpec(FromSpec, params={"architecture": architecture, "pg_collection": None})


def test_python_and_files_give_the_same(oracle: Oracle, cluster: EngineCluster) -> None:
    config = _config((2, 1), (1, 2), None)
    run = train(cluster, config, modules={"images": _like_the_example}, evaluations=QUICK)
    assert run.result(300).steps["loss"].iloc[0] == pytest.approx(oracle.losses[0], rel=1e-5)
    health = run.health()
    assert health.healthy, health.wrong
    assert health.unplanned == (0, 1)
    with Stepper(cluster, config, modules={"images": _spec_of_the_example(config)}) as stepper:
        while "loss" not in stepper.next().records[0].result:
            pass
        assert stepper.now is not None
        loss = stepper.now.records[0].result["loss"]
    assert loss == pytest.approx(oracle.losses[0], rel=1e-5)


def _not_a_module(architecture: Any, groups: Any) -> Any:
    return architecture


@pytest.mark.parametrize(
    ("builder", "said"),
    [
        (_not_a_module, "'images': its builder returned a ModuleArchitecture; it must return a"),
        (_too_few_rows, r"'images': its PatchEncoder returned a tensor of \[\d+, 3, 32\]; it must"),
        (
            _half_marked,
            "'images': its parameter up.weight is marked as cut .* partition_dim is None",
        ),
    ],
)
def test_what_breaks_the_rules_stops_training(
    builder: Any, said: str, cluster: EngineCluster
) -> None:
    run = train(cluster, _config((2, 1), (1, 2), None), modules={"images": builder})
    with pytest.raises(RankError, match=said):
        run.result(300)


@pytest.mark.parametrize(
    ("builder", "said"),
    [
        (_unmarked, r"up.weight: rank 0 holds \[64, 16\] of \[128, 16\], but it is not marked"),
        (_cut_elsewhere, r"down.weight: .* \[32, 128\], but it is marked as cut along dimension 0"),
    ],
)
def test_the_proof_names_a_parameter_without_the_right_mark(
    builder: Any, said: str, cluster: EngineCluster
) -> None:
    with pytest.raises(RankError, match=r"Module .images., parameter \S+" + said):
        verify(cluster, _config((2, 1), (1, 2), None), steps=1, modules={"images": builder})


def test_the_proof_names_a_parameter_whose_gradient_is_not_summed(cluster: EngineCluster) -> None:
    config = _config((2, 1), (1, 2), None)
    report = verify(cluster, config, steps=1, modules={"images": _not_summed})
    assert not report.passed
    assert "factor of module 'images'" in report.verdict
    assert report.to_json()["worst_parameters"]["images"].endswith("factor")


@rows(
    "builder, said",
    ("patches", "builder is patches, but it must be package.module:function"),
    ("no_such_package.here:build", "no_such_package.here cannot be imported (ModuleNotFound"),
    ("tests.layouts:no_such", "builder is tests.layouts:no_such, but tests.layouts has no no_such"),
    ("tests.layouts:IMAGE_TOKEN", "its builder is a int; it must be a ModuleSpec or a function"),
    ("tests.invariance:oracle_of.__name__", "its builder is a str"),
    ("tests.planted:_kept", "its builder is _kept, which cannot be called with two"),
)
def test_a_builder_that_is_none_is_named(builder: str, said: str, tmp_path: Path) -> None:
    file = _config((1, 1), (1, 1), builder).save(tmp_path / "own.yaml")
    result = call("verify", file)
    assert result.exit_code == 2
    assert result.stderr.startswith("Module 'images': ")
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def test_a_builder_is_found_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "encoder_of_this_test.py").write_text("def build(architecture, groups): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/nowhere"])
    checked_code(_config((1, 1), (1, 1), "encoder_of_this_test:build"))


def _with(config: ExperimentConfig, path: str, value: object) -> ExperimentConfig:
    *before, last = path.split(".")
    owner: Any = config
    for name in before:
        owner = owner[name] if isinstance(owner, dict) else getattr(owner, name)
    setattr(owner, last, value)
    return config


def test_a_spec_of_a_whole_modality_shares_no_images_and_no_experts() -> None:
    from types import SimpleNamespace

    shares_images = _with(_config((1, 1), (1, 1)), "runtime.patch_type", ["vit_frame_parallel"])
    spec = SimpleNamespace(module=object, params={}, submodules={"encoders": {"one": None}})
    for config in (shares_images, _with_mixture()):
        with pytest.raises(ConfigError, match="Module 'images': builder \\(of a whole modality"):
            checked_code(config, {"images": spec})


def test_experts_have_whole_sequences() -> None:
    config = _with_mixture()
    for axis in ("tensor", "context"):
        _with(config, f"model.module_parallelisms.images.{axis}_parallel", 2)
    with pytest.raises(ConfigError) as refused:
        checked_code(config, {"images": _mixture})
    assert [each.sentence.split(";")[0] for each in refused.value.problems] == [
        f"Module 'images': builder (with experts) is refused with {axis}_parallel 2"
        for axis in ("tensor", "context")
    ]


def test_a_name_that_is_not_a_module_is_rejected() -> None:
    said = "^Module 'image': it does not exist; did you mean images"
    with pytest.raises(ConfigError, match=said):
        checked_code(_config((1, 1), (1, 1)), {"image": _like_the_example})


def _language_model(architecture: Any, groups: Any, vocab_size: int = 0) -> Any:
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

    from mimokit.engine import GPTModel, layer_config

    return GPTModel(
        config=layer_config(architecture, groups),
        transformer_layer_spec=get_gpt_layer_local_spec(),
        vocab_size=vocab_size or architecture.vocab_size,
        max_sequence_length=architecture.seq_length,
        position_embedding_type="rope",
        pg_collection=groups,
    )


def _linear(architecture: Any, groups: Any) -> Any:
    import torch

    return torch.nn.Linear(1, 1)


@pytest.fixture(scope="module")
def language_oracle(shared_cluster: Any) -> Oracle:
    config = _config((1, 2), (1, 2))
    modules = {"language_module": _language_model}
    return compute_oracle(shared_cluster.get(), config, steps=STEPS, modules=modules)


@pytest.mark.parametrize(
    "config",
    [
        digits_config((1, 2), (2, 1)),
        digits_config((1, 1), (1, 1)).with_layout(
            "heterogeneous",
            images={"data_parallel": 1},
            language_module={"tensor_parallel": 2, "data_parallel": 1},
        ),
    ],
    ids=["colocated", "heterogeneous"],
)
def test_a_language_model_computes_what_one_process_computes(
    config: ExperimentConfig, language_oracle: Oracle, cluster: EngineCluster
) -> None:
    config.model.module_architectures["images"].builder = EXAMPLE
    modules = {"language_module": _language_model}
    report = verify(cluster, config, steps=STEPS, oracle=language_oracle, modules=modules)
    assert report.passed, report.verdict


@pytest.mark.parametrize(
    ("builder", "said"),
    [
        (_linear, "'language_module': its builder returned a Linear; the language model must"),
        (partial(_language_model, vocab_size=32), "with hidden_size 64 and vocab_size 32; in the"),
    ],
)
def test_a_language_model_of_another_kind_is_named(
    builder: Any, said: str, cluster: EngineCluster
) -> None:
    config = digits_config((1, 1), (1, 1))
    with pytest.raises(RankError, match=said):
        compute_oracle(cluster, config, steps=1, modules={"language_module": builder})


def test_a_builder_behind_the_language_model_is_rejected() -> None:
    one = (1, 1, 1)
    config = decoded_config({"images": one, "language_module": one, "future": one})
    with pytest.raises(ConfigError, match=r"behind the language module\) is refused with builder"):
        checked_code(config, {"future": _language_model})
