"""`mimokit check` and `generate`: weights on engines."""

import itertools
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from mimokit.cli import shared
from mimokit.progress import shown
from mimokit.units import counted


def check(
    directory: shared.Directory,
    tp: shared.Tensor = 1,
    dtype: shared.Dtype = None,
    batch: Annotated[int, typer.Option(help="Rows of tokens, or images.")] = 2,
    length: Annotated[
        int | None, typer.Option(help="Tokens of a row; by default 16, or all positions if fewer.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of tokens or images.")] = 0,
    as_json: shared.Json = False,
    cluster: shared.Cluster = None,
) -> None:
    """Prove that what trains computes the model: logits and layers against Hugging Face's.

    The tolerance depends on the dtype of the weights. Layout and oracle compute in a wider dtype
    (bf16 and fp16 in fp32, fp32 in fp64), since the rounding of bf16 alone puts right shards of
    some layers above the tolerance of 1e-2. A smaller difference that rounding does not explain is
    named, too.

    Exit 1 if a difference is above the tolerance, 2 if the input is rejected.
    """
    from mimokit.extras.generation.check.weight_check import WeightCheck

    with shared.failures():
        asked = WeightCheck.of(directory, tp, dtype, batch, length, seed)
        with shared.engines_for(tp, cluster) as engines:
            report = asked.run(engines)
    shared.show_proof(report, as_json)


def generate(
    directory: shared.Directory,
    tokens: Annotated[
        list[str], typer.Option(help="Token ids of a prompt, such as 1,2,3; may be repeated.")
    ],
    tp: shared.Tensor = 1,
    replicas: Annotated[int, typer.Option(help="Copies that share the prompts.")] = 1,
    max_new_tokens: Annotated[int, typer.Option(help="Of every prompt.")] = 32,
    temperature: Annotated[
        float | None, typer.Option(help="By default the most likely token is taken.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw from so many tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw from the tokens with this probability together.")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Draw from tokens with this share of the highest.")
    ] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="Above 1: repeat less.")] = None,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    stop: Annotated[
        list[int] | None,
        typer.Option(help="Token that ends a text; by default the eos_token_id of the files."),
    ] = None,
    dtype: shared.Dtype = None,
    as_json: shared.Json = False,
    cluster: shared.Cluster = None,
) -> None:
    """Generate tokens on tensor parallel ranks, with a cache and without gathering logits."""
    with shared.failures():
        from mimokit.experiment import ShardedModel
        from mimokit.extras.generation.prompts import PromptRules, check_whole, decoded
        from mimokit.planning.weights import language_planner, stored_weights

        prompts = [
            shared.whole_numbers(t, "--tokens", "token ids") if t.strip() else [] for t in tokens
        ]
        how: dict[str, Any] = {
            "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
            "repetition_penalty": repetition_penalty,
        }  # fmt: skip
        rules = PromptRules.of(language_planner(stored_weights(directory), tp, dtype))
        rules.request(prompts, max_new_tokens, how, seed, stop)  # rejected before engines start
        check_whole("replicas", replicas, least=1)
        with (
            shared.engines_for(tp * replicas, cluster) as engines,
            shown("Reading weights") as bar,
            ShardedModel(engines, directory, tp, replicas=replicas, dtype=dtype) as model,
        ):
            tokens_made = itertools.count(1)
            made = model.generate(
                prompts, max_new_tokens, seed=seed, stop_tokens=stop, **how,
                on_token=lambda *_: bar.update(text=counted(next(tokens_made), "token")),
            )  # fmt: skip
    text = None
    try:
        text = decoded(Path(directory), made.tokens)
    except OSError as error:  # the tokens are right all the same
        typer.echo(f"{error}; the tokens are given without their text.", err=True)
    if as_json:
        typer.echo(json.dumps({**made.to_json(), **({} if text is None else {"text": text})}))
        return
    for number, row in enumerate(made.tokens):
        typer.echo(",".join(map(str, row)))
        if text is not None:
            typer.echo(text[number])
    typer.echo(
        f"{made.tokens_per_second:.1f} tokens/s, {made.bytes_per_token:,.0f} bytes exchanged per "
        "token and rank",
        err=True,
    )
