"""`ModuleBuild`: a module is built from it alone."""

import pytest
import torch

from mimokit.config import ModuleArchitecture, RopeScaling
from mimokit.planning.execution import ModuleExecution
from tests.layouts import digits_config
from tests.rows import rows

NETWORK = {"num_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "vocab_size": 0}
IMAGES = ModuleArchitecture(**NETWORK, seq_length=4, image_size=8, patch_size=4)
LANGUAGE = ModuleArchitecture(**{**NETWORK, "vocab_size": 32, "hidden_size": 8}, seq_length=16)


def _builders():
    """Return module -> (its build, by hand; the function of its spec)."""
    from mimokit.engine.models.language import text_decoder_spec
    from mimokit.engine.models.specs import encoder_spec, language_spec
    from mimokit.engine.models.transformer import ModuleBuild

    execution = ModuleExecution().resized(tensor=2, data=3)
    return {
        "images": (ModuleBuild("images", execution, IMAGES, LANGUAGE, 7), encoder_spec),
        "language": (ModuleBuild("language", execution, LANGUAGE, LANGUAGE, 7), language_spec),
        "behind": (ModuleBuild("behind", execution, LANGUAGE, LANGUAGE, 7), text_decoder_spec),
    }


def _configs(spec):
    """Return every configuration of Megatron in a spec."""
    configs = [spec.params["config"]] if "config" in spec.params else []
    inside = spec.submodules.values() if isinstance(spec.submodules, dict) else []
    for value in inside:
        for part in value.values() if isinstance(value, dict) else value:
            configs += _configs(part)
    return configs


def test_the_specs_of_all_modules_follow_from_hand_written_builds() -> None:
    for build, spec_of in _builders().values():
        configs = _configs(spec_of(build))
        assert len(configs) == (2 if build.name == "images" else 1), "an encoder has a projector"
        for config in configs:
            assert config.tensor_model_parallel_size == 2
            assert (config.params_dtype, config.bf16, config.fp16) == (torch.float32, False, False)
            assert not config.sequence_parallel


def test_dtypes_and_the_cut_along_the_sequence_come_from_the_execution() -> None:
    from dataclasses import replace

    for build, spec_of in _builders().values():
        execution = replace(build.execution, weights="bf16").resized(sequence_parallel=True)
        configs = _configs(spec_of(replace(build, execution=execution)))
        assert all(config.params_dtype is torch.bfloat16 and config.bf16 for config in configs)
        cut = [config.sequence_parallel for config in configs]
        assert cut == [True, False][: len(cut)], "the projector's rows are whole"


def test_attention_is_of_our_own_only_where_ranks_share_sequences(monkeypatch) -> None:
    from dataclasses import replace

    from mimokit.engine.megatron import AttnMaskType
    from mimokit.engine.megatron.available_kernels import FusedKernels
    from mimokit.engine.models import fusions, transformer
    from mimokit.engine.models.attention import SequenceAttention

    (build, _), *_ = _builders().values()

    def attention(mask_type=AttnMaskType.causal, context=1, **execution):
        execution = replace(build.execution, **execution).resized(context=context)
        changed = replace(build, execution=execution)
        spec = transformer.layer_spec(changed, mask_type)
        return spec.submodules.self_attention.submodules.core_attention

    whole = attention()
    assert whole.__name__ == "DotProductAttention", "Megatron's, as in the oracle"
    assert attention(context=2) is attention(samples_in_row=True) is SequenceAttention
    fused = type("Fused", (), {})
    monkeypatch.setattr(fusions, "fused_kernels", lambda: FusedKernels(attention=fused))
    assert attention() is whole
    assert attention(context=2, weights="bf16") is fused
    assert attention(context=2) is SequenceAttention
    padded = attention(AttnMaskType.padding, context=2, weights="bf16")
    assert padded is attention(samples_in_row=True, weights="bf16") is SequenceAttention


def _reduction(execution):
    from mimokit.engine.parallel.data_parallel import data_parallel_config

    return data_parallel_config(execution)


def test_gradients_are_reduced_as_the_execution_says() -> None:
    config = _reduction(ModuleExecution())
    assert config.grad_reduce_in_fp32
    assert not config.use_distributed_optimizer
    execution = ModuleExecution(gradients="bf16").resized(distributed_optimizer=True, instances=2)
    config = _reduction(execution)
    assert not config.grad_reduce_in_fp32
    assert config.use_distributed_optimizer
    assert config.num_distributed_optimizer_instances == 2


def test_a_builder_of_the_user_finds_the_execution_in_its_groups() -> None:
    from mimokit.engine import ProcessGroupCollection, layer_config
    from mimokit.engine.models.own_modules import built_by_user

    (build, _), *_ = _builders().values()
    seen = []

    def builder(architecture, groups):
        seen.append(layer_config(architecture, groups))
        return torch.nn.Identity()

    from dataclasses import replace

    execution = replace(build.execution, weights="bf16")
    built_by_user(replace(build, builder=builder, execution=execution), ProcessGroupCollection())
    (config,) = seen
    assert (config.tensor_model_parallel_size, config.params_dtype) == (2, torch.bfloat16)
    with pytest.raises(ValueError, match="layer_config was given a ProcessGroupCollection; give"):
        layer_config(IMAGES, ProcessGroupCollection())


def test_a_plan_and_not_the_config_decides_what_is_built(cluster) -> None:
    """The config is changed after planning; ranks build what was planned."""
    import mimokit

    config = digits_config((1, 2), (2, 1))
    plan = mimokit.plan(config)
    for sizes in config.model.module_parallelisms.values():
        sizes.tensor_parallel = 1
        sizes.data_parallel = 2
    assert (
        cluster.run(_tensor_parallel, plan, config, world_size=2)
        == [{"images": 1, "language_module": 2}] * 2
    )


def _tensor_parallel(plan, config):
    from mimokit.engine.models.specs import multimodal_provider

    model = multimodal_provider(config.model, plan, 7).provide(plan, wrap=False).model
    (encoder,) = model.modality_submodules["images"].encoders.values()
    sizes = {"images": encoder.config, "language_module": model.language_model.config}
    return {name: config.tensor_model_parallel_size for name, config in sizes.items()}


@rows("scaling", "linear", "llama3", "yarn")
def test_positions_of_a_text_decoder_are_those_of_its_network(scaling) -> None:
    from dataclasses import replace

    stretched = RopeScaling(rope_type=scaling, factor=4.0, original_max_position_embeddings=8)
    network = LANGUAGE.model_copy(update={"rotary_base": 77, "rope_scaling": stretched})
    _, *builders = _builders().values()
    language, behind = (spec_of(replace(b, architecture=network)).params for b, spec_of in builders)
    assert behind["rotary"] == language["rotary"]
    assert (behind["rotary"].base, behind["rotary"].scaling) == (77, stretched)
    for field in ("position_embedding_type", "max_sequence_length"):
        assert behind[field] == language[field]


def test_the_projector_of_an_encoder_in_chunks_is_whole() -> None:
    """It is described with the layers of the language model, which chunks need not divide."""
    from mimokit.engine.models.specs import encoder_spec
    from mimokit.engine.models.transformer import ModuleBuild

    execution = ModuleExecution().resized(pipeline=2, virtual=2)
    images, language = (net.model_copy(update={"num_layers": n})
                        for net, n in ((IMAGES, 4), (LANGUAGE, 3)))  # fmt: skip
    encoder, projector = _configs(encoder_spec(ModuleBuild("i", execution, images, language, 7)))
    assert encoder.virtual_pipeline_model_parallel_size == 2
    assert projector.virtual_pipeline_model_parallel_size is None
