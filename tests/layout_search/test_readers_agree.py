"""Config, prediction and search find the same problems in random layouts.

All of them read one table of rules (tests/config/test_layout_rules.py compares it with brute force
on 100,000 layouts). Each builds the sizes and facts that rules read from what it is given: these
have to be the same. Where readers differ on purpose, the reason stands here.
"""

import importlib
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mimokit.architecture.from_config import model_of_config
from mimokit.architecture.modules import Model
from mimokit.config import (
    DataConfig,
    MimoParallelismConfig,
    ModuleArchitecture,
    ModuleParallelismConfig,
    Problem,
    RuntimeConfig,
)
from mimokit.config.rules.context import ValidationContext
from mimokit.config.rules.ranks import mode_problems
from mimokit.config.rules.sharding import sharding_problems
from mimokit.config.sizes import ParallelSizes
from mimokit.layout_search.task import SearchTask
from mimokit.layout_search.why_not import broken_sentences
from mimokit.prediction import EncoderInput, Layout, Workload
from mimokit.prediction.hardware import load_hardware
from mimokit.prediction.step_time import load_software
from mimokit.prediction.validity import broken_layout_rules

H100, SOFTWARE = load_hardware("h100"), load_software("megatron-bridge")
NETWORKS, LAYOUTS = 40, 80
MODES = ("homogeneous", "colocated", "heterogeneous")
ENDS = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
SEQ = 96

ON_PURPOSE: Mapping[str, tuple[tuple[str, ...], str]] = {
    r"vocab_size is": (
        ("config",),
        "predictions and searches pad the vocabulary, as Megatron does; runs here do not",
    ),
    r"samples of a micro-batch|times data_parallel .* samples": (
        ("config", "search"),
        "predictions take encoders whose micro-batches have other samples",
    ),
    r"recompute is selective": (("search",), "valid, but it saves nothing with flash attention"),
    r"GPUs and there are": (("search",), "only a search is given a number of GPUs"),
    r"Megatron-Core takes micro": (("search",), "valid, but Megatron-Core does not train it"),
    r"'images': context_parallel is \d+, which cuts": (
        ("search",),
        "inputs of encoders are padded to fit; a search does not try to cut them unevenly",
    ),
    r"in its first stage": (
        ("search",),
        "predictions also take encoders that are spread over the pipeline",
    ),
    r"rank_offset": (("config",), "layouts have no offsets"),
}
"""Sentence -> the readers that say it, and why the others do not."""

FORMS = (
    # The layers that a prediction deals freely are dealt one way in a config, which says how.
    (r"num_layers is .*|account_for_loss.* is true.*", "layers"),
)


def a_network(rng: np.random.Generator, language: bool) -> ModuleArchitecture:
    heads = int(rng.choice([4, 6, 8, 12, 16]))
    experts = int(rng.choice([0, 0, 4, 6, 8]))
    groups = [n for n in (1, 2, 3, 4, 6, 8, heads) if heads % n == 0]
    fields: dict[str, Any] = {
        "num_layers": int(rng.choice([4, 6, 8, 10, 12])),
        "hidden_size": heads * int(rng.choice([16, 20])),
        "num_attention_heads": heads,
        "num_query_groups": int(rng.choice(groups)),
        "ffn_hidden_size": int(rng.choice([96, 128, 240, 256])),
        "seq_length": SEQ,
        "vocab_size": 1024 if language else 0,
        "add_key_bias": bool(rng.integers(2)),
    }
    if not language:
        inner = list(range(1, 1 + int(rng.choice([0, 1, 3]))))
        widths = [int(rng.choice([96, 100, 128]))]
        fields["projector"] = {"hidden_sizes": widths, "deepstack_layers": inner or None}
    if experts:
        fields["num_moe_experts"] = experts
        fields["first_k_dense_replace"] = int(rng.choice([0, 1]))
        fields["moe_shared_expert_intermediate_size"] = int(rng.choice([48, 64, 66]))
        fields["add_bias_linear"] = bool(rng.integers(2))
    if language:
        fields["mtp_num_layers"] = int(rng.choice([0, 1]))
    return ModuleArchitecture(**fields)


def some_sizes(rng: np.random.Generator, language: bool) -> ParallelSizes:
    choices = {
        "tensor": [1, 2, 3, 4, 6, 8],
        "pipeline": [1, 1, 2, 3, 4],
        "virtual": [1, 1, 2, 3] if language else [1],
        "context": [1, 1, 2, 3, 4],
        "expert": [1, 1, 2, 3, 4],
        "expert_tensor": [1, 1, 1, 2, 3],
        "data": [1, 2, 3, 4, 6, 8],
        "micro_batch": [1, 2, 3, 4, 6],
        "recompute": [0, 1, 2],
        "instances": [1, 2, 3],
    }
    drawn: dict[str, Any] = {k: int(v[rng.integers(len(v))]) for k, v in choices.items()}
    return ParallelSizes(**drawn, sequence_parallel=bool(rng.integers(2)))


def an_encoder(rng: np.random.Generator, mode: str, own: ParallelSizes) -> ParallelSizes:
    """Return sizes of an encoder; in homogeneous mode close to those in the first stage."""
    sizes = some_sizes(rng, False)
    if mode == "homogeneous":
        keep = rng.choice(["tensor", "context", "data", "nothing"])
        changed = {} if keep == "nothing" else {str(keep): getattr(sizes, str(keep))}
        sizes = replace(own.in_first_stage, **changed)
    samples = int(own.micro_batch * own.data)
    return replace(sizes, micro_batch=max(1, samples // int(sizes.data)))


def written(sizes: ParallelSizes, layers: int) -> ModuleParallelismConfig:
    uneven = True if layers % (sizes.pipeline * sizes.virtual) else None
    return ModuleParallelismConfig.model_construct(
        tensor_parallel=sizes.tensor,
        pipeline_parallel=sizes.pipeline,
        context_parallel=sizes.context,
        expert_parallel=sizes.expert,
        expert_tensor_parallel=sizes.expert_tensor,
        data_parallel=sizes.data,
        rank_offset=0,
        virtual_pipeline_model_parallel_size=sizes.virtual,
        num_distributed_optimizer_instances=sizes.instances,
        sequence_parallel=bool(sizes.sequence_parallel),
        **dict.fromkeys(ENDS, uneven),
    )


Networks = Mapping[str, ModuleArchitecture]


def config_of(networks: Networks, layout: Layout) -> MimoParallelismConfig:
    """Return the layout as configs write it: homogeneous encoders as the language module."""
    own = layout.modules["language"]
    modules = {}
    for name, sizes in layout.modules.items():
        if layout.mode == "homogeneous" and name != "language":
            modules[name] = written(
                replace(sizes, pipeline=own.pipeline, expert=own.expert), 1
            ).model_copy(update=dict.fromkeys(ENDS))
        else:
            modules[name] = written(sizes, networks[name].num_layers)
    return MimoParallelismConfig.model_construct(
        llm_module_name="language",
        deployment_mode=layout.mode,
        module_parallelisms=modules,
        special_token_ids={},
        module_architectures=networks,
    )


def by_config(networks: Networks, layout: Layout, microbatches: int) -> list[Problem]:
    own = layout.modules["language"]
    data = DataConfig.model_construct(
        base_batch_size=own.micro_batch, num_microbatches=microbatches, seq_length=SEQ
    )
    runtime = RuntimeConfig.model_construct(pipeline_schedule="three_phase")
    context = ValidationContext(config_of(networks, layout), data, runtime)
    fields = ("overlaps", "have no module", "has no module", "end at rank")
    return [
        one
        for check in (sharding_problems, mode_problems)
        for one in check(context)
        if not any(words in one.sentence for words in fields)
        and "in homogeneous mode it has what" not in one.sentence
    ]


def model_of(networks: Networks) -> Model:
    sizes = dict.fromkeys(networks, ModuleParallelismConfig(data_parallel=1))
    return model_of_config(
        MimoParallelismConfig.model_construct(
            llm_module_name="language",
            deployment_mode="colocated",
            module_parallelisms=sizes,
            module_architectures=dict(networks),
        )
    )


def expected_of(sentence: str, readers: tuple[str, ...]) -> tuple[str, ...]:
    """Return the readers that have to say a sentence."""
    some = (who for words, (who, _) in ON_PURPOSE.items() if re.search(words, sentence))
    return next(some, readers)


def sentences(found: Any) -> Counter[str]:
    plain = [getattr(one, "sentence", one) for one in found]
    for form, short in FORMS:
        plain = [re.sub(rf"(Module '\w+'): (?:{form})", rf"\1: {short}", one) for one in plain]
    return Counter(plain)


def differences(networks: int, layouts: int) -> dict[str, str]:
    """Return sentence -> the readers that say it, where not all do and nothing says why."""
    rng, wrong, seen = np.random.default_rng(0), {}, Counter[str]()
    for _ in range(networks):
        nets = {"images": a_network(rng, False), "language": a_network(rng, True)}
        model = model_of(nets)
        for _ in range(layouts):
            mode = MODES[rng.integers(3)]
            own = some_sizes(rng, True)
            modules = {"images": an_encoder(rng, mode, own), "language": own}
            layout = Layout(mode, modules, "language")  # type: ignore[arg-type]
            count = int(rng.choice([1, 2, 3, 4, 6]))
            workload = Workload(
                SEQ, int(own.micro_batch * own.data) * count, inputs={"images": EncoderInput(SEQ)}
            )
            task = SearchTask(model, workload, 2**20, H100, SOFTWARE)
            readers = {
                "config": sentences(by_config(nets, layout, count)),
                "prediction": sentences(broken_layout_rules(model, layout, workload)),
                "search": sentences(broken_sentences(task, layout)),
            }
            for one in set().union(*readers.values()):
                saying = tuple(name for name, said in readers.items() if said[one])
                seen[one] += 1
                if saying != expected_of(one, tuple(readers)):
                    wrong[one] = f"{' and '.join(saying)}: {layout}"
    assert len(seen) > 100
    return wrong


def test_readers_find_the_same_problems() -> None:
    assert differences(NETWORKS, LAYOUTS) == {}


@pytest.mark.parametrize(
    ("reader", "wrong"),
    [
        ("mimokit.prediction.validity", {"kv_heads": 1}),
        ("mimokit.prediction.validity", {"seq": 0}),
        ("mimokit.layout_search.candidates", {"experts": 8}),
    ],
)
def test_a_reader_with_wrong_facts_is_found(
    reader: str, wrong: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "search_facts" if reader.endswith("candidates") else "facts_of"
    right = getattr(importlib.import_module(reader), name)

    def planted(*arguments: Any) -> Any:
        return replace(right(*arguments), **wrong)

    for module in (reader, "mimokit.layout_search.why_not"):
        monkeypatch.setattr(f"{module}.{name}", planted, raising=False)
    assert differences(20, 30) != {}
