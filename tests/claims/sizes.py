"""Claims about parallel sizes: each axis in each mode, and what else may be chosen about sizes."""

from functools import partial

from tests.claims import faults as f
from tests.claims.claim import Claim, of
from tests.claims.faults import named
from tests.claims.layouts import (
    ALONE,
    CHUNKS,
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
    layered,
    run_with,
    two,
    two_modules,
)

ENDS = {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}
PARTS = {**SP2, **EP2, "etp": 2}
GATHERED = {**EP2, "moe_token_dispatcher_type": "allgather"}

CLAIMS: tuple[Claim, ...] = tuple(
    of(
        "parallel sizes",
        ("tensor parallelism", two(HOMOGENEOUS, TP2, TP2), named("no sum of the input's gradient")),
        ("tensor parallelism", two(COLOCATED, TP2, DP2), named("rows of other replicas are 0")),
        ("tensor parallelism", two(HETEROGENEOUS, ALONE, TP2),
         named("the same in feed-forward layers alone")),
        ("sequence parallelism", two(HOMOGENEOUS, SP2, SP2),
         named("gradients of slices are not summed")),
        ("sequence parallelism", two(COLOCATED, SP2, DP2), f.SLICES_SUMMED),
        ("sequence parallelism", two(HETEROGENEOUS, ALONE, SP2),
         named("gradients of slices are not summed")),
        ("context parallelism", two(HOMOGENEOUS, CP2, CP2),
         named("rows that all contexts compute alike counted by each")),
        ("context parallelism", two(COLOCATED, DP2, CP2),
         named("an encoder learns from the tokens of one context")),
        ("context parallelism", two(HETEROGENEOUS, ALONE, CP2),
         named("attention over contexts of a wrong scale")),
        ("data parallelism", two(HOMOGENEOUS, DP2, DP2), f.NOT_REDUCED),
        ("data parallelism", two(COLOCATED, DP2, TP2), named("a bridge averages gradients")),
        ("data parallelism", two(HETEROGENEOUS, DP2), f.NOT_REDUCED),
        ("expert parallelism", partial(experts, HOMOGENEOUS, EP2, EP2), f.OTHER_EXPERTS),
        ("expert parallelism", partial(experts, COLOCATED, DP2, EP2),
         named("tokens go to the experts of others")),
        ("expert parallelism", partial(experts, HETEROGENEOUS, ALONE, EP2),
         named("experts summed over the ranks of others")),
        ("pipelines", two(HOMOGENEOUS, PP2, PP2), f.DOUBLED_BETWEEN_STAGES),
        ("pipelines", two(COLOCATED, DP2, PP2), f.KEPT_AND_LOST),
        ("pipelines", two(HETEROGENEOUS, ALONE, PP2), named("gradients doubled between stages")),
        ("interleaved chunks", two(HOMOGENEOUS, PP2, CHUNKS, FOUR_LAYERS),
         f.DOUBLED_BETWEEN_STAGES),
        ("interleaved chunks", two(COLOCATED, DP2, CHUNKS, FOUR_LAYERS), f.DOUBLED_BETWEEN_STAGES),
        ("interleaved chunks", two(HETEROGENEOUS, ALONE, CHUNKS, FOUR_LAYERS),
         named("hidden states doubled between chunks")),
        ("fan-in", two(COLOCATED, DP2, TP2), named("pieces gathered in reverse order")),
        ("fan-in", two(HETEROGENEOUS, DP2), named("rows sent in reverse order")),
        ("fan-out", two(COLOCATED, TP2, DP2), named("rows kept one too far")),
        ("fan-out", two(HETEROGENEOUS, ALONE, DP2), named("gradients sent in reverse order")),
        ("GPipe", run_with(two(HOMOGENEOUS, PP2, PP2), pipeline_order="gpipe"),
         named("gradients doubled between stages")),
        ("ZB-H1", run_with(two(HETEROGENEOUS, ALONE, PP2), pipeline_order="zb-h1"),
         named("gradients of weights added twice")),
        ("chunks of encoders",
         two(HETEROGENEOUS, CHUNKS, PP2, layered(two_modules, IMAGES, num_layers=4)),
         f.DOUBLED_BETWEEN_STAGES),
        ("encoders in passes of several micro-batches",
         run_with(two(COLOCATED, DP2, PP2), encoder_microbatches=2), f.KEPT_AND_LOST),
        ("ends that count as layers",
         two(HETEROGENEOUS, ALONE, {**CHUNKS, **ENDS}, layered(two_modules, num_layers=6)),
         f.DOUBLED_BETWEEN_STAGES),
        ("expert tensor parallelism", partial(experts, HOMOGENEOUS, PARTS, PARTS),
         named("the second matrix of experts is scaled")),
        ("experts that gather their tokens", partial(experts, HOMOGENEOUS, GATHERED, GATHERED),
         f.OTHER_EXPERTS),
    )
)  # fmt: skip
