"""The language model that a Megatron-LM command line describes."""

from __future__ import annotations

from mimokit.plan.architecture import LanguageModel, MixtureOfExperts, Transformer
from mimokit.plan.exchange.megatron_options import Options, number, word
from mimokit.plan.exchange.placement import LANGUAGE

_NEEDED = ("num-layers", "hidden-size", "num-attention-heads")


def model_of(given: Options) -> tuple[LanguageModel | None, tuple[str, ...]]:
    """Return the language model where the options describe all of it, and else what is missing."""
    vocab = next((name for name in ("padded-vocab-size", "vocab-size") if name in given), None)
    missing = [f"--{name}" for name in _NEEDED if name not in given]
    if vocab is None or missing:
        missing += [] if vocab else ["--vocab-size"]
        return None, (f"Without {', '.join(missing)} the model is not known.",)
    rotary = word(given, "position-embedding-type") == "rope"
    model = LanguageModel(
        LANGUAGE,
        _net(given),
        number(given, vocab),
        tied="untie-embeddings-and-output-weights" not in given,
        positions=0 if rotary else number(given, "max-position-embeddings", 0),
    )
    return model, ()


def _net(given: Options) -> Transformer:
    """Return the layers, with Megatron-LM's defaults for what is not said."""
    layers, hidden, heads = (number(given, name) for name in _NEEDED)
    gated, bias = "swiglu" in given, "disable-bias-linear" not in given
    narrower = 4 * hidden * 2 // 3 // 64 * 64
    ffn = number(given, "ffn-hidden-size", narrower if gated else 4 * hidden)
    grouped = "group-query-attention" in given
    return Transformer(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=number(given, "num-query-groups", 1) if grouped else heads,
        head_dim=number(given, "kv-channels", hidden // heads),
        ffn=ffn,
        gated=gated,
        norm="rms" if word(given, "normalization") == "RMSNorm" else "layer",
        qkv_bias=bias or "add-qkv-bias" in given,
        output_bias=bias,
        ffn_bias=bias,
        qk_norm="qk-layernorm" in given,
        moe=_experts(given, ffn) if "num-experts" in given else None,
    )


def _experts(given: Options, ffn: int) -> MixtureOfExperts:
    return MixtureOfExperts(
        experts=number(given, "num-experts"),
        top_k=number(given, "moe-router-topk", 2),
        ffn=number(given, "moe-ffn-hidden-size", ffn),
        shared_ffn=number(given, "moe-shared-expert-intermediate-size", 0),
    )
