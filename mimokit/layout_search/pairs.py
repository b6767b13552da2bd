"""Which sizes modules can have beside each other, mode by mode."""

from __future__ import annotations

from collections.abc import Iterator

from mimokit.architecture.parallel_sizes import ParallelSizes
from mimokit.prediction import Layout
from mimokit.prediction.placement import in_first_stage

UNEQUAL_REPLICAS = "replicas of one module do not divide those of the other"
TOO_FEW_SAMPLES = "a micro-batch has fewer samples than the encoder has replicas"
TOO_MUCH_MEMORY = "more memory than may be planned on a GPU"
ALONE_TOO_LARGE = "more memory than may be planned on a GPU, without any encoder"
TOO_SLOW = "a step takes longer than allowed"


def broken_pairs(layout: Layout, gpus: int) -> Iterator[str]:
    """Yield a sentence per rule between modules that a layout breaks."""
    language = layout.modules[layout.language]
    encoders = [(n, s) for n, s in layout.modules.items() if n != layout.language]
    for name, sizes in encoders:
        yield from _ranks_broken(layout, name, sizes, language)
        if layout.mode == "homogeneous":
            continue
        if max(sizes.data, language.data) % min(sizes.data, language.data):
            yield (
                f"Module '{name}': data_parallel is {sizes.data} and that of '{layout.language}' "
                f"is {language.data}; one must divide the other."
            )
        samples, own = language.micro_batch * language.data, sizes.micro_batch * sizes.data
        if samples != own:
            yield (
                f"Module '{name}': micro_batch_size {sizes.micro_batch} x data_parallel "
                f"{sizes.data} are {own} samples, but a micro-batch of '{layout.language}' has "
                f"{samples}; make them equal."
            )
    if layout.gpus > gpus:
        yield f"Layout: it takes {layout.gpus} GPUs and there are {gpus}; choose smaller sizes."


def _ranks_broken(
    layout: Layout, name: str, sizes: ParallelSizes, language: ParallelSizes
) -> Iterator[str]:
    if layout.mode == "homogeneous" and sizes != in_first_stage(language):
        yield (
            f"Module '{name}': in homogeneous mode it has the sizes of '{layout.language}', in its "
            "first stage; give it those, or use colocated mode."
        )
    if layout.mode == "colocated" and sizes.ranks != language.ranks:
        yield (
            f"Module '{name}': it takes {sizes.ranks} ranks and '{layout.language}' "
            f"{language.ranks}; in colocated mode they share all, so make them equal."
        )
    if layout.mode == "colocated" and sizes.pipeline > 1:
        yield (
            f"Module '{name}': pipeline_parallel is {sizes.pipeline}; a colocated encoder runs "
            "without a pipeline, so set it to 1."
        )
