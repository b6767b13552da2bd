"""The fields of a network agree with each other, and with what the module is in its model."""

import itertools
import math
from collections.abc import Iterator

from mimokit.config.architecture import ModuleArchitecture
from mimokit.config.errors import Problem
from mimokit.config.rules.context import ValidationContext
from mimokit.config.rules.roles import ENCODERS, LANGUAGE, VISION, WRITER
from mimokit.config.rules.rule import ConfigRule, Subject, led_by, multiple, needs, problems_in
from mimokit.config.rules.writing import NET

_LATENT = ("kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")
_ROPE_TYPES = ("linear", "dynamic", "llama3", "yarn", "longrope")


def network_problems(context: ValidationContext) -> Iterator[Problem]:
    """Yield what is wrong with the networks, whatever their parallel sizes."""
    names = [name for name, _ in context.networks()]
    yield from problems_in(context, names, OF_NETWORKS)
    if context.graph_is_valid:
        yield from problems_in(context, names, OF_NETWORKS_IN_GRAPHS)


def _heads_fit(m: Subject) -> bool:
    """Tell whether ranks can share the heads: else their number has to change anyway."""
    sizes = m.context.sizes.get(m.name)
    return sizes is None or not m.net.num_attention_heads % sizes.tensor_parallel


def _has_width(net: ModuleArchitecture) -> bool:
    """Tell whether the width of a head is known: else another rule has said so."""
    return net.kv_channels is not None or not net.hidden_size % net.num_attention_heads


def _one_of(field: str, other: str) -> ConfigRule:
    def finds(m: Subject) -> bool:
        stated = getattr(m.net, field), getattr(m.net, other)
        return m.net.modality == "vision" and stated[0] is None and stated[1] is not None

    return ConfigRule(f"{NET}.{field}", finds, f", but {other} is given; give both or none.")


def _above_layers(field: str) -> ConfigRule:
    def finds(m: Subject) -> object:
        count = getattr(m.net, field)
        return isinstance(count, int) and count > m.net.num_layers and m.net.num_layers

    return ConfigRule(f"{NET}.{field}", finds, ", more than its {0:layer}; lower it.")


def _are_ascending(numbers: list[int]) -> bool:
    return all(number < after for number, after in itertools.pairwise(numbers))


def _patches_of_side(m: Subject) -> int:
    image, patch = m.net.image_size, m.net.patch_size
    if m.net.modality != "vision" or image is None or patch is None or image % patch:
        return 0
    return image // patch


OF_NETWORKS = (
    _one_of("image_size", "patch_size"),
    _one_of("patch_size", "image_size"),
    multiple(
        "image_size", "patch_size",
        lambda m: m.net.modality == "vision" and m.net.image_size and m.net.patch_size,
    ),
    ConfigRule(
        f"{NET}.merge_size",
        lambda m: m.net.modality == "vision" and m.net.image_size is None
        and m.net.seq_length % m.net.merge_size**2 and (m.net.seq_length, m.net.merge_size),
        ", but its {0:patch} (seq_length) are no multiple of {1} x {1}; choose another.",
    ),
    ConfigRule(
        f"{NET}.merge_size",
        lambda m: _patches_of_side(m) % m.net.merge_size and _patches_of_side(m),
        ", which does not divide the {0:patch} along a side of an image; choose a divisor of {0}.",
    ),
    multiple(
        "hidden_size", "num_attention_heads",
        lambda m: _heads_fit(m) and m.net.kv_channels is None and not m.net.multi_latent_attention,
    ),
    *led_by("multi_latent_attention", *_LATENT, "q_lora_rank"),
    *led_by(
        "num_moe_experts", "moe_router_topk", "moe_ffn_hidden_size",
        "moe_shared_expert_intermediate_size", "first_k_dense_replace",
        "moe_router_enable_expert_bias", "moe_router_pre_softmax", "moe_router_load_balancing_type",
        "moe_aux_loss_coeff", "moe_z_loss_coeff", "moe_expert_capacity_factor",
    ),
    *led_by("moe_shared_expert_intermediate_size", "moe_shared_expert_gate"),
    *led_by("moe_router_enable_expert_bias", "moe_router_bias_update_rate"),
    *led_by("window_size", "full_attention_layers"),
    *led_by("mrope_section", "mrope_interleaved"),
    *needs("multi_latent_attention", *_LATENT),
    ConfigRule(
        f"{NET}.qk_pos_emb_head_dim",
        lambda m: m.net.multi_latent_attention and (m.net.qk_pos_emb_head_dim or 0) % 2,
        ", and rotary positions rotate pairs of dimensions; make it even.",
    ),
    ConfigRule(
        f"{NET}.num_query_groups",
        lambda m: m.net.num_attention_heads % (m.net.num_query_groups or 1)
        and m.net.num_attention_heads,
        ", which does not divide its {0} attention heads (num_attention_heads); choose a divisor "
        "of {0}.",
    ),
    ConfigRule(
        f"{NET}.num_moe_experts",
        lambda m: (m.net.num_moe_experts or math.inf) < m.net.top_k and m.net.top_k,
        ", fewer than the {0} that a token visits (moe_router_topk); lower that.",
    ),
    _above_layers("first_k_dense_replace"),
    _above_layers("full_attention_layers"),
    ConfigRule(
        f"{NET}.full_attention_layers",
        lambda m: isinstance(m.net.full_attention_layers, list)
        and max(m.net.full_attention_layers, default=0) > m.net.num_layers and m.net.num_layers,
        ", but it has {0:layer}; name those of 1 to {0}.",
    ),
    ConfigRule(
        f"{NET}.projector.deepstack_layers",
        lambda m: not _are_ascending([0, *m.net.inner_layers, m.net.num_layers + 1])
        and m.net.num_layers,
        ", which has to be ascending numbers of its layers; name those of 1 to {0}, each once.",
    ),
    ConfigRule(
        f"{NET}.max_position_embeddings",
        lambda m: m.net.max_position_embeddings is not None
        and m.net.position_embedding_type not in ("learned_absolute", "interpolated"),
        ", but position_embedding_type is not learned_absolute; give both or none.",
        None,
    ),
)  # fmt: skip
"""Of a network alone."""


def _squares_around(number: int) -> tuple[int, int, int] | None:
    """Return the next smaller square, its side and the next larger one; None for a square."""
    side = math.isqrt(number)
    return None if side**2 == number else (side**2, side, (side + 1) ** 2)


def _of_items(m: Subject) -> bool:
    """Tell whether positions are counted along an item, and not along a sequence."""
    return m.role not in (LANGUAGE, WRITER)


def _positions_without_row(m: Subject) -> int:
    """Return the learned positions of which some are not in the table of its fixed length."""
    net = m.net.over_rows if m.makes_items else m.net
    rows = net.max_position_embeddings
    if rows is None or not net.has_learned_positions(by_default=_of_items(m)):
        return 0
    positions = net.positions - net.num_registers if _of_items(m) else net.seq_length
    return positions if rows < positions else 0


def _rotating_axes(m: Subject) -> int:
    """Return the axes that rotary positions are counted along, 0 for other positions."""
    net = m.net.over_rows if m.makes_items else m.net
    if net.has_learned_positions(by_default=_of_items(m)) or net.multi_latent_attention:
        return 0
    return (2 if m.role == VISION else 1) if _has_width(net) else 0


def _rotating_pairs(m: Subject) -> int:
    """Return the pairs of a head's dimensions that one axis rotates, 0 where some have no pair."""
    pairs, left = divmod(m.net.head_dim, 2 * (_rotating_axes(m) or math.inf))
    return 0 if left else int(pairs)


def _rope_type(m: Subject) -> str:
    scaling = m.net.rope_scaling
    return scaling.rope_type if scaling is not None and _rotating_pairs(m) else ""


def _factors(field: str) -> ConfigRule:
    def finds(m: Subject) -> object:
        if _rope_type(m) != "longrope":
            return False
        given, pairs = len(getattr(m.net.rope_scaling, field) or ()), _rotating_pairs(m)
        return given != pairs and (given, pairs)

    return ConfigRule(
        f"{NET}.rope_scaling",
        finds,
        f"rope_scaling.{field} has {{0:number}}, but a head has {{1:pair}} that turn; give one for "
        "each.",
    )


def _norm(field: str, kind: str) -> ConfigRule:
    def finds(m: Subject) -> object:
        features = m.net.hidden_size * m.net.merge_size ** (2 if m.net.modality == "vision" else 1)
        width, norm = getattr(m.net.projector, field, None), getattr(m.net.projector, kind, None)
        return m.role in ENCODERS and norm and features % (width or 1) and features

    return ConfigRule(
        f"{NET}.projector.{field}",
        finds,
        ", which does not divide the {0} features of a token; choose a divisor.",
        None,
    )


def _frequencies(m: Subject) -> int:
    """Return the frequencies of a head, 0 where no three axes share them, or it has no width."""
    shared = m.role == LANGUAGE and m.net.mrope_section is not None and _has_width(m.net)
    return m.net.head_dim // 2 if shared else 0


def _summed(m: Subject) -> int:
    return sum(m.net.mrope_section or ()) if _frequencies(m) else 0


def _too_often(m: Subject) -> object:
    section, half = m.net.mrope_section or [], _frequencies(m)
    if not half or not m.net.mrope_interleaved or sum(section) != half:
        return False
    # Every third frequency, from the second and from the third on.
    height, width = len(range(1, half, 3)), len(range(2, half, 3))
    return (section[1] > height or section[2] > width) and (half, height, width)


OF_NETWORKS_IN_GRAPHS = (
    ConfigRule(
        f"{NET}.frozen",
        lambda m: m.role not in ENCODERS and isinstance(m.net.frozen, list)
        and (", ".join(m.net.frozen) or "none",),
        "frozen names the parts {0}, which encoders alone have; write true or false.",
        True,
    ),
    ConfigRule(
        f"{NET}.keep_class_token",
        lambda m: m.role == VISION and m.net.keep_class_token and not m.net.class_token,
        ", but class_token is not given; give both or none.",
        None,
    ),
    multiple(
        "hidden_size", "num_attention_heads", lambda m: m.role == VISION and m.net.pooling_head
    ),
    ConfigRule(
        f"{NET}.window_size",
        lambda m: m.role == VISION and (m.net.window_size or 0) < m.net.seq_length
        and _squares_around(m.net.window_size or 0),
        ", but a window of images is a square of patches; choose {0} ({1} x {1}) or {2}.",
    ),
    ConfigRule(
        f"{NET}.any_image_size",
        lambda m: m.net.any_image_size and m.net.image_size is None and m.role == VISION,
        ", but image_size is missing; give the longest side of an image, and patch_size.",
    ),
    ConfigRule(
        f"{NET}.vocab_size",
        lambda m: m.role != LANGUAGE and m.net.modality == "text" and m.net.vocab_size == 0,
        ", but modal_type is text; give the rows of its token embedding.",
    ),
    ConfigRule(
        f"{NET}.merge_size",
        lambda m: m.role != LANGUAGE and m.net.modality == "audio"
        and m.net.seq_length % m.net.merge_size and m.net.seq_length,
        ", which does not divide its {0:position} (seq_length); choose a divisor of them.",
    ),
    ConfigRule(
        f"{NET}.position_embedding_type",
        lambda m: m.net.position_embedding_type == "interpolated" and m.role != VISION,
        ", but the module reads no images; write rope or learned_absolute.",
    ),
    ConfigRule(
        f"{NET}.max_position_embeddings",
        lambda m: m.net.position_embedding_type == "interpolated" and m.role == VISION
        and _squares_around(m.net.max_position_embeddings or 2),
        ", and an interpolated table is a square; give a square number, such as 2304.",
    ),
    ConfigRule(
        f"{NET}.max_position_embeddings",
        lambda m: _of_items(m) and _positions_without_row(m),
        ", fewer than the {0:position} of its longest item; raise it, or leave it out for as many.",
        None,
    ),
    ConfigRule(
        f"{NET}.max_position_embeddings",
        lambda m: not _of_items(m) and (length := _positions_without_row(m))
        and (length, m.net.max_position_embeddings),
        ", fewer than the {0:token} of its longest sequence (seq_length); shorten that.",
        lambda _, rows: rows,
        mends=f"{NET}.seq_length",
    ),
    ConfigRule(
        f"{NET}.kv_channels",
        lambda m: _rotating_axes(m) == 1 and m.net.head_dim % 2 and m.net.head_dim,
        "a head has {0:dimension} (kv_channels), and rotary positions rotate pairs of them; make "
        "it even.",
    ),
    ConfigRule(
        f"{NET}.kv_channels",
        lambda m: _rotating_axes(m) == 2 and m.net.head_dim % 4 and m.net.head_dim,
        "a head has {0:dimension} (kv_channels), and rotary positions of images rotate pairs of "
        "them with rows, and as many with columns; make it a multiple of 4.",
    ),
    ConfigRule(
        f"{NET}.rope_scaling",
        lambda m: (kind := _rope_type(m)) and kind not in _ROPE_TYPES
        and (kind, ", ".join(_ROPE_TYPES[:-1]), _ROPE_TYPES[-1]),
        "rope_scaling has the rope_type {0}; choose {1} or {2}.",
        None,
    ),
    ConfigRule(
        f"{NET}.rope_scaling",
        lambda m: _rope_type(m) == "dynamic" and _rotating_pairs(m) == 1,
        "rope_scaling is dynamic, but a head has one pair that turns; leave it out.",
        None,
    ),
    _factors("short_factor"),
    _factors("long_factor"),
    _norm("norm_size", "normalization"),
    _norm("deepstack_norm_size", "deepstack_normalization"),
    ConfigRule(
        f"{NET}.projector.deepstack_layers",
        lambda m: m.role in ENCODERS and m.net.inner_layers and m.role != VISION,
        ", but it reads no images; write projector.deepstack_layers for an encoder of images "
        "alone.",
        None,
    ),
    ConfigRule(
        f"{NET}.mrope_section",
        lambda m: _summed(m) != _frequencies(m) and (_summed(m), m.net.head_dim, _frequencies(m)),
        ", {0} together, but a head of {1:number} has {2} frequencies; give each of them to one "
        "axis.",
    ),
    ConfigRule(
        f"{NET}.mrope_section",
        _too_often,
        ", but of {0} frequencies that alternate (mrope_interleaved) height has at most {1} and "
        "width {2}; give time more.",
    ),
)  # fmt: skip
"""Of a network, and what it is in its model."""
