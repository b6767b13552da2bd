"""Claims about memory, precision, data and what replicas exchange."""

from dataclasses import replace
from functools import partial

from mimokit.config import ModuleOptimizerConfig
from tests.claims import faults as f
from tests.claims.claim import Claim, of
from tests.claims.faults import named
from tests.claims.layouts import (
    ALONE,
    COLOCATED,
    CP2,
    DP2,
    HETEROGENEOUS,
    HOMOGENEOUS,
    IMAGES,
    PP2,
    TP2,
    experts,
    in_rows,
    layered,
    run_with,
    three_modalities,
    two,
    with_strategy,
)
from tests.layouts_multimodal import LANGUAGE

FULL, CORE = {"recompute_granularity": "full"}, {"recompute_granularity": "selective"}
STATES = {**DP2, "use_distributed_optimizer": True}
INSTANCES = {**STATES, "dp": 4, "num_distributed_optimizer_instances": 2}
SHARDS = {**DP2, "use_megatron_fsdp": True}
EXPERTS = {**SHARDS, "ep": 2}
BIAS = {"moe_router_enable_expert_bias": True, "moe_router_bias_update_rate": 0.05}
OVERLAPPED = {**DP2, "overlap_grad_reduce": True}
ALL = ("clip", "qwen", "audio", LANGUAGE)
FRAMES = run_with(
    partial(three_modalities, COLOCATED, clip=DP2, qwen=DP2, audio=DP2, **{LANGUAGE: TP2}),
    patch_type=["vit_frame_parallel"],
)

_MEMORY = of(
    "memory and optimizers",
    ("layers computed again", two(HOMOGENEOUS, {**TP2, **FULL}, {**TP2, **FULL}),
     named("layers computed again over another group")),
    ("dropout of layers computed again",
     layered(two(HETEROGENEOUS, ALONE, {**PP2, **FULL}), hidden_dropout=0.1), f.OTHER_MASKS_AGAIN),
    ("attention computed again", two(COLOCATED, DP2, {**CP2, **CORE}), f.OTHER_CONTEXT),
    ("several instances of shards of states", two(HOMOGENEOUS, INSTANCES, INSTANCES),
     named("gradients are summed within instances alone")),
    ("layers in full shards (FSDP2)", two(HOMOGENEOUS, SHARDS, SHARDS),
     named("full shards that are not scaled")),
    ("layers in full shards (FSDP2)", two(COLOCATED, SHARDS, TP2),
     named("full shards that are not scaled")),
    ("experts with a bias in full shards",
     layered(partial(experts, HOMOGENEOUS, EXPERTS, EXPERTS), **BIAS),
     named("full shards that are not scaled")),
    ("reduction during the backward pass", two(HOMOGENEOUS, OVERLAPPED, OVERLAPPED),
     named("an overlapped reduction is left out")),
)  # fmt: skip
_UPDATES = of(
    "memory and optimizers",
    ("shards of optimizer states (ZeRO-1)", two(HOMOGENEOUS, STATES, STATES),
     named("shards of weights are not gathered")),
    (
        "rates of each module",
        layered(two(COLOCATED, DP2, TP2),
                IMAGES,
                optimizer=ModuleOptimizerConfig(lr=3e-3, weight_decay=0.3)),
        f.RATES_OF_THE_RUN,
    ),
    ("AdamW", two(HOMOGENEOUS, DP2, DP2), f.NEVER_UPDATED),
    shows="weights",
)  # fmt: skip
_NORMS = of(
    "memory and optimizers",
    ("shards of optimizer states (ZeRO-1)", two(COLOCATED, STATES, TP2), f.NORM_OF_WHOLE_BUFFERS),
    ("clipping by the norm of all modules", two(HOMOGENEOUS, TP2, TP2),
     named("a norm that counts shards on the first rank alone")),
    ("clipping by the norm of all modules", two(COLOCATED, DP2, CP2),
     named("a norm that counts each context")),
    least=1e-4,
)  # fmt: skip
_PRECISIONS = of(
    "precision",
    *(
        (precision, run_with(make, precision=precision), fault)
        for precision, make, fault in (
            ("bf16", two(COLOCATED, TP2, DP2), f.HALF_OF_THE_ROWS),
            ("fp16", two(HETEROGENEOUS, ALONE, DP2), f.NOT_REDUCED),
            ("fp8", two(HOMOGENEOUS, DP2, DP2), f.NOT_REDUCED),
        )
    ),
    least=0.2,
)
_MAIN_WEIGHTS = of(
    "precision",
    ("bf16 with main weights in fp32", run_with(two(HOMOGENEOUS, DP2, DP2), precision="bf16"),
     f.NOT_ROUNDED),
    shows="weights",
    least=0.2,
)  # fmt: skip
_DATA = of(
    "data",
    (
        "samples in a row",
        in_rows(
            partial(
                three_modalities, COLOCATED, clip=DP2, qwen=DP2, audio=DP2, **{LANGUAGE: CP2}
            )
        ),
        f.ACROSS_SAMPLES,
    ),
    ("balanced frames", FRAMES, named("pieces gathered in reverse order")),
    (
        "samples in an order that balances them",
        layered(
            run_with(partial(three_modalities, HOMOGENEOUS, **dict.fromkeys(ALL, DP2)),
                     sample_order="balanced"),
            hidden_dropout=0.1,
        ),
        f.SAMPLES_OF_THE_RANK,
    ),
    ("dropout of samples in a row",
     layered(in_rows(two(COLOCATED, DP2, CP2)), hidden_dropout=0.1), f.ROWS_AS_ONE_SAMPLE),
    ("dropout of sequences in parts",
     layered(two(COLOCATED, DP2, CP2), attention_dropout=0.2, num_query_groups=2),
     f.FIRST_POSITIONS_DROPPED),
    ("dropout of balanced frames", layered(FRAMES, "qwen", hidden_dropout=0.1),
     f.IMAGES_OF_THE_RANK),
    (
        "a forward step of one's own",
        run_with(two(COLOCATED, DP2, TP2),
                 forward_step="tests.experiment.own_forward_step:forward_step"),
        named("a bridge averages gradients"),
    ),
)  # fmt: skip
_STRATEGIES = (
    replace(claim, steps=4)
    for claim in of(
        "communication strategies between replicas",
        *(
            (name, with_strategy(two(HOMOGENEOUS), name=name, replicas=2, **fields), fault)
            for name, fields, fault in (
                ("simple_reduce", {}, f.LAST_BUCKET_LEFT),
                ("fedavg", {"H": 2}, f.EXCHANGED_LATE),
                ("diloco", {"H": 2}, f.OUTER_WEIGHTS_SHARED),
                ("sparta", {"p_sparta": 0.25}, f.MASKS_OF_THE_NEXT_STEP),
            )
        ),
        shows="weights",
        least=1e-4,
    )
)
CLAIMS: tuple[Claim, ...] = (
    *_MEMORY,
    *_UPDATES,
    *_NORMS,
    *_PRECISIONS,
    *_MAIN_WEIGHTS,
    *_DATA,
    *_STRATEGIES,
)
