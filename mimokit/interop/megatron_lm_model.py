"""The language model that a Megatron-LM command line describes."""

import re

from mimokit.architecture import LanguageModel, LatentAttention, MixtureOfExperts, Transformer
from mimokit.architecture.from_config import check_parameters
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
    further = word(options, "mtp-num-layers", "0")
    rotary = word(options, "position-embedding-type") in ("rope", "yarn")
    model = LanguageModel(
        LANGUAGE,
        _net(options),
        number(options, vocab),
        tied="untie-embeddings-and-output-weights" not in options,
        positions=0 if rotary else number(options, "max-position-embeddings", 0),
        next_token_layers=0 if further == "0" else number(options, "mtp-num-layers"),
        rope_theta=real(options, "rotary-base", ROTARY_BASE) if rotary else ROTARY_BASE,
        vocab_multiple=number(options, "make-vocab-size-divisible-by", VOCABULARY_MULTIPLE),
    )
    check_parameters(model, MEGATRON_LM, MEGATRON_LM)
    return model, ()


def _net(options: Options) -> Transformer:
    layers, hidden, heads = (number(options, name) for name in _NEEDED)
    gated, bias = "swiglu" in options, "disable-bias-linear" not in options
    narrower = 4 * hidden * 2 // 3 // 64 * 64
    ffn = number(options, "ffn-hidden-size", narrower if gated else 4 * hidden)
    grouped = "group-query-attention" in options
    mla = _latent_attention(options) if "multi-latent-attention" in options else None
    width = hidden // heads if mla is None else mla.nope_dim + mla.rope_dim
    return Transformer(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=number(options, "num-query-groups", 1) if grouped else heads,
        head_dim=number(options, "kv-channels", width) if mla is None else width,
        ffn=ffn,
        gated=gated,
        norm="RMSNorm" if word(options, "normalization") == "RMSNorm" else "LayerNorm",
        qkv_bias=bias or "add-qkv-bias" in options,
        output_bias=bias,
        ffn_bias=bias,
        qk_norm="qk-layernorm" in options,
        window=_window(options),
        unwindowed=_without_window(options, layers),
        epsilon=real(options, "norm-epsilon", EPSILON),
        matrix_std=real(options, "init-method-std", INIT_STD),
        moe=_experts(options, ffn, layers) if "num-experts" in options else None,
        mla=mla,
    )


def _latent_attention(options: Options) -> LatentAttention:
    return LatentAttention(
        q_rank=number(options, "q-lora-rank", 0),
        kv_rank=number(options, "kv-lora-rank", 32),
        nope_dim=number(options, "qk-head-dim", 128),
        rope_dim=number(options, "qk-pos-emb-head-dim", 64),
        v_dim=number(options, "v-head-dim", 128),
    )


def _window(options: Options) -> int:
    before = whole_number(word(options, "window-size").strip("()").split(",")[0])
    return 0 if before is None else before + 1


def _without_window(options: Options, layers: int) -> int | tuple[int, ...]:
    # Megatron writes `4` for every fourth layer, or a pattern such as `([1]*3+[0])*8`, where 0 is
    # such a layer. Layers are counted from 1.
    frequency = word(options, "window-attn-skip-freq")
    if not frequency or not _window(options):
        return 0
    every = whole_number(frequency)
    if every:
        return tuple(range(every, layers + 1, every))
    pattern = _pattern(frequency.replace(" ", ""), layers)
    if pattern is None:
        sentence = (
            f"--window-attn-skip-freq is {shown(frequency)}; give a number, or a pattern of "
            f"{layers} layers such as ([1]*3+[0]*1)*{max(1, layers // 4)}, where 0 has no window."
        )
        raise wrong_file(MEGATRON_LM, "window-attn-skip-freq", frequency, sentence)
    return tuple(number for number, entry in enumerate(pattern, 1) if entry == "0")


def _pattern(plain: str, layers: int) -> list[str] | None:
    repeated = re.fullmatch(r"\(([^()]*)\)(?:\*(\d+))?", plain)
    inside, times = (repeated.group(1), repeated.group(2)) if repeated else (plain, None)
    runs = [_run(part) for part in inside.split("+")]
    rounds, each = whole_number(times or "1"), sum(len(entries) * again for entries, again in runs)
    if rounds is None or each * rounds != layers or not all(all(own) for own, _ in runs):
        return None
    return [entry for entries, again in runs for entry in entries * again] * rounds


def _experts(options: Options, ffn: int, layers: int) -> MixtureOfExperts:
    return MixtureOfExperts(
        experts=number(options, "num-experts"),
        top_k=number(options, "moe-router-topk", 2),
        ffn=number(options, "moe-ffn-hidden-size", ffn),
        shared_ffn=number(options, "moe-shared-expert-intermediate-size", 0),
        dense_layers=_dense_layers(word(options, "moe-layer-freq", "1"), layers),
        router_bias="moe-router-enable-expert-bias" in options,
        shared_gate="moe-shared-expert-gate" in options,
    )


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
