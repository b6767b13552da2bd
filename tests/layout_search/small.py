"""A model so small, and spaces so small, that every layout can be predicted one by one."""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mimokit.architecture import EncoderBranch, LanguageModel, MultimodalModel
from mimokit.architecture.from_config import branch_of_config, decoder_head, language_of_config
from mimokit.config import ModuleArchitecture
from mimokit.config.sizes import ParallelSizes
from mimokit.layout_search import SearchTask
from mimokit.prediction import Layout, Prediction, predict

Space = Mapping[str, Sequence[int]]


def network(**fields: Any) -> ModuleArchitecture:
    """Return a network without biases."""
    usual = {"add_bias_linear": False, "normalization": "RMSNorm", "vocab_size": 0}
    return ModuleArchitecture(**{**usual, "seq_length": 2048, **fields})


def language(experts: int = 0, layers: int = 4, **others: Any) -> LanguageModel:
    mixed = {"num_moe_experts": experts, "moe_ffn_hidden_size": 1024} if experts else {}
    return language_of_config(
        "language",
        network(
            num_layers=layers,
            **{
                "hidden_size": 2048, "num_attention_heads": 6, "num_query_groups": 2,
                "kv_channels": 128, "ffn_hidden_size": 5504, "gated_linear_unit": True,
                "vocab_size": 32000, **mixed, **others,
            },
        ),
    )  # fmt: skip


IMAGES = network(
    num_layers=4, hidden_size=1024, num_attention_heads=8, image_size=448, patch_size=14,
    num_channels=3, projector={"hidden_sizes": []},
)  # fmt: skip
RECEIVER = network(num_layers=4, hidden_size=2048, num_attention_heads=6, vocab_size=32000)
ADAPTER = network(
    num_layers=8, hidden_size=1536, num_attention_heads=8, ffn_hidden_size=4096, seq_length=1024,
    modal_type="rows", projector={"hidden_sizes": []},
)  # fmt: skip


def branch(name: str = "images") -> EncoderBranch:
    return branch_of_config(name, IMAGES, RECEIVER)


def model(experts: int = 0, layers: int = 4, encoders: int = 1) -> MultimodalModel | LanguageModel:
    text = language(experts, layers)
    names = ("images", "clips")[:encoders]
    return MultimodalModel("small", text, tuple(map(branch, names))) if encoders else text


def graph_model() -> MultimodalModel:
    """Return two encoders of which one feeds an adapter, a language model and a decoder."""
    images = branch_of_config("images", IMAGES, ADAPTER)
    adapter = branch_of_config("adapter", ADAPTER, RECEIVER)
    written = network(
        num_layers=4, hidden_size=1536, num_attention_heads=8, ffn_hidden_size=4096,
        vocab_size=8192, modal_type="text", position_embedding_type="learned_absolute",
    )  # fmt: skip
    writer = decoder_head("writer", written, RECEIVER)
    feeds = (("images", ("adapter",)), ("language", ("writer",)))
    branches = (images, branch("clips"), adapter)
    return MultimodalModel("graph", language(layers=8), branches, (writer,), feeds)


@dataclass(frozen=True)
class Brute:
    """What a search has to find: every layout that fits, and what was dropped."""

    fitting: list[Prediction]
    evaluated: int
    dropped: Counter[str]


def brute_force(task: SearchTask, language_space: Space, encoder_space: Space) -> Brute:
    """Predict every layout of a space, one after the other, with rules written out for integers.

    One encoder at most.
    """
    dropped: Counter[str] = Counter()
    own = [s for s in _valid(task, "language", language_space, dropped) if _alone(task, s, dropped)]
    ranked = [
        (mode, layout)
        for mode in task.constraints.modes
        for layout in _layouts(task, mode, own, encoder_space, dropped)
        if layout.gpus >= task.constraints.least_gpus
    ]
    found = [in_fewest_passes(task, layout) for _, layout in ranked]
    fits = [one for one in found if one.peak_memory <= task.memory_limit]
    dropped["more memory than may be planned on a GPU"] += len(found) - len(fits)
    return Brute(fits, len(found), +dropped)


def in_fewest_passes(task: SearchTask, layout: Layout) -> Prediction:
    """Predict a layout with as few passes of colocated encoders as fit, 1, 2, 4, … or one each."""

    def predicted(each: int | None) -> Prediction:
        chosen = replace(layout, encoder_microbatches=each)
        return predict(task.model, chosen, task.workload, task.hardware, software=task.software)

    sizes, passes, found = layout.modules["language"], 2, predicted(None)
    count = _count(task, sizes)
    while layout.mode == "colocated" and found.peak_memory > task.memory_limit:
        if passes >= 2 * count:
            break
        found = predicted(math.ceil(count / min(passes, count)))
        passes *= 2
    return found


def _count(task: SearchTask, language: ParallelSizes) -> int:
    """Return the micro-batches of a step."""
    count: int = task.workload.global_batch_size // (language.data * language.micro_batch)
    return count


def _layouts(
    task: SearchTask, mode: str, languages: list[ParallelSizes], space: Space, dropped: Counter[str]
) -> Iterator[Layout]:
    if not task.branches:
        yield from (Layout(mode, {"language": sizes}) for sizes in languages)  # type: ignore[arg-type]
        return
    if mode == "homogeneous":
        for sizes in languages:
            inside = replace(sizes, pipeline=1, virtual=1, expert=1)
            broken = first_broken(task, "images", inside)
            if broken:
                dropped[f"images: {broken}"] += 1
            else:
                yield Layout("homogeneous", {"images": inside, "language": sizes})
        return
    silent: Counter[str] = Counter()
    for encoder, sizes in itertools.product(_valid(task, "images", space, silent), languages):
        if mode == "colocated" and encoder.ranks != sizes.ranks:
            continue
        if mode == "heterogeneous" and encoder.ranks + sizes.ranks > task.gpus:
            continue
        if mode == "colocated" and encoder.pipeline not in (1, sizes.pipeline):
            dropped["an encoder on shared ranks has a pipeline of other stages"] += 1
        elif max(encoder.data, sizes.data) % min(encoder.data, sizes.data):
            dropped["replicas of one module do not divide those of the other"] += 1
        elif sizes.data * sizes.micro_batch % encoder.data:
            dropped["a micro-batch has fewer samples than the encoder has replicas"] += 1
        elif encoder.virtual > 1 and _count(task, sizes) % encoder.pipeline:
            dropped["interleaved stages need micro-batches in multiples of the stages"] += 1
        else:
            samples = sizes.data * sizes.micro_batch // encoder.data
            modules = {"images": replace(encoder, micro_batch=samples), "language": sizes}
            yield Layout(mode, modules)  # type: ignore[arg-type]


def _valid(
    task: SearchTask, name: str, space: Space, dropped: Counter[str]
) -> Iterator[ParallelSizes]:
    for values in itertools.product(*space.values()):
        sizes = ParallelSizes(**dict(zip(space, values, strict=True)))
        broken = first_broken(task, name, sizes)
        if broken:
            dropped[f"{name}: {broken}"] += 1
        else:
            yield sizes


def without_sizes(task: SearchTask, language_space: Space, encoder_space: Space) -> list[str]:
    """Return the modules of which no sizes are valid, whatever the mode: a search refuses those."""
    spaces = {"language": language_space, **{b.name: encoder_space for b in task.branches}}
    return [name for name, space in spaces.items() if not any(_valid(task, name, space, Counter()))]


def _alone(task: SearchTask, sizes: ParallelSizes, dropped: Counter[str]) -> bool:
    alone = Layout("homogeneous", {"language": sizes})
    found = predict(task.language, alone, task.workload, task.hardware, software=task.software)
    if found.peak_memory <= task.memory_limit:
        return True
    dropped["language: more memory than may be planned on a GPU, without any encoder"] += 1
    return False


def first_broken(task: SearchTask, name: str, s: ParallelSizes) -> str | None:
    """Return the first rule that sizes break, each written with plain integers."""
    is_language = name == "language"
    net = task.language.net if is_language else task.branches[0].encoder.net
    seq = task.workload.seq_length if is_language else 1024
    batch = task.workload.global_batch_size
    cut = s.context * (2 if is_language else 1) if s.context > 1 else 1
    chunks = s.pipeline * s.virtual
    experts = net.moe.experts if net.moe else 0
    checks = [
        (net.heads % s.tensor, "tensor parallelism does not divide the attention heads"),
        (
            net.kv_heads % s.tensor and s.tensor % net.kv_heads,
            "tensor parallelism and the key heads do not divide each other",
        ),
        (
            net.moe is None and net.ffn % s.tensor,
            "tensor parallelism does not divide the feed-forward width",
        ),
        (seq % cut, "context parallelism does not divide the sequence"),
        (
            is_language and (seq // s.context) % s.tensor,
            "sequence parallelism does not divide the sequence",
        ),
        (s.virtual > 1 and s.pipeline == 1, "several chunks per stage need a pipeline"),
        (
            chunks > net.layers or (net.layers % chunks and (net.layers + 2) % chunks),
            "layers cannot be dealt to the stages",
        ),
        (
            s.expert > 1 and (not experts or experts % s.expert),
            "expert parallelism does not divide the experts",
        ),
        (s.tensor * s.context * s.pipeline * s.data > task.gpus, "more GPUs than there are"),
        (
            s.tensor * s.context * s.data % s.expert,
            "expert parallelism does not divide the ranks of a stage",
        ),
        (
            is_language and batch % (s.data * s.micro_batch),
            "the samples of a step cannot be dealt to the replicas",
        ),
        (
            is_language and s.virtual > 1 and batch // (s.data * s.micro_batch) % s.pipeline,
            "interleaved stages need micro-batches in multiples of the stages",
        ),
        (s.recompute == 1, "flash attention leaves selective recomputation nothing to save"),
        (
            s.data * s.context % s.instances
            or s.tensor * s.context * s.data // s.expert % s.instances,
            "optimizer instances do not divide the replicas",
        ),
    ]
    return next((reason for broken, reason in checks if broken), None)
