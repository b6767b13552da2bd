"""The language model, and text decoders behind it: both are Megatron's `GPTModel`."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from mimokit.architecture.tensor_cut import ShardPlace, TensorCut, padded_vocabulary
from mimokit.axes import Axis
from mimokit.config import ModuleArchitecture
from mimokit.engine import megatron
from mimokit.engine.device import rank_device
from mimokit.engine.models import transformer
from mimokit.engine.models.attention import lengths_of
from mimokit.engine.models.rng import seed_weights
from mimokit.engine.models.token_prediction import (
    FurtherTokens,
    TokenPrediction,
    copied_embedding,
    logits_further,
    predicting_further,
    token_prediction,
)
from mimokit.engine.parallel.context import SequenceCut
from mimokit.engine.parallel.marks import mark_of_slice
from mimokit.engine.rotary import RotaryPositions
from mimokit.units import counted


@dataclass(frozen=True)
class Vocabulary:
    """A vocabulary that is padded until tensor parallelism divides it.

    Attributes:
        initial_seed: the tables are drawn from seeds that follow those of the layers, so that they
            do not depend on the padding, whose rows are zero.
    """

    size: int
    multiple: int
    initial_seed: int


class TiedGPTModel(megatron.GPTModel):  # type: ignore[misc]
    """Megatron's `GPTModel` for a `MimoModel`, with tied embeddings that work without CUDA.

    With tied embeddings, or layers that predict further tokens, the first and the last pipeline
    stage each have a copy of one matrix. The copies are made equal here and stay equal if
    `sync_tied_embeddings` is called before every optimizer step. The copy on the last stage is
    marked `shared`, so that norms leave it out.

    Learned positions are added to every token, to those of images as well, which `MimoModel` does
    to words alone.

    Attributes:
        vocab_size: tokens of the vocabulary, without padding.
        mtp: layers that predict further tokens, on the last stage; see `predicting_further`.
    """

    further: FurtherTokens | None = None

    def __init__(
        self,
        padding: Vocabulary | None = None,
        rotary: RotaryPositions | None = None,
        prediction: TokenPrediction | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**_with_norms(options))
        _turn(self, rotary)
        self._predicts = prediction is not None
        self.mtp = None
        if prediction is not None and self.post_process:
            self.mtp = prediction.block(self.config, self.pg_collection)
            if not self.pre_process:
                self.embedding = copied_embedding(self, options["vocab_size"])
        if self.pre_process or self.mtp is not None:
            self.embedding.add_position_embedding = False  # `forward` adds them
            # Words alone pass here, without the rows of other modules between them.
            self.embedding.embedding_dropout = torch.nn.Identity()
        learned = self.position_embedding_type == "learned_absolute"
        if self.pre_process and learned and self.config.sequence_parallel:
            mark_of_slice([self.embedding.position_embeddings.weight])
        if padding is not None:
            self.vocab_size = padding.size
            self._draw_tables(padding)
            if self.post_process and options["vocab_size"] > padding.size:
                self.output_layer.register_forward_hook(self._without_padding)
        weight = self._tied_copy()
        if weight is not None:
            start = weight.detach().to(rank_device())
            dist.all_reduce(start, group=self.embd_group)  # the last stage's is zero so far
            weight.data.copy_(start)
            # A bucket of its own: ranks of both stages have the same shard of its gradient.
            weight.shared_embedding = True  # type: ignore[attr-defined]

    @torch.no_grad()
    def _draw_tables(self, padding: Vocabulary) -> None:
        seed = padding.initial_seed + self.config.num_layers
        if self.pre_process:
            embedding, draw = self.embedding, self.config.embedding_init_method
            self._draw_rows(embedding.word_embeddings.weight, draw, padding, seed + 1)
            if self.position_embedding_type == "learned_absolute":
                seed_weights(seed + 2)
                draw(embedding.position_embeddings.weight)
        if self.post_process and not self.share_embeddings_and_output_weights:
            draw = self.config.init_method
            self._draw_rows(self.output_layer.weight, draw, padding, seed + 3)

    def _draw_rows(
        self, shard: torch.Tensor, draw: Callable[[torch.Tensor], object], padding: Vocabulary,
        seed: int,
    ) -> None:  # fmt: skip
        seed_weights(seed)
        drawn = torch.empty(padding.size, shard.shape[1])
        draw(drawn)
        group = self.pg_collection.tp
        cut = TensorCut(tuple(drawn.shape), 0, multiple=padding.multiple)
        rows = cut.at(ShardPlace(group.size(), group.rank())).of(drawn.numpy())
        shard.copy_(torch.from_numpy(rows))

    def _without_padding(
        self, layer: object, given: object, output: tuple[torch.Tensor, object]
    ) -> tuple[torch.Tensor, object]:
        """Set the logits of the padding to -inf, so that no sum over the vocabulary counts it."""
        logits, bias = output
        start = self.pg_collection.tp.rank() * logits.shape[-1]
        words = torch.arange(start, start + logits.shape[-1], device=logits.device)
        return logits.masked_fill(words >= self.vocab_size, float("-inf")), bias

    def forward(
        self,
        input_ids: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        decoder_input: torch.Tensor | None = None,
        **options: Any,
    ) -> torch.Tensor:
        """Run the part of this stage; see Megatron's class.

        Args:
            input_ids: [samples, tokens], or None where decoder_input is given.
            position_ids: of three axes, or not used: token n of a sample has position n.
            attention_mask: [1, 1, tokens, tokens], True where attention is forbidden.
            decoder_input: [tokens of this rank, samples, hidden], without positions; behind it in
                the last dimension what the first layers add, see `SeededTransformerLayer`.
            options: packed_seq_params of samples in a row, and others that Megatron's class has.
        """
        cut = self._cut_of(options.get("packed_seq_params"))
        if decoder_input is not None and decoder_input.shape[-1] > self.config.hidden_size:
            inner = decoder_input[..., self.config.hidden_size :]
            decoder_input = decoder_input[..., : self.config.hidden_size].contiguous()
            options["extra_block_kwargs"] = {"context": inner}
        if self.pre_process and self.position_embedding_type == "learned_absolute":
            if decoder_input is None:
                decoder_input = self.embedding(input_ids, None)
            table = self.embedding.position_embeddings.weight
            decoder_input = _with_positions(decoder_input, table, cut)
        output: torch.Tensor = super().forward(
            input_ids, position_ids, attention_mask, decoder_input=decoder_input, **options
        )
        return output

    def _cut_of(self, packed: megatron.PackedSeqParams | None) -> SequenceCut:
        lengths = None if packed is None else lengths_of(packed)
        return SequenceCut(self.config, self.pg_collection, causal=True, lengths=lengths)

    def _postprocess(self, hidden_states: torch.Tensor, **given: Any) -> torch.Tensor:
        """Compute the logits, of further tokens as well where `predicting_further` asks for them.

        Megatron's own adds the losses of these to the graph, by global groups, and in 0.19 divides
        them by the tokens of a micro-batch on a rank, which depend on the layout.
        """
        logits: torch.Tensor = super()._postprocess(hidden_states=hidden_states, **given)
        if self.further is not None:
            cut = self._cut_of(given["packed_seq_params"])
            self.further.logits += logits_further(self, self.further.ids, hidden_states, cut, given)
        return logits

    def _is_in_embd_group(self) -> bool:
        # Only Megatron's own copying asks, which calls `.cuda()` on every device.
        return False

    def _tied_copy(self) -> torch.nn.Parameter | None:
        has_copy = self.share_embeddings_and_output_weights or self._predicts
        if not has_copy or self.pre_process == self.post_process:
            return None
        # Without a group torch would sum over the whole world.
        assert self.embd_group is not None, "the ends of the pipeline have no group"
        embeds = self.pre_process or self.mtp is not None
        layer = self.embedding.word_embeddings if embeds else self.output_layer
        weight: torch.nn.Parameter = layer.weight
        return weight

    def sync_tied_embeddings(self) -> None:
        """Add the gradients of the embedding where two stages have a copy.

        Collective over first and last stage of a pipeline, after the reduction over replicas
        (Megatron's `_allreduce_word_embedding_grads`). On a single stage autograd has added them.
        """
        weight = self._tied_copy()
        if weight is not None and weight.requires_grad:
            dist.all_reduce(weight.main_grad, group=self.embd_group)  # type: ignore[attr-defined]


def _with_positions(hidden: torch.Tensor, table: torch.Tensor, cut: SequenceCut) -> torch.Tensor:
    """Add learned positions to [tokens of this rank, samples, hidden].

    Tokens that only ranks need, to share a sample evenly, have the last one.
    """
    lengths = cut.lengths or (len(hidden) * cut.parts,)
    if max(lengths) >= len(table) + cut.divisor:
        raise ValueError(
            f"A sample has {max(lengths)} tokens, but there are {counted(len(table), 'position')}; "
            "raise max_position_embeddings."
        )
    places = torch.cat([torch.arange(length) for length in lengths]).clamp(max=len(table) - 1)
    return hidden + table[cut.on_rank(places.to(hidden.device)), None]


def _turn(model: megatron.GPTModel, rotary: RotaryPositions | None) -> None:
    if rotary is None or not hasattr(model, "rotary_pos_emb"):
        return
    positions = model.rotary_pos_emb
    positions.cp_group = model.pg_collection.cp  # Megatron gives those of three axes global groups
    each = rotary.frequencies(model.config.kv_channels)
    positions.inv_freq = each.to(positions.inv_freq.device)


def _with_norms(options: dict[str, Any]) -> dict[str, Any]:
    spec = options["transformer_layer_spec"]
    if not isinstance(spec, megatron.ModuleSpec):  # of a whole stage
        return options
    layers = transformer.block_submodules(
        spec, options["config"], options["pg_collection"], options.get("vp_stage")
    )
    return {**options, "transformer_layer_spec": layers}


@contextlib.contextmanager
def hidden_states_of(language_model: megatron.GPTModel) -> Iterator[list[torch.Tensor]]:
    """Collect the output of the layers on a rank, [tokens of this rank, samples, hidden].

    On the last stage Megatron returns the logits only, without these hidden states.
    """
    outputs: list[torch.Tensor] = []
    hook = language_model.decoder.register_forward_hook(
        lambda _, inputs, output: outputs.append(output)
    )
    try:
        yield outputs
    finally:
        hook.remove()


class LanguageOutput(NamedTuple):
    """What a stage of a language model computes.

    Attributes:
        hidden: the output of the layers on this rank, [tokens of this rank, samples, hidden].
        further: logits of tokens further on, one for each layer that predicts them.
    """

    tensor: torch.Tensor
    hidden: torch.Tensor
    further: Sequence[torch.Tensor]


def run_language(
    model: megatron.GPTModel, further_ids: torch.Tensor | None, **inputs: Any
) -> LanguageOutput:
    """Run a stage of a language model.

    Args:
        further_ids: see `FurtherTokens`; None where no further tokens are predicted.
        inputs: those of `TiedGPTModel.forward`.
    """
    with hidden_states_of(model) as hidden, predicting_further(model, further_ids) as further:
        output = model(**inputs)
    return LanguageOutput(output, hidden[-1], further)


def language_model_spec(build: transformer.ModuleBuild) -> megatron.ModuleSpec:
    """Return the spec of a decoder-only language model; the provider injects groups and stage.

    Positions of three axes must be passed to the model.
    """
    network = build.architecture
    # Else the output layer follows the seed of the last layer, which a last chunk may not have.
    multiple = network.vocabulary_multiple or (1 if network.mtp_num_layers else None)
    words, padding = network.vocab_size, None
    if multiple is not None:
        words = int(padded_vocabulary(words, multiple, build.execution.size(Axis.TENSOR)))
        padding = Vocabulary(network.vocab_size, multiple, build.seed)
    return megatron.ModuleSpec(
        module=TiedGPTModel,
        params={
            "config": build.config,
            "transformer_layer_spec": transformer.layer_spec(build, megatron.AttnMaskType.causal),
            "vocab_size": words,
            **_positions(network),
            "share_embeddings_and_output_weights": network.tied_embeddings,
            "scatter_embedding_sequence_parallel": False,  # the stage cuts words and rows together
            "padding": padding,
            "prediction": token_prediction(build),
            "pre_process": True,
            "post_process": True,
            "vp_stage": None,
            "pg_collection": None,
        },
    )


def _positions(network: ModuleArchitecture) -> dict[str, Any]:
    learned = network.has_learned_positions(by_default=False)
    return {
        "max_sequence_length": network.max_position_embeddings or network.seq_length,
        "position_embedding_type": (
            "learned_absolute" if learned else "mrope" if network.mrope_section else "rope"
        ),
        "rotary": RotaryPositions.of(network),
    }


class TextDecoder(megatron.GPTModel):  # type: ignore[misc]
    """Megatron's `GPTModel` over rows instead of words: projection, layers, logits.

    It reads the hidden states of the language model and predicts another token, by default the one
    after the next: a head of multi-token prediction (Gloeckle et al. 2024, arXiv:2404.19737) with
    separate layers, width and ranks.

    Args:
        initial_seed: seed of the projection and of learned positions, which are replicated over
            tensor-parallel ranks.
    """

    def __init__(
        self,
        config: megatron.TransformerConfig,
        input_size: int,
        initial_seed: int,
        part: transformer.StagePart,
        rotary: RotaryPositions | None = None,
        **options: Any,
    ) -> None:
        options = _with_norms({**options, "config": config})
        super().__init__(pre_process=False, post_process=part.last, **options)
        _turn(self, rotary)
        self.part = part
        if part.first:
            seed_weights(initial_seed)
            self.projection = torch.nn.Parameter(torch.empty(config.hidden_size, input_size))
            config.init_method(self.projection)
            in_front = [self.projection]
            if self.position_embedding_type == "learned_absolute":
                table = torch.empty(options["max_sequence_length"], config.hidden_size)
                self.position_embedding = torch.nn.Parameter(table)
                config.init_method(self.position_embedding)
                in_front.append(self.position_embedding)
            if config.sequence_parallel:
                mark_of_slice(in_front)

    def forward(
        self,
        hidden: torch.Tensor,
        attention_mask: torch.Tensor | None,
        packed_seq_params: megatron.PackedSeqParams | None = None,
    ) -> torch.Tensor:
        """Run the part of this stage.

        Args:
            hidden: [tokens of this rank, samples, width]; the width is that of the rows on the
                first stage.
            attention_mask: [1, 1, tokens, tokens], True where attention is forbidden.
            packed_seq_params: of samples in a row, which are one then and have no mask.

        Returns:
            [tokens, samples, hidden]; on the last stage logits [samples, tokens, vocabulary / TP].
        """
        if self.part.first:
            hidden = torch.nn.functional.linear(hidden, self.projection)
            if self.position_embedding_type == "learned_absolute":
                lengths = None if packed_seq_params is None else lengths_of(packed_seq_params)
                cut = SequenceCut.of(self, lengths)
                hidden = _with_positions(hidden, self.position_embedding, cut)
        self.set_input_tensor(hidden)
        output: torch.Tensor = super().forward(
            input_ids=None,
            position_ids=None,
            attention_mask=attention_mask,
            packed_seq_params=packed_seq_params,
        )
        return output


def text_decoder_spec(build: transformer.ModuleBuild) -> megatron.ModuleSpec:
    """Return the spec of a decoder; the provider injects groups and stage.

    Row n of a sample has position n, on every axis.
    """
    network = build.architecture.model_copy(update={"mrope_section": None})
    return megatron.ModuleSpec(
        module=TextDecoder,
        params={
            "config": build.config,
            "input_size": build.joined.hidden_size,
            "initial_seed": build.seed,
            "part": transformer.WHOLE,
            "vp_stage": None,
            "transformer_layer_spec": transformer.layer_spec(build, megatron.AttnMaskType.causal),
            "vocab_size": network.vocab_size,
            **_positions(network),
            "pg_collection": None,
        },
    )
