"""Which graphs of modules can run: encoders, the language module, text decoders behind it."""

from __future__ import annotations

from collections.abc import Iterator

from mimokit.config.data import DataConfig
from mimokit.config.errors import Problem
from mimokit.config.model import MimoParallelismConfig


def graph_problems(model: MimoParallelismConfig, data: DataConfig | None) -> Iterator[Problem]:
    """Yield what of the graph of modules can be planned but not run.

    Args:
        model: its encoders may feed the language module and nobody else, the modules behind the
            language module nobody.
        data: what decoders have to spell, None where it is not known.
    """
    language, decoders = model.llm_module_name, model.decoder_module_names
    for name, fed in model.module_topology.items():
        if name != language and tuple(fed) != (() if name in decoders else (language,)):
            right = (
                f"let modules behind '{language}' feed nobody"
                if name in decoders
                else f"let every encoder feed '{language}' and nobody else"
            )
            yield Problem(
                name,
                "topology",
                ", ".join(fed),
                f"Module '{name}': it feeds {', '.join(fed) or 'nobody'}, which can be planned but "
                f"not run yet; {right} until then.",
            )
    for name in decoders:
        if name in model.module_architectures:
            yield from _decoder_problems(model, name, data)


def _decoder_problems(
    model: MimoParallelismConfig, name: str, data: DataConfig | None
) -> Iterator[Problem]:
    network, sizes = model.get_architecture(name), model.get_parallelism(name)
    path = f"model.module_architectures.{name}"
    if network.modality != "text":
        yield Problem(
            name,
            "modal_type",
            network.modal_type,
            f"Module '{name}': it comes behind '{model.llm_module_name}' and is no text decoder, "
            "which can be planned but not run yet; set its modal_type to text, and its vocab_size "
            "to the tokens that it writes.",
            {"path": f"{path}.modal_type", "value": "text"},
        )
        return
    if data is not None and network.vocab_size < data.vocab_size:
        yield Problem(
            name,
            "vocab_size",
            network.vocab_size,
            f"Module '{name}': vocab_size is {network.vocab_size}, but it writes tokens of the "
            f"{data.vocab_size} of data.vocab_size; raise it.",
            {"path": f"{path}.vocab_size", "value": data.vocab_size},
        )
    elif network.vocab_size % sizes.tensor_parallel:
        yield Problem(
            name,
            "vocab_size",
            network.vocab_size,
            f"Module '{name}': vocab_size is {network.vocab_size}, which tensor_parallel "
            f"{sizes.tensor_parallel} does not divide; make it a multiple.",
        )
