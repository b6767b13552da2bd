"""The language model that a Megatron-LM command line describes."""

import re
from typing import Any

from mimokit.architecture import LanguageModel
from mimokit.architecture.from_config import check_parameters, language_of_config
from mimokit.config.architecture import ModuleArchitecture, network_of_fields
from mimokit.config.meaning import EPSILON, INIT_STD, ROTARY_BASE, VOCABULARY_MULTIPLE
from mimokit.interop.command_line import (
    MEGATRON_LM,
    Options,
    number,
    real,
    whole_number,
    word,
    wrong_file,
)
from mimokit.prediction.layout import LANGUAGE
from mimokit.units import shown

_NEEDED = ("num-layers", "hidden-size", "num-attention-heads")


def model_of(options: Options) -> tuple[LanguageModel | None, tuple[str, ...]]:
    """Return the language model, or None and what is missing if the options do not describe it."""
    vocab = next((name for name in ("padded-vocab-size", "vocab-size") if name in options), None)
    missing = [f"--{name}" for name in _NEEDED if name not in options]
    if vocab is None or missing:
        missing += [] if vocab else ["--vocab-size"]
        return None, (f"Without {', '.join(missing)} the model is not known.",)
    model = language_of_config(LANGUAGE, _network(options, number(options, vocab)))
    check_parameters(model, MEGATRON_LM, MEGATRON_LM)
    return model, ()


def _network(options: Options, vocab: int) -> ModuleArchitecture:
    layers, hidden, heads = (number(options, name) for name in _NEEDED)
    gated, bias = "swiglu" in options, "disable-bias-linear" not in options
    narrower = 4 * hidden * 2 // 3 // 64 * 64
    ffn = number(options, "ffn-hidden-size", narrower if gated else 4 * hidden)
    further = word(options, "mtp-num-layers", "0")
    fields = {
        "num_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "vocab_size": vocab,
        "ffn_hidden_size": ffn,
        "gated_linear_unit": gated,
        "normalization": "RMSNorm" if word(options, "normalization") == "RMSNorm" else None,
        "add_bias_linear": bias,
        "add_qkv_bias": bias or "add-qkv-bias" in options,
        "qk_layernorm": "qk-layernorm" in options,
        "window_size": _window(options) or None,
        "full_attention_layers": _without_window(options, layers),
        "layernorm_epsilon": real(options, "norm-epsilon", EPSILON),
        "init_std": real(options, "init-method-std", INIT_STD),
        "tied_embeddings": "untie-embeddings-and-output-weights" not in options,
        "mtp_num_layers": 0 if further == "0" else number(options, "mtp-num-layers"),
        "make_vocab_size_divisible_by": number(
            options, "make-vocab-size-divisible-by", VOCABULARY_MULTIPLE
        ),
        **_positions(options),
        **(_experts(options, ffn, layers) if "num-experts" in options else {}),
        **_attention(options, hidden // heads, heads),
    }
    return network_of_fields(fields)


def _positions(options: Options) -> dict[str, Any]:
    if word(options, "position-embedding-type") in ("rope", "yarn"):
        return {"rotary_base": real(options, "rotary-base", ROTARY_BASE)}
    table = number(options, "max-position-embeddings", 0)
    learned = {"position_embedding_type": "learned_absolute", "max_position_embeddings": table}
    return learned if table else {}


def _attention(options: Options, width: int, heads: int) -> dict[str, Any]:
    if "multi-latent-attention" in options:
        return {
            "multi_latent_attention": True,
            "q_lora_rank": number(options, "q-lora-rank", 0) or None,
            "kv_lora_rank": number(options, "kv-lora-rank", 32),
            "qk_head_dim": number(options, "qk-head-dim", 128),
            "qk_pos_emb_head_dim": number(options, "qk-pos-emb-head-dim", 64),
            "v_head_dim": number(options, "v-head-dim", 128),
        }
    grouped = "group-query-attention" in options
    return {
        "num_query_groups": number(options, "num-query-groups", 1) if grouped else heads,
        "kv_channels": number(options, "kv-channels", width),
    }


def _window(options: Options) -> int:
    before = whole_number(word(options, "window-size").strip("()").split(",")[0])
    return 0 if before is None else before + 1


def _without_window(options: Options, layers: int) -> int | list[int]:
    # Megatron writes `4` for every fourth layer, or a pattern such as `([1]*3+[0])*8`, where 0 is
    # such a layer. Layers are counted from 1.
    frequency = word(options, "window-attn-skip-freq")
    if not frequency or not _window(options):
        return 0
    every = whole_number(frequency)
    if every:
        return list(range(every, layers + 1, every))
    pattern = _pattern(frequency.replace(" ", ""), layers)
    if pattern is None:
        sentence = (
            f"--window-attn-skip-freq is {shown(frequency)}; give a number, or a pattern of "
            f"{layers} layers such as ([1]*3+[0]*1)*{max(1, layers // 4)}, where 0 has no window."
        )
        raise wrong_file(MEGATRON_LM, "window-attn-skip-freq", frequency, sentence)
    return [number for number, entry in enumerate(pattern, 1) if entry == "0"]


def _pattern(plain: str, layers: int) -> list[str] | None:
    repeated = re.fullmatch(r"\(([^()]*)\)(?:\*(\d+))?", plain)
    inside, times = (repeated.group(1), repeated.group(2)) if repeated else (plain, None)
    runs = [_run(part) for part in inside.split("+")]
    rounds, each = whole_number(times or "1"), sum(len(entries) * again for entries, again in runs)
    if rounds is None or each * rounds != layers or not all(all(own) for own, _ in runs):
        return None
    return [entry for entries, again in runs for entry in entries * again] * rounds


def _experts(options: Options, ffn: int, layers: int) -> dict[str, Any]:
    shared = number(options, "moe-shared-expert-intermediate-size", 0)
    return {
        "num_moe_experts": number(options, "num-experts"),
        "moe_router_topk": number(options, "moe-router-topk", 2),
        "moe_ffn_hidden_size": number(options, "moe-ffn-hidden-size", ffn),
        "moe_shared_expert_intermediate_size": shared or None,
        "first_k_dense_replace": _dense_layers(word(options, "moe-layer-freq", "1"), layers),
        "moe_router_enable_expert_bias": "moe-router-enable-expert-bias" in options,
        "moe_shared_expert_gate": "moe-shared-expert-gate" in options,
        "moe_router_pre_softmax": False,
    }


def _dense_layers(frequency: str, layers: int) -> int:
    # Megatron writes `1`, or a pattern such as `([0]*3+[1]*58)`.
    plain = frequency.replace(" ", "").strip("()")
    if plain == "1":
        return 0
    runs = [_run(part) for part in plain.split("+")]
    kinds = [kind for entries, _ in runs for kind in entries]
    deal = all(len(set(entries)) == 1 or times == 1 for entries, times in runs)
    total = sum(len(entries) * times for entries, times in runs)
    if not all(kinds) or not deal or total != layers or kinds != sorted(kinds):
        sentence = (
            f"--moe-layer-freq is {shown(frequency)}; supported are layers without experts, "
            f"then layers with experts, {layers} together: write ([0]*K+[1]*{layers}-K)."
        )
        raise wrong_file(MEGATRON_LM, "moe-layer-freq", frequency, sentence)
    return sum(entries.count("0") * times for entries, times in runs)


def _run(part: str) -> tuple[list[str], int]:
    """Return the entries of a part such as [0,1]*3 and their repetitions, else ([""], 1)."""
    pattern = re.fullmatch(r"\[([01](?:,[01])*)\](?:\*(\d+))?", part)
    times = whole_number(pattern.group(2) or "1") if pattern else None
    return ([""], 1) if pattern is None or times is None else (pattern.group(1).split(","), times)
