"""What the data loader reads."""

from typing import Annotated

from pydantic import Field

from mimokit.config.base import ConfigModel, Name, NotNegative, Positive

Pattern = Annotated[list[bool], Field(min_length=1)]
Frames = Annotated[list[NotNegative], Field(min_length=1)]


class ModalityPresence(ConfigModel):
    """Which samples have inputs of an encoder: a fixed pattern, known before a run."""

    microbatches: Pattern = Field(default_factory=lambda: [True])
    """Micro-batch m of a step may have inputs if entry m, modulo the length, is true."""

    samples: Pattern = Field(default_factory=lambda: [True])
    """Sample s of a micro-batch over all replicas may have inputs if entry s, modulo the length,
    is true."""

    def at(self, microbatch: int, sample: int) -> bool:
        """Tell whether a sample may have inputs: where both patterns say so."""
        in_microbatch = self.microbatches[microbatch % len(self.microbatches)]
        return in_microbatch and self.samples[sample % len(self.samples)]

    def has_any(self, microbatch: int, samples: int) -> bool:
        """Tell whether any of the first samples of a micro-batch may have inputs."""
        in_microbatch = self.microbatches[microbatch % len(self.microbatches)]
        return in_microbatch and any(self.samples[:samples])

    @property
    def first_microbatch(self) -> int:
        """The first micro-batch in which samples may have inputs; 0 if there is none."""
        return self.microbatches.index(True) if True in self.microbatches else 0


class DataConfig(ConfigModel):
    """Batches and samples."""

    base_batch_size: Positive
    """Samples per micro-batch of one replica of the language module."""

    num_microbatches: Positive = 1
    """Micro-batches per optimizer step."""

    seq_length: Positive
    """Tokens per sample, including those of all encoders."""

    image_seq_length: NotNegative
    """Tokens per sample of an encoder that modality_seq_lengths leaves out."""

    pack_sequences_in_batch: bool = False
    """The language model, and text decoders behind it, compute the samples of a micro-batch in one
    row, without the padding between them. No sample attends to another. cu_seqlens of a batch says
    where samples begin; without it, a sample ends with its last label that counts."""

    vocab_size: Positive
    """Token ids are [0, vocab_size); placeholders may be larger."""

    image_special_token_id: NotNegative
    """The placeholder token id of the first encoder."""

    dataset_size: Positive = 2048
    """Samples in the data set; of a longer one the first. A micro-batch with more samples than
    the data set repeats them."""

    source: Annotated[str, Field(min_length=1)] | None = None
    """The function that makes training and test data, as package.module:function. It is called with
    the config on every rank and returns a `mimokit.engine.TrainingData`. None: strips of digits
    where the model can read them, else noise of the config's sizes."""

    num_workers: NotNegative = 0
    """Loader processes per rank that loads data. 0: the rank loads in its own process."""

    prefetch_factor: Positive = 2
    """Batches that a loader process keeps ready."""

    persistent_workers: bool = True
    """Loader processes stay alive from one epoch to the next; without loader processes it has no
    effect."""

    modality_seq_lengths: dict[Name, Positive] = Field(default_factory=dict)
    """Encoder that feeds the language module -> most tokens per sample of its output."""

    modality_presence: dict[Name, ModalityPresence] = Field(default_factory=dict)
    """Encoder that reads items -> which samples have its inputs. Absent: all samples."""

    modality_frames: dict[Name, Frames] = Field(default_factory=dict)
    """Vision encoder -> images, or frames of a video, of every sample of a micro-batch over all
    replicas: entry s, modulo the length, for sample s. Absent: the data set decides."""

    workload: Annotated[str, Field(min_length=1)] | None = None
    """What samples are made of, for predictions over samples: a file that `mimokit measure` wrote,
    another .parquet, .csv or .jsonl file of counts, or a published mix: image_captions,
    interleaved_pages, videos, speech. Runs ignore it. None: all samples are alike."""

    def modality_seq_length(self, encoder: str) -> int:
        """Return the most tokens per sample of an encoder's output."""
        return self.modality_seq_lengths.get(encoder, self.image_seq_length)

    def is_present(self, encoder: str, microbatch: int, sample: int) -> bool:
        """Tell whether a sample of a global micro-batch may have inputs of an encoder."""
        presence = self.modality_presence.get(encoder)
        return presence is None or presence.at(microbatch, sample)

    def frames_of(self, encoder: str, microbatch: int, sample: int) -> int | None:
        """Return the images of a sample of a global micro-batch, None if the data set decides."""
        frames = self.modality_frames.get(encoder)
        if frames is None:
            return None
        present = self.is_present(encoder, microbatch, sample)
        return frames[sample % len(frames)] if present else 0

    def absent_microbatches(self, samples_per_microbatch: int) -> frozenset[tuple[str, int]]:
        """Return (encoder, micro-batch of a step) where no sample of any replica has inputs."""
        return frozenset(
            (encoder, microbatch)
            for encoder, presence in self.modality_presence.items()
            for microbatch in range(self.num_microbatches)
            if not presence.has_any(microbatch, samples_per_microbatch)
        )
