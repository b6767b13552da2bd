"""What is refused before anything is predicted."""

import itertools
from collections.abc import Iterator, Sequence
from typing import get_args

import numpy as np

from mimokit.architecture.modules import (
    DecoderHead,
    EncoderBranch,
    LanguageModel,
    Model,
    Module,
    MultimodalModel,
)
from mimokit.axes import COUNT_FIELDS
from mimokit.config.errors import ConfigError, Problem, refuse_if_any, unknown_name
from mimokit.config.rules.facts import ModuleFacts, PairFacts, facts_of_network
from mimokit.config.rules.module_rules import broken_rules
from mimokit.config.rules.pair_rules import (
    PAIR_RULES,
    REPLICAS,
    SAME_SAMPLES,
    SAMPLES,
    PairRule,
    broken_pair_rules,
)
from mimokit.config.runtime import BLOCK_SCALED, RUNNABLE_PRECISIONS, TF32, DeploymentMode
from mimokit.config.sizes import RECOMPUTE_NAMES
from mimokit.prediction.hardware import Hardware
from mimokit.prediction.layout import Layout, connected, pairs_of_others
from mimokit.prediction.step_time import Software
from mimokit.prediction.step_time.software import MIMOKIT
from mimokit.prediction.workload import Workload, language_of, modules_of
from mimokit.units import counted

WITHOUT_SAMPLES = tuple(rule for rule in PAIR_RULES if rule not in (SAMPLES, SAME_SAMPLES))
"""The rules of predictions, which take encoders whose micro-batches have other samples."""


APART = (
    "adapters and modules behind the language module are predicted on separate ranks alone (mode "
    "heterogeneous)"
)


def check_precision(hardware: Hardware, workload: Workload) -> None:
    """Refuse a precision that the hardware does not have."""
    precision, known = workload.precision, hardware.precisions
    if precision in known:
        return
    if precision not in (TF32, *RUNNABLE_PRECISIONS, *BLOCK_SCALED):
        raise unknown_name("Precision", precision, known)
    sentence = (
        f"Precision '{precision}': {hardware.name} does not multiply in it; choose "
        f"{', '.join(known)}, or another GPU."
    )
    raise ConfigError([Problem("precision", "name", precision, sentence)])


def check_links(hardware: Hardware, ranks: int) -> None:
    """Refuse several ranks where the hardware's links are not known."""
    if ranks == 1 or hardware.has_links:
        return
    sentence = (
        f"Hardware '{hardware.name}': it has no links, as one rank alone was measured, but the "
        f"layout has {ranks} ranks; calibrate a cluster of 2 or more engines, or write bandwidth "
        "and latency of domain and network into its file."
    )
    raise ConfigError([Problem("hardware", "domain", hardware.name, sentence)])


def check_positions(model: Model, workload: Workload) -> None:
    """Refuse sequences that are longer than a table of learned positions."""
    refuse_if_any(
        Problem(
            module.name,
            "seq_length",
            workload.seq_length,
            f"Module '{module.name}': it has {counted(module.positions, 'learned position')}, but "
            f"a sequence has {counted(workload.seq_length, 'token')} (seq_length); shorten that.",
        )
        for module in modules_of(model)
        if isinstance(module, LanguageModel | DecoderHead)
        and 0 < module.positions < workload.seq_length
    )


def check_layout(model: Model, layout: Layout, workload: Workload) -> None:
    """Refuse a layout that cannot be built, before anything is predicted of it.

    Raises:
        ConfigError: an unknown mode or module, sizes that are not whole numbers of at least 1,
            or sizes that do not divide what they shard.
    """
    modes = get_args(DeploymentMode)
    if layout.mode not in modes:
        raise unknown_name("Mode", layout.mode, modes)
    refuse_if_any(misplaced(model, layout))
    known = tuple(module.name for module in modules_of(model))
    for name in (*workload.inputs, *workload.frozen):
        if name not in known:
            raise unknown_name("Module", name, known)
    check_counts(layout)
    refuse_if_any(_on_shared_ranks(connected(layout, model)))
    check_positions(model, workload)
    refuse_if_any(broken_layout_rules(model, layout, workload))


def check_counts(layout: Layout) -> None:
    """Refuse a layout of no modules, and sizes that are not whole numbers of at least 1."""
    if not layout.modules:
        sentence = "Layout: it has no modules; give each its sizes."
        raise ConfigError([Problem("layout", "modules", None, sentence)])
    refuse_if_any(
        Problem(
            name,
            field,
            value,
            f"Module '{name}': {field} is {value}; it must be a whole number of at least 1.",
        )
        for name, sizes in layout.modules.items()
        for field in COUNT_FIELDS
        if (value := getattr(sizes, field)) != value // 1 or value < 1
    )


def broken_layout_rules(model: Model, layout: Layout, workload: Workload) -> Iterator[Problem]:
    """Yield one problem per rule that a layout breaks; its sizes are whole numbers above 0."""
    for module in modules_of(model):
        name = layout.language if isinstance(module, LanguageModel) else module.name
        sizes = layout.modules[name]
        yield from broken_rules(sizes, facts_of(model, module, workload, name))
        if sizes.recompute not in range(len(RECOMPUTE_NAMES)):
            known = ", ".join(f"{i} ({name})" for i, name in enumerate(RECOMPUTE_NAMES))
            yield _layout_problem(name, f"recompute {sizes.recompute} is none of {known}")
    yield from broken_pairs(layout, workload, WITHOUT_SAMPLES)


def broken_pairs(
    layout: Layout, workload: Workload, rules: Sequence[PairRule] = PAIR_RULES
) -> Iterator[Problem]:
    """Yield one problem per rule that a module next to another breaks."""
    for name in layout.others:
        samples = workload.global_batch_size
        facts = PairFacts(layout.mode, name, layout.language, global_batch_size=samples)
        language = layout.modules[layout.language]
        yield from broken_pair_rules(layout.modules[name], language, facts, rules)
    for name, other in pairs_of_others(layout.mode, layout.topology, layout.language):
        sizes = layout.modules[name], layout.modules[other]
        yield from broken_pair_rules(*sizes, PairFacts(layout.mode, name, other), (REPLICAS,))


def facts_of(
    model: Model, module: Module, workload: Workload, name: str | None = None
) -> ModuleFacts:
    """Return what rules read of a module; the vocabulary is padded, as Megatron does.

    The sequences of encoders are not among it: their length is a mean, and inputs are padded.
    """
    is_language, encodes = isinstance(module, LanguageModel), isinstance(module, EncoderBranch)
    return facts_of_network(
        module.network,
        name=name or module.name,
        is_language=is_language,
        extra=module.next_token_layers,
        projector_widths=_widths_on_ranks(module) if isinstance(module, EncoderBranch) else (),
        inner_layers=_most_inner_layers(model) if is_language else 0,
        vocab=module.vocab if isinstance(module, DecoderHead) else 0,
        seq=0 if encodes else workload.seq_length,
        global_batch_size=workload.global_batch_size,
    )


def _widths_on_ranks(branch: EncoderBranch) -> tuple[int, ...]:
    """Return the widths of outputs that ranks share, of every other matrix of a projector."""
    widths = (projector.column_widths for projector in branch.projectors)
    return tuple(dict.fromkeys(itertools.chain.from_iterable(widths)))


def _most_inner_layers(model: Model) -> int:
    branches = model.branches if isinstance(model, MultimodalModel) else ()
    return max((branch.projector.copies for branch in branches), default=0)


def check_calibrated(software: Software, hardware: Hardware) -> None:
    """Refuse a training stack whose constants come from runs on another GPU, or from CPUs."""
    if software.name == MIMOKIT.name and hardware.cores is None:
        sentence = (
            f"Software '{software.name}': it was measured on CPUs, and {hardware.name} is none; "
            "take another stack, or a hardware file that mimokit.calibrate wrote on CPUs."
        )
        raise ConfigError([Problem("prediction", "software", software.name, sentence)])
    if software.gpu and software.gpu != hardware.name:
        sentence = (
            f"Software '{software.name}': it was calibrated on {software.gpu}, and the prediction "
            f"is for {hardware.name}; calibrate on runs of that GPU, or predict for the first."
        )
        raise ConfigError([Problem("prediction", "software", software.name, sentence)])


def check_price(price: float | None) -> None:
    """Refuse a price below nothing."""
    if price is not None and not 0 <= price < np.inf:
        sentence = f"Price per GPU-hour: it is {price}; it must be a number of at least 0."
        raise ConfigError([Problem("price", "price_per_gpu_hour", price, sentence)])


def _on_shared_ranks(layout: Layout) -> Iterator[Problem]:
    for name in dict.fromkeys(itertools.chain.from_iterable(layout.feeds.values())):
        if layout.mode != "heterogeneous" and name != layout.language:
            yield _layout_problem(name, f"{APART}, and the layout is {layout.mode}")


def misplaced(model: Model, layout: Layout) -> Iterator[Problem]:
    """Yield what is wrong with the names and sizes of a layout's modules."""
    language = language_of(model).name
    others = [module.name for module in modules_of(model) if module.name != language]
    if not layout.modules:
        yield _layout_problem("layout", "it has sizes of no module; give every module its sizes")
        return
    for name in others:
        if name not in layout.modules or name == layout.language:
            yield _layout_problem(name, "the layout has no sizes for it")
    if layout.language not in layout.modules:
        yield _layout_problem(layout.language, "it is the language module, but it has no sizes")
    for name in layout.others:
        if name not in others:
            known = ", ".join(others) or "none"
            yield _layout_problem(name, f"the model has no such module; it has {known}")
    for name, sizes in layout.modules.items():
        for field, value in vars(sizes).items():
            least = np.min(value) if isinstance(value, np.ndarray) else value
            if field in COUNT_FIELDS and not least > 0:
                yield _layout_problem(name, f"{field} is {least}; it must be above 0")


def _layout_problem(module: str, what: str) -> Problem:
    return Problem(module, "layout", None, f"Module '{module}': {what}.")
