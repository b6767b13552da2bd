"""What a prediction assumes in addition to model, layout and samples."""

from typing import Annotated

from pydantic import Field

from mimokit.config.base import ConfigModel, Name, Positive

PositiveFloat = Annotated[float, Field(gt=0)]


class PredictedInput(ConfigModel):
    """What an encoder sees of a sample, on average."""

    length: Positive
    """Patches of one image, or positions of one window of audio."""

    count: PositiveFloat | None = None
    """Images or windows per sample. None: the number that fills the tokens of the data section."""

    imbalance: Annotated[float, Field(ge=1)] | None = None
    """Work of the most loaded rank divided by that of the average rank. None: 1."""


class PredictionConfig(ConfigModel):
    """What predictions and searches read from a file. Runs ignore it."""

    gpu: Annotated[str, Field(min_length=1)] | None = None
    """A GPU by name, or a hardware file. None: h100."""

    price_per_gpu_hour: PositiveFloat | None = None
    """In dollars, for the cost per million tokens."""

    software: Annotated[str, Field(min_length=1)] | None = None
    """The training stack by name, or a file of calibrated constants. None: megatron-bridge,
    on CPUs mimokit's own."""

    inputs: dict[Name, PredictedInput] | None = None
    """Encoder -> what it sees. Absent: images and windows of full size."""

    @property
    def chosen_gpu(self) -> str:
        """The GPU, or the default where the field is None."""
        return self.gpu or "h100"

    @property
    def chosen_software(self) -> str:
        """The training stack, or the default where the field is None."""
        return self.software or "megatron-bridge"
