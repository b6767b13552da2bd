"""Pairs of what a network has and of how it is run: what proves each, or that it is refused."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from mimokit.config import ExperimentConfig
from mimokit.config.rules.combinations import MODES, REFUSED, Part, part_of
from mimokit.config.rules.context import ValidationContext
from tests.claims import CLAIMS
from tests.crossed import CROSSED

FROZEN = Path(__file__).parents[1] / "fixtures" / "combinations.csv"
FEATURES = (
    "num_moe_experts", "moe_shared_expert_intermediate_size", "moe_aux_loss_coeff",
    "moe_z_loss_coeff", "moe_expert_capacity_factor", "moe_router_enable_expert_bias",
    "multi_latent_attention", "window_size", "mtp_num_layers", "hidden_dropout",
    "attention_dropout", "tied_embeddings", "make_vocab_size_divisible_by", "add_key_bias false",
    "qk_layernorm", "position_embedding_type (learned)", "position_embedding_type interpolated",
    "rope_scaling", "mrope_section", "any_image_size", "keep_class_token", "pooling_head",
    "projector.deepstack_layers", "modal_type text", "mel_bins", "modal_type rows", "text decoder",
    "decoder of items", "topology (several receivers)", "frozen (all)", "frozen (in part)",
    "builder", "optimizer", "pack_sequences_in_batch", "patch_type", "sample_order balanced",
)  # fmt: skip
WAYS = (
    "recompute_granularity selective", "recompute_granularity full", "use_distributed_optimizer",
    "num_distributed_optimizer_instances", "use_megatron_fsdp", "overlap_grad_reduce",
    "precision bf16", "precision fp16", "precision fp8", "pipeline_order gpipe",
    "pipeline_order zb-h1", "virtual_pipeline_model_parallel_size", "encoder_microbatches",
    "strategy",
)  # fmt: skip
PLAIN = (
    "num_layers", "hidden_size", "num_attention_heads", "seq_length", "vocab_size", "image_size",
    "patch_size", "num_channels", "merge_size", "class_token", "num_registers", "reconstructs",
    "reconstruction_loss_weight", "ffn_hidden_size", "mrope_interleaved", "weights",
    "weights_prefix", "num_query_groups", "kv_channels", "gated_linear_unit", "activation_func",
    "normalization", "layernorm_epsilon", "add_bias_linear", "add_qkv_bias",
    "add_attention_output_bias", "max_position_embeddings", "rotary_base", "init_method",
    "init_std", "patch_bias", "outer_norms", "post_layer_norm", "full_attention_layers",
    "q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim",
    "moe_router_topk", "moe_ffn_hidden_size", "first_k_dense_replace",
    "moe_router_bias_update_rate", "moe_shared_expert_gate", "moe_router_pre_softmax",
    "moe_router_load_balancing_type", "mtp_loss_scaling_factor", "temporal_patch_size",
)  # fmt: skip
"""Fields of a network that are its sizes, its start, or a form of its layers: no features."""
_DERIVED: Mapping[str, Callable[[Part], object]] = {
    "mel_bins": lambda part: part.network.mel_bins and not part.decodes,
    "modal_type text": lambda part: part.network.modal_type == "text" and not part.decodes,
    "text decoder": lambda part: part.network.modal_type == "text" and part.decodes,
    "decoder of items": lambda part: part.network.modal_type != "text" and part.decodes,
    "frozen (in part)": lambda part: len(part.network.frozen_parts) == 1,
    "encoder_microbatches": lambda part: (part.values.get("encoder_microbatches") or 1) > 1,
}
_IMPLIED: Mapping[str, tuple[str, ...]] = {
    "text decoder": ("topology (behind the language module)",),
    "decoder of items": ("topology (behind the language module)",),
    "virtual_pipeline_model_parallel_size": ("pipeline_parallel",),
}
Pair = tuple[str, str, str]
"""(feature, way, mode)"""


def _has(part: Part, name: str) -> bool:
    return bool(_DERIVED[name](part)) if name in _DERIVED else part.has(name)


def pairs_of(config: ExperimentConfig) -> Iterator[Pair]:
    """Yield the pairs of a run; in homogeneous mode encoders are run as the language model is."""
    model, context = config.model, ValidationContext.of(config, None)
    parts = {name: part_of(context, name, net) for name, net in model.module_architectures.items()}
    for part in parts.values():
        run = [part]
        if model.deployment_mode == "homogeneous":
            run.append(parts[model.llm_module_name])
        ways = [way for way in WAYS if any(_has(each, way) for each in run)]
        yield from ((f, w, model.deployment_mode) for f in FEATURES if _has(part, f) for w in ways)


def runs() -> Iterator[tuple[str, ExperimentConfig]]:
    """Yield the runs that are compared with one process, the claims first."""
    yield from ((f"claim: {claim.name}", claim.config) for claim in CLAIMS)
    yield from ((run.name, run.make()) for run in CROSSED)


def proofs(of: Iterable[tuple[str, ExperimentConfig]]) -> dict[Pair, str]:
    """Return the first run that has each pair."""
    proved: dict[Pair, str] = {}
    for name, config in of:
        for pair in pairs_of(config):
            proved.setdefault(pair, name)
    return proved


def is_refused(pair: Pair) -> bool:
    """Tell whether a row of the table refuses a pair, or what it needs."""
    feature, way, mode = pair
    names = {feature, way, f"deployment_mode {mode}"}
    names |= {implied for name in names for implied in _IMPLIED.get(name, ())}
    return any(
        row.what in names and mode in row.modes and not names.isdisjoint(row.not_with)
        for row in REFUSED
    )


def frozen(proved: Mapping[Pair, str] | None = None) -> str:
    """Return what is frozen: what is refused with what, and each pair with its run in each mode.

    Args:
        proved: pair -> its run; None: by all runs.
    """
    proved = proofs(runs()) if proved is None else proved
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(("what", "with", *MODES))
    for row in REFUSED:
        cells = ["refused" if mode in row.modes else "" for mode in MODES]
        lines.writerows((row.what, other, *cells) for other in row.not_with)
    for feature in FEATURES:
        for way in WAYS:
            of_modes = [(feature, way, mode) for mode in MODES]
            lines.writerow((feature, way, *map(partial(_cell, proved), of_modes)))
    return text.getvalue()


def _cell(proved: Mapping[Pair, str], pair: Pair) -> str:
    if pair in proved:
        return proved[pair].removesuffix(f", {pair[2]}")
    return "refused" if is_refused(pair) else "neither"


def table_of_refused() -> Iterator[str]:
    """Yield the rows of docs/limits.md: what is refused, with what, and in which modes."""
    yield "| | is refused with | in |"
    yield "|---|---|---|"
    for row in REFUSED:
        modes = "all modes" if row.modes == MODES else " and ".join(row.modes)
        yield f"| {row.what} | {', '.join(row.not_with)} | {modes} |"
