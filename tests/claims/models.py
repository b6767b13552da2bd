"""Claims about networks, and about graphs of modules."""

from functools import partial

from mimokit.config import ExperimentConfig
from tests.claims import faults as f
from tests.claims.claim import Claim, of
from tests.claims.faults import named
from tests.claims.layouts import (
    ALONE,
    COLOCATED,
    CP2,
    DP2,
    EP2,
    FOUR_LAYERS,
    HETEROGENEOUS,
    HOMOGENEOUS,
    IMAGES,
    PP2,
    SP2,
    TP2,
    experts,
    in_rows,
    layered,
    three_modalities,
    two,
    two_modules,
)
from tests.layouts_apart import (
    apart_config,
    apart_multimodal_config,
    decoded_config,
    with_adapter,
    with_edge,
    with_image_decoder,
)
from tests.layouts_multimodal import LANGUAGE
from tests.whole_runs import LATENT_ATTENTION, YARN, decoder_of_any_size, with_inner_layers

LLAMA = {
    "num_query_groups": 2,
    "normalization": "RMSNorm",
    "gated_linear_unit": True,
    "add_bias_linear": False,
    "kv_channels": 8,
    "qk_layernorm": True,
}
GPT = {"position_embedding_type": "learned_absolute", "max_position_embeddings": 48}
BIAS = {
    "moe_router_enable_expert_bias": True,
    "moe_router_bias_update_rate": 0.05,
    "num_moe_experts": 16,
}
MIXED = {
    "num_moe_experts": 4,
    "moe_router_topk": 2,
    "moe_ffn_hidden_size": 24,
    "add_bias_linear": False,
}
SLICED = {**SP2, "ep": 2}
APART = partial(three_modalities, HETEROGENEOUS)
SHARED = partial(three_modalities, COLOCATED, clip=DP2, audio=DP2, **{LANGUAGE: TP2})
DROPPING = {"hidden_dropout": 0.1}
ONE = (1, 1, 1)

_NETWORKS = of(
    "networks",
    ("Llama and Qwen3-like layers", layered(two(HOMOGENEOUS, SP2, SP2), **LLAMA),
     f.NO_SLICES_SUMMED),
    ("GPT-like layers, learned positions", layered(two(HOMOGENEOUS, SP2, SP2), **GPT),
     named("positions shared in the order of another group")),
    ("scaled rotary positions", layered(two(COLOCATED, DP2, CP2), rope_scaling=YARN),
     f.OTHER_CONTEXT),
    ("keys without a bias",
     layered(two(HOMOGENEOUS, TP2, TP2), num_query_groups=2, add_key_bias=False), f.NO_BIASES),
    ("tied embeddings on stages",
     layered(two(HETEROGENEOUS, ALONE, PP2), tied_embeddings=True), f.TIED_APART),
    ("multi-latent attention", layered(two(HOMOGENEOUS, TP2, TP2), **LATENT_ATTENTION),
     f.KEY_OF_ONE_RANK),
    (
        "attention windows",
        in_rows(
            layered(
                two(COLOCATED, DP2, CP2, FOUR_LAYERS), window_size=6, full_attention_layers=2
            )
        ),
        f.LONGER_WINDOWS,
    ),
    ("multi-token prediction", layered(two(HOMOGENEOUS, TP2, TP2), mtp_num_layers=1), f.NOT_ROLLED),
    ("multi-token prediction", layered(two(HETEROGENEOUS, ALONE, PP2), mtp_num_layers=1),
     f.TIED_APART),
    ("dropout", layered(two(HOMOGENEOUS, TP2, TP2), **DROPPING),
     named("ranks of a matrix that drop something else")),
    ("dropout", layered(layered(two(COLOCATED, TP2, DP2), **DROPPING), IMAGES, **DROPPING),
     named("replicas that drop the same")),
    ("frozen modules", layered(two(COLOCATED, DP2, TP2), IMAGES, frozen=True), f.NOT_FROZEN),
    ("auxiliary losses of experts",
     layered(partial(experts, HOMOGENEOUS, EP2, EP2), moe_aux_loss_coeff=0.5),
     f.LOSS_OF_OWN_TOKENS),
    (
        "experts of samples in a row",
        in_rows(
            layered(
                partial(experts, COLOCATED, DP2, {"cp": 2, "ep": 2}), moe_aux_loss_coeff=0.2
            )
        ),
        f.PADDING_CHOOSES_EXPERTS,
    ),
    ("experts with a capacity",
     layered(partial(experts, HOMOGENEOUS, EP2, EP2), moe_expert_capacity_factor=1.0),
     f.ROOM_OF_ALL_SAMPLES),
    ("experts with biases on tensor ranks",
     layered(partial(experts, HOMOGENEOUS, SLICED, SLICED), add_bias_linear=True),
     f.BIASES_AS_SLICES),
)  # fmt: skip
_LOSSES = of(
    "networks",
    ("padded vocabularies",
     layered(two(COLOCATED, DP2, TP2), vocab_size=19, make_vocab_size_divisible_by=3),
     f.PADDING_COUNTS),
    shows="loss",
)  # fmt: skip
_ROUTERS = of(
    "networks",
    ("a bias of the router", layered(partial(experts, HOMOGENEOUS, EP2, EP2), **BIAS),
     f.BIASES_OF_A_REPLICA),
    shows="weights",
)  # fmt: skip
_ENCODERS = of(
    "encoders",
    ("several encoders, modalities that samples lack",
     partial(three_modalities, COLOCATED, clip=DP2, qwen=DP2, audio=TP2, **{LANGUAGE: TP2}),
     named("pieces gathered in reverse order")),
    ("pooling heads", layered(two(COLOCATED, DP2, TP2), IMAGES, pooling_head=True),
     named("pieces gathered in reverse order")),
    ("attention windows of encoders",
     layered(partial(SHARED, qwen=CP2), "qwen", window_size=4, full_attention_layers=[2]),
     f.OTHER_CONTEXT),
    ("experts of encoders", two(COLOCATED, EP2, TP2, layered(two_modules, IMAGES, **MIXED)),
     f.OTHER_EXPERTS),
    ("inner layers of encoders (deepstack)",
     lambda: with_inner_layers(two(HETEROGENEOUS, ALONE, PP2)(), IMAGES, 1, 2),
     named("inner layers in another order")),
    ("text heads and encoders of sound",
     partial(apart_multimodal_config, {"words": ONE, "audio": ONE, LANGUAGE: (1, 1, 2)}, 2),
     named("rows sent in reverse order")),
    (
        "an encoder of one's own",
        layered(
            two(COLOCATED, DP2, TP2),
            IMAGES,
            builder="tests.experiment.own_encoder:PatchEncoder",
        ),
        named("a bridge averages gradients"),
    ),
)  # fmt: skip
_PLACES = of(
    "encoders",
    ("images of any size, positions of three axes", APART, f.GRIDS_TURNED),
    ("interpolated positions",
     layered(APART, "qwen", position_embedding_type="interpolated", max_position_embeddings=9),
     f.GRIDS_TURNED),
    least=1e-4,
)  # fmt: skip


def _adapted() -> ExperimentConfig:
    return with_adapter(apart_config(ONE, ONE, 2), (1, 1, 2))


_GRAPHS = of(
    "graphs of modules",
    ("text decoders", partial(decoded_config, {IMAGES: ONE, LANGUAGE: ONE, "writer": ONE}, 2),
     f.NOTHING_FROM_DECODERS),
    ("adapters", _adapted, named("rows sent in reverse order")),
    ("encoders that feed several modules", lambda: with_edge(_adapted()),
     named("gradients sent in reverse order")),
    ("image decoders", lambda: with_image_decoder(apart_config(ONE, ONE, 2), ONE),
     f.TARGETS_SWAPPED),
    ("image decoders of several replicas",
     partial(with_image_decoder, apart_config(ONE, ONE, 2), (1, 1, 2)), f.LOSS_COUNTED_BY_EACH),
    ("decoders of images of any size", partial(decoder_of_any_size, ONE, "qwen"),
     f.PATCHES_SIDE_BY_SIDE),
    ("decoders of sound", partial(decoder_of_any_size, ONE, "audio"), f.FRAMES_OF_ANOTHER_TOKEN),
)  # fmt: skip
CLAIMS: tuple[Claim, ...] = (*_NETWORKS, *_LOSSES, *_ROUTERS, *_ENCODERS, *_PLACES, *_GRAPHS)
