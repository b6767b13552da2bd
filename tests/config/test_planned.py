"""Fields of networks and sizes: checked against each other, not written unless they are said."""

from __future__ import annotations

from typing import Any

import pytest

import mimokit
from mimokit.config import ConfigError, check_runnable
from mimokit.config.layer_architecture import LayerArchitecture
from mimokit.config.parallelism import ModuleParallelismConfig
from tests.config.sections import load, network, only, problems, put, sections
from tests.layouts_apart import decoded_config

LANGUAGE = "language_module"
SIZES = "model.module_parallelisms"
NETWORKS = "model.module_architectures"
EXPERTS = {"num_moe_experts": 8}
SHARED = {"moe_shared_expert_intermediate_size": 8, "add_bias_linear": False}
LATENT = {
    "multi_latent_attention": True,
    "kv_lora_rank": 8,
    "qk_head_dim": 8,
    "qk_pos_emb_head_dim": 4,
    "v_head_dim": 8,
}
LEARNED = {"position_embedding_type": "learned_absolute"}
INTERPOLATED = {"position_embedding_type": "interpolated"}
FIRST = {"rank_offset": 0}
CHUNKED = {"virtual_pipeline_model_parallel_size": 2}
PIPELINE = {"pipeline_parallel": 2, "data_parallel": 1, "rank_offset": 1}


def with_network(module: str, **fields: Any) -> dict[str, Any]:
    content = sections()
    content["model"]["module_architectures"][module] |= fields
    if "num_moe_experts" in fields:
        content["model"]["module_parallelisms"][module]["sequence_parallel"] = True
    return content


def with_sizes(schedule: str = "1f1b", **fields: Any) -> dict[str, Any]:
    if schedule == "1f1b":
        return sections({"data_parallel": 1}, {**PIPELINE, **fields}, schedule)
    return sections({"data_parallel": 4}, {"data_parallel": 4, **fields}, schedule)


def test_a_plan_says_what_runs_reject() -> None:
    content = with_sizes()
    content["runtime"]["precision"] = "nvfp4"
    plan = mimokit.plan(content)
    line = "`mimokit run` rejects this layout: runtime precision nvfp4"
    assert line in " ".join(str(plan).split())
    assert line in plan._repr_html_()
    with pytest.raises(ConfigError) as refused:
        check_runnable(load(content))
    assert plan.to_json()["rejected_by_run"] == str(refused.value).splitlines()


def test_a_plan_that_runs_says_nothing_of_it() -> None:
    plan = mimokit.plan(with_sizes())
    assert "rejects" not in str(plan) + plan._repr_html_()
    assert "rejected_by_run" not in plan.to_json()


def test_nothing_of_them_is_written_unless_it_is_said() -> None:
    text = load(sections()).to_yaml()
    planned = list(LayerArchitecture.model_fields)
    sizes = list(ModuleParallelismConfig.model_fields)[6:]
    for word in (*planned, *sizes, "precision", "prediction"):
        assert f"{word}:" not in text


@pytest.mark.parametrize(
    ("module", "fields", "named"),
    [
        (LANGUAGE, {"num_query_groups": 3}, "does not divide its 8 attention heads"),
        (
            LANGUAGE,
            {"num_attention_heads": 24, "kv_channels": 8, "num_query_groups": 6},
            "4; one must",
        ),
        (LANGUAGE, {"moe_router_topk": 2}, "num_moe_experts is not given"),
        (LANGUAGE, {**EXPERTS, "moe_router_topk": 9}, "fewer than the 9"),
        (LANGUAGE, {**EXPERTS, "moe_shared_expert_gate": True}, "expert_intermediate_size is not"),
        (LANGUAGE, {"moe_z_loss_coeff": 0.1}, "num_moe_experts is not given"),
        (
            LANGUAGE,
            {**EXPERTS, "moe_router_topk": 1, "moe_router_pre_softmax": False},
            "whose weight would be 1",
        ),
        (LANGUAGE, {**EXPERTS, "first_k_dense_replace": 5}, "more than its 4 layers"),
        (
            LANGUAGE,
            {**EXPERTS, "moe_router_enable_expert_bias": True, "moe_router_pre_softmax": True},
            "with moe_router_enable_expert_bias scores are sigmoids",
        ),
        (
            LANGUAGE,
            {**EXPERTS, "moe_router_bias_update_rate": 0.1},
            "but moe_router_enable_expert_bias is not given",
        ),
        (
            LANGUAGE,
            {**EXPERTS, **SHARED, "moe_shared_expert_intermediate_size": 6},
            "tensor_parallel 4",
        ),
        (LANGUAGE, {"v_head_dim": 8}, "multi_latent_attention is not given"),
        (LANGUAGE, {**LATENT, "kv_lora_rank": None}, "multi_latent_attention needs it"),
        (LANGUAGE, {"full_attention_layers": 1}, "window_size is not given"),
        (LANGUAGE, {"window_size": 8, "full_attention_layers": [2, 5]}, "name those of 1 to 4"),
        ("images", LATENT, "multi_latent_attention is true, but it is an encoder, which rotates"),
        (LANGUAGE, {**LATENT, **LEARNED}, "position_embedding_type is learned_absolute, but multi"),
        (LANGUAGE, {**LATENT, "mrope_section": [2, 2, 2]}, "mrope_section is given, but multi_lat"),
        (
            LANGUAGE,
            {**LATENT, "rope_scaling": {"rope_type": "linear"}},
            "stretches positions by the rope_type yarn alone",
        ),
        (LANGUAGE, {**LATENT, "qk_pos_emb_head_dim": 3}, "rotate pairs of dimensions; make it"),
        ("images", {"window_size": 2}, "is a square of patches; choose 1 (1 x 1) or 4"),
        (LANGUAGE, {"max_position_embeddings": 9}, "position_embedding_type is not"),
        (LANGUAGE, {**LEARNED, "rotary_base": 1e6}, "but its positions are learned"),
        (LANGUAGE, {**LEARNED, "mtp_num_layers": 1}, "but its positions are learned"),
        (
            LANGUAGE,
            {**INTERPOLATED, "max_position_embeddings": 9},
            "but the module reads no images",
        ),
        (
            "images",
            {**INTERPOLATED, "max_position_embeddings": 8},
            "table is a square; give a square",
        ),
        ("images", INTERPOLATED, "max_position_embeddings is missing, and an interpolated table"),
        (LANGUAGE, {"mrope_interleaved": True}, "mrope_section is not given; give both or none"),
        ("images", {"rope_scaling": {"rope_type": "linear"}}, "but its positions are learned"),
        (LANGUAGE, {"rope_scaling": {"rope_type": "linear", "factor": 0.5}}, "at least 1"),
        (LANGUAGE, {"activation_func": "relu"}, "choose 'gelu', 'gelu_tanh', 'quick_gelu'"),
        (LANGUAGE, {"init_method": "xavier", "init_std": 0.1}, "takes no standard deviation"),
        (LANGUAGE, {"layernorm_epsilon": 0}, "must be greater than 0"),
        (LANGUAGE, {"frozen": ["encoder"]}, "which encoders alone have"),
        (LANGUAGE, {"pooling_head": True}, "only a vision encoder has it"),
        (LANGUAGE, {"projector": {"hidden_sizes": []}}, "only an encoder has it"),
        ("images", {"mtp_num_layers": 1}, "only the language module has it"),
        ("images", {"mel_bins": 80, "patch_bias": False}, "has mel_bins and so reads sound"),
        ("images", {"normalization": "BatchNorm"}, "choose 'LayerNorm' or 'RMSNorm'"),
        ("images", {"projector": {"hiden_sizes": [1]}}, "did you mean hidden_sizes?"),
        ("images", {**LEARNED, "max_position_embeddings": 3}, "fewer than the 16 positions"),
        (LANGUAGE, {"rope_scaling": {"rope_type": "longer"}}, "rope_type longer; choose linear"),
        (
            LANGUAGE,
            {"rope_scaling": {"rope_type": "longrope", "long_factor": (1.0,) * 4}},
            "short_factor has 0 numbers, but a head has 4 pairs",
        ),
        (
            LANGUAGE,
            {"rope_scaling": {"rope_type": "dynamic"}, "kv_channels": 2},
            "one pair that turns",
        ),
        (LANGUAGE, {"kv_channels": 5}, "rotate pairs of them; make it even"),
        ("images", {"position_embedding_type": "rope", "kv_channels": 6}, "a multiple of 4"),
        (LANGUAGE, {**LEARNED, "max_position_embeddings": 9}, "is 9, fewer than the 128 tokens"),
        (
            "images",
            {"projector": {"normalization": "LayerNorm", "norm_size": 3}},
            "which does not divide the 64 features of a token; choose a divisor",
        ),
        (
            "images",
            {"modal_type": "text", "vocab_size": 1024, "projector": {"deepstack_layers": [1]}},
            "but it reads no images; write projector.deepstack_layers for",
        ),
    ],
)
def test_networks_that_contradict_themselves(
    module: str, fields: dict[str, Any], named: str
) -> None:
    problem = only(problems(with_network(module, **fields)))
    assert named in problem.sentence
    assert problem.module == module
    assert problem.sentence.endswith((".", "?"))


def test_layers_without_a_backward_are_not_recomputed() -> None:
    for module in ("images", LANGUAGE):
        content = put(
            with_network("images", frozen=True), f"{SIZES}.{module}.recompute_granularity", "full"
        )
        if module == LANGUAGE:
            assert problems(content) == ()
        else:
            problem = only(problems(content))
            assert "so that nothing is computed again; leave it out" in problem.sentence


def test_experts_are_shared_out() -> None:
    content = put(with_network(LANGUAGE, num_moe_experts=6), f"{SIZES}.images", {})
    content["model"]["module_parallelisms"]["images"] = {"data_parallel": 4}
    content["model"]["module_parallelisms"][LANGUAGE]["expert_parallel"] = 4
    assert "expert_parallel 4 does not divide" in only(problems(content)).sentence


@pytest.mark.parametrize(
    ("fields", "field", "named"),
    [
        ({"pipeline_parallel": 1, "virtual_pipeline_model_parallel_size": 2}, None, "leave it out"),
        ({"virtual_pipeline_model_parallel_size": 3}, "num_layers", "does not divide"),
        ({"num_distributed_optimizer_instances": 2}, None, "choose a divisor of 1"),
        ({"account_for_loss_in_pipeline_split": True}, None, "both or none"),
        ({"use_megatron_fsdp": True, "use_distributed_optimizer": False}, None, "leave it out"),
        ({"recompute_granularity": "some"}, None, "choose 'selective' or 'full'"),
    ],
)
def test_sizes_that_contradict_themselves(
    fields: dict[str, Any], field: str | None, named: str
) -> None:
    found = problems(with_sizes(**fields))
    assert found
    assert named in found[0].sentence
    assert found[0].field == (field or list(fields)[-1])


def test_gradients_of_weights_are_apart_in_stages_of_one_chunk() -> None:
    content = with_sizes(virtual_pipeline_model_parallel_size=2)
    found = only(problems(put(content, "runtime.pipeline_order", "zb-h1")))
    assert found.field == "pipeline_order"
    assert "stages of 'language_module' have 2 chunks" in found.sentence
    assert problems(put(with_sizes(), "runtime.pipeline_order", "zb-h1")) == ()
    content = sections({**PIPELINE, **CHUNKED, **FIRST}, {**PIPELINE, "rank_offset": 2}, "1f1b")
    found = only(problems(put(content, "runtime.pipeline_order", "zb-h1")))
    assert "stages of 'images' have 2 chunks" in found.sentence


def test_layers_are_dealt_with_both_ends() -> None:
    ends = dict.fromkeys(
        (f"account_for_{end}_in_pipeline_split" for end in ("embedding", "loss")), True
    )
    content = put(with_sizes(**ends), f"{NETWORKS}.{LANGUAGE}.num_layers", 5)
    assert "with both ends there are 7" in only(problems(content)).sentence
    content = put(with_sizes(**ends, pipeline_parallel=4), f"{NETWORKS}.{LANGUAGE}.num_layers", 6)
    assert problems(content) == ()
    content = put(with_sizes(**ends), f"{NETWORKS}.{LANGUAGE}.num_layers", 4)
    assert "divide the 4 layers (num_layers) alone" in only(problems(content)).sentence
    content = put(with_sizes(**ends, pipeline_parallel=4), f"{NETWORKS}.{LANGUAGE}.num_layers", 5)
    assert problems(put(content, f"{NETWORKS}.{LANGUAGE}.mtp_num_layers", 1)) == ()
    found = only(problems(put(content, f"{NETWORKS}.{LANGUAGE}.mtp_num_layers", 5)))
    assert "the last has the loss and the 5 of mtp_num_layers" in found.sentence


def test_encoders_in_a_first_stage_have_what_is_around_them() -> None:
    content = with_sizes("homogeneous", recompute_granularity="full")
    assert problems(content) == ()
    content["model"]["module_parallelisms"]["images"]["recompute_granularity"] = "selective"
    assert "in homogeneous mode it has what" in only(problems(content)).sentence


def test_a_padded_vocabulary_need_not_divide() -> None:
    content = with_network(LANGUAGE, vocab_size=1026)
    assert only(problems(content)).field == "vocab_size"
    assert problems(with_network(LANGUAGE, vocab_size=1026, make_vocab_size_divisible_by=128)) == ()


def test_inner_layers_that_the_language_model_cannot_add() -> None:
    def said(**fields: Any) -> dict[str, Any]:
        return with_network(
            "images", projector={"deepstack_layers": [1, 2], **fields}, num_layers=2
        )

    wrong = only(problems(said(deepstack_layers=[2, 1]))).sentence
    assert "ascending numbers of its layers; name those of 1 to 2, each once" in wrong
    normed = said(deepstack_normalization="LayerNorm", deepstack_norm_size=3)
    wrong = "which does not divide the 64 features of a token; choose a divisor"
    assert wrong in only(problems(normed)).sentence
    few = put(said(), f"{NETWORKS}.{LANGUAGE}.num_layers", 1)
    assert "is 1, fewer than the 2 layers that add the rows" in only(problems(few)).sentence
    staged = with_sizes(pipeline_parallel=4)
    assert problems(put(staged, f"{NETWORKS}.images.projector", {"deepstack_layers": [3]})) == ()
    problem = only(
        problems(put(staged, f"{NETWORKS}.images.projector", {"deepstack_layers": [1, 3]}))
    )
    assert "leaves 1 layer to the first chunk of its first stage" in problem.sentence


def test_ranks_share_the_widths_of_projectors() -> None:
    content = with_network("images", projector={"hidden_sizes": [96, 70, 66]})
    sizes = {"tensor_parallel": 4, "data_parallel": 1}
    problem = only(problems(put(content, f"{SIZES}.images", sizes)))
    assert "does not divide the 66 outputs of a matrix of its projector" in problem.sentence


def test_heads_of_their_own_width() -> None:
    heads = {"num_attention_heads": 12}
    assert "hidden_size is 64" in only(problems(with_network(LANGUAGE, **heads))).sentence
    assert problems(with_network(LANGUAGE, **heads, kv_channels=16)) == ()


@pytest.mark.parametrize(
    ("precision", "why"), [("nvfp4", "needs GPUs of"), ("bf61", "do not know")]
)
def test_a_precision_of_other_hardware_is_not_run(precision: str, why: str) -> None:
    config = load(put(sections(), "runtime.precision", precision))
    with pytest.raises(ConfigError, match=f"precision is {precision}, which .*{why}") as refused:
        check_runnable(config)
    assert only(refused.value.problems).fix == {"path": "runtime.precision", "value": None}


def test_ranks_that_share_query_groups_share_the_biases_of_values() -> None:
    content = with_network(LANGUAGE, num_query_groups=2, add_key_bias=False)
    content["model"]["module_parallelisms"][LANGUAGE]["tensor_parallel"] = 4
    assert problems(content) == ()
    content["model"]["module_architectures"][LANGUAGE] |= {"num_query_groups": 1, "kv_channels": 6}
    problem = only(problems(content))
    assert "share 1 query group, and cannot share the 6 biases of" in problem.sentence


@pytest.mark.parametrize(
    ("sizes", "fields", "named"),
    [
        (
            {},
            {**EXPERTS, **SHARED, "add_bias_linear": None},
            "but shared experts have no biases; set it to false",
        ),
        (
            {"expert_tensor_parallel": 2},
            EXPERTS,
            "is 2, but experts that ranks share have no biases",
        ),
        ({"expert_parallel": 2}, {}, "expert_parallel is 2, but it has no experts"),
        ({"expert_tensor_parallel": 2}, {}, "expert_tensor_parallel is 2, but it has no experts"),
        (
            {"data_parallel": 2, "tensor_parallel": 2},
            EXPERTS,
            "set sequence_parallel to true, so that they share",
        ),
    ],
)
def test_experts_that_megatron_does_not_have_are_not_planned(
    sizes: dict[str, Any], fields: dict[str, Any], named: str
) -> None:
    content = sections({"data_parallel": 4}, {"data_parallel": 4, **sizes}, "colocated")
    content["model"]["module_architectures"][LANGUAGE] |= fields
    problem = only(problems(content))
    assert problem.module == LANGUAGE
    assert named in problem.sentence
    assert problem.fix is not None
    mimokit.plan(load(put(content, problem.fix["path"], problem.fix["value"])))


def test_experts_of_an_encoder_have_the_sequence_shards_of_the_language_module() -> None:
    sizes = {"data_parallel": 2, "tensor_parallel": 2}
    content = sections(sizes, dict(sizes), "homogeneous")
    content["model"]["module_architectures"]["images"] |= EXPERTS
    problem = only(problems(content))
    assert (problem.module, problem.field) == ("images", "tensor_parallel")
    path = f"model.module_parallelisms.{LANGUAGE}.sequence_parallel"
    assert problem.fix == {"path": path, "value": True}
    mimokit.plan(load(put(content, path, True)))


def test_positions_of_encoders_need_not_divide_and_sequences_do() -> None:
    both = {"tensor_parallel": 2, "context_parallel": 2, "sequence_parallel": True}
    content = sections({**both, "data_parallel": 1}, {**both, "data_parallel": 1})
    content["model"]["module_architectures"]["images"]["num_registers"] = 1
    mimokit.plan(load(content))
    content = put(content, "data.seq_length", 126)
    content = put(content, f"{NETWORKS}.{LANGUAGE}.seq_length", 126)
    found = problems(content)
    assert {(problem.module, problem.field) for problem in found} >= {
        (LANGUAGE, "context_parallel")
    }
    assert "cuts its 126 tokens into 4 unequal pieces" in found[0].sentence


def test_a_decoder_has_a_learned_position_for_every_token() -> None:
    config = decoded_config(dict.fromkeys(("images", LANGUAGE, "writer"), (1, 1, 1)))
    writer = config.model.module_architectures["writer"]
    writer.position_embedding_type = "learned_absolute"
    mimokit.plan(config)
    for field in ("max_position_embeddings", "seq_length"):
        networks = config.model.module_architectures
        networks["writer"] = writer.model_copy(update={field: 41})
        with pytest.raises(ConfigError, match=f"{field} is 41, but its samples have 42 tokens"):
            mimokit.plan(config)


def test_sequences_of_decoders_need_not_divide() -> None:
    config = decoded_config(dict.fromkeys(("images", LANGUAGE, "writer"), (1, 1, 2)))
    writer = config.model.module_parallelisms["writer"]
    writer.context_parallel, writer.data_parallel = 2, 1
    assert config.data.seq_length % 4
    mimokit.plan(config)


def test_rows_run_with_experts() -> None:
    fields = {"moe_router_enable_expert_bias": True, "moe_z_loss_coeff": 0.01}
    content = with_network(LANGUAGE, **EXPERTS, **fields, add_bias_linear=False)
    content["data"]["pack_sequences_in_batch"] = True
    sizes = content["model"]["module_parallelisms"][LANGUAGE]
    sizes["sequence_parallel"] = True
    mimokit.plan(load(content))
    sizes["moe_token_dispatcher_type"] = "allgather"
    mimokit.plan(load(content))


def test_what_is_said_as_it_runs_is_run() -> None:
    plain = {
        "num_query_groups": 8,
        "kv_channels": 8,
        "gated_linear_unit": False,
        "normalization": "LayerNorm",
        "add_bias_linear": True,
        "window_size": 8,
    }
    for precision in ("fp32", "bf16"):
        content = put(with_network(LANGUAGE, **plain), "runtime.precision", precision)
        content["prediction"] = {"gpu": "h100", "price_per_gpu_hour": 2}
        mimokit.plan(load(content))


@pytest.mark.parametrize("field", ["use_distributed_optimizer", "use_megatron_fsdp"])
@pytest.mark.parametrize("name", ["diloco", "simple_reduce", "demo"])
def test_replicas_with_shards_run(name: str, field: str) -> None:
    content = with_sizes(**{field: True})
    mimokit.plan(load(content | {"strategy": {"name": name, "replicas": 2}}))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_replicas_run_in_half_precision(precision: str) -> None:
    content = put(sections(), "runtime.precision", precision)
    for strategy in ({"name": "demo"}, {"name": "diloco", "codec": "int8"}):
        mimokit.plan(load(content | {"strategy": strategy | {"replicas": 2}}))


@pytest.mark.parametrize(
    ("prediction", "named"),
    [
        ({"gpus": "h100"}, "did you mean gpu?"),
        ({"price_per_gpu_hour": 0}, "must be greater than 0"),
        ({"inputs": {"images": {"length": 0}}}, "Module 'images': length is 0"),
        ({"inputs": {"sounds": {"length": 1}}}, "it is not an encoder (those are images)"),
        ({"inputs": {"images": {"length": 1, "imbalance": 0.5}}}, "must be at least 1"),
        ("h100", "write a mapping"),
    ],
)
def test_predictions_that_suppose_nonsense(prediction: Any, named: str) -> None:
    content = sections() | {"prediction": prediction}
    assert named in only(problems(content)).sentence


def test_a_network_of_the_small_config_is_plain() -> None:
    mimokit.plan(load(with_network("images", **network(seq_length=16))))
