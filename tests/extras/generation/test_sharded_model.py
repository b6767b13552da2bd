"""A sharded model on engines: logits, generation, replicas, interruption, and a rank that dies."""

import contextlib
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from mimokit.cluster import EngineCluster, RankDied
from mimokit.config import ConfigError
from mimokit.experiment import ShardedModel
from tests import seams
from tests.hugging_face_weights import checkpoint
from tests.llava import IMAGE_TOKEN, llava_checkpoint
from tests.planted import planted, replacing

PROMPTS = [[1, 2, 3, 100, 5, 6, 7], [9, 50, 100], [4, 4]]
SAMPLED: dict[str, Any] = {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "seed": 7}


def of_hugging_face(name: str, new: int, **how: Any) -> tuple[list[Any], list[list[int]]]:
    """Return the logits and the most likely new tokens of every prompt alone."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint(name)).eval()
    logits, tokens = [], []
    for row in PROMPTS:
        ids = torch.tensor([row])
        with torch.no_grad():
            logits.append(model(ids).logits[0].numpy())
        made = model.generate(ids, max_new_tokens=new, do_sample=False, **how)
        tokens.append(made[0, len(row) :].tolist())
    return logits, tokens


def test_logits_and_greedy_tokens_are_those_of_hugging_face(cluster: EngineCluster) -> None:
    logits, tokens = of_hugging_face("llama", 10, eos_token_id=None)
    stop = next(row[2] for row in tokens if row[2] not in row[:2])
    _, stopped = of_hugging_face("llama", 10, eos_token_id=stop)
    heard: dict[int, list[int]] = {}
    with ShardedModel(cluster, checkpoint("llama"), tensor_parallel=2) as model:
        found = model.logits(PROMPTS)
        assert found.shape == (3, 7, 101)
        for row, wanted in zip(found, logits, strict=True):
            assert np.isnan(row[len(wanted) :]).all()
            difference = np.abs(row[: len(wanted)] - wanted).max()
            assert difference < 1e-5 * np.abs(wanted).max()

        def hear(prompt: int, token: int) -> None:
            heard.setdefault(prompt, []).append(token)

        made = model.generate(PROMPTS, 10, stop_tokens=[], on_token=hear)
        assert made.tokens == tokens
        assert heard == dict(enumerate(tokens))
        assert model.generate(PROMPTS[0], 10, stop_tokens=[]).tokens == tokens[:1]
        cut = model.generate(PROMPTS, 10, stop_tokens=[stop])
        assert cut.tokens == stopped
        assert min(map(len, stopped)) < 10
        drawn = model.generate(PROMPTS, 6, stop_tokens=[], **SAMPLED)
        probs = np.exp(logits[1][-1] - logits[1][-1].max())
        wanted_log = np.log(probs[drawn.tokens[1][0]] / probs.sum())
        assert drawn.log_probs[1][0] == pytest.approx(wanted_log, abs=1e-4)
    assert made.tokens_per_second > 0
    # Of every new token 9 all-reduces of 32 fp32 entries a row, 7 of them for the prompt at first.
    assert made.bytes_per_token > 9 * 32 * 4
    with ShardedModel(cluster, checkpoint("llama"), 2, replicas=2) as model:
        assert model.generate(PROMPTS, 10, stop_tokens=[]).tokens == tokens
        assert model.generate(PROMPTS, 6, stop_tokens=[], **SAMPLED).tokens == drawn.tokens


def test_a_model_with_fewer_groups_than_ranks_draws_the_same(cluster: EngineCluster) -> None:
    found = []
    for ranks in (1, 4):
        with ShardedModel(cluster, checkpoint("qwen2"), ranks) as model:
            found.append(model.generate(PROMPTS, 8, **SAMPLED).tokens)
            heads, memory = model.head_map(), model.memory()
    assert found[0] == found[1]
    assert list(memory.index) == [0, 1, 2, 3]
    assert (memory["bytes"] > heads["bytes"]).all()
    assert memory["share_from_mean"].sum() == pytest.approx(0, abs=1e-9)
    assert list(heads["query_groups"]) == [(0, 1), (0, 1), (1, 2), (1, 2)]


def test_a_killed_rank_is_named_and_the_next_call_loads_again(cluster: EngineCluster) -> None:
    with (
        ShardedModel(cluster, checkpoint("gpt2"), 2) as model,
        planted(cluster, seams.SHARE_TOKENS, slow, 2),
    ):
        wanted = model.generate(PROMPTS, 4, stop_tokens=[]).tokens
        victim = cluster.pids[1]

        def kill(prompt: int, token: int) -> None:
            with contextlib.suppress(ProcessLookupError):  # a later token may find it gone
                os.kill(victim or 0, signal.SIGKILL)

        with pytest.raises(RankDied, match=r"rank 1 .* was killed by SIGKILL"):
            model.generate(PROMPTS, 17, stop_tokens=[], on_token=kill)
        assert model.generate(PROMPTS, 4, stop_tokens=[]).tokens == wanted


def test_a_rank_killed_while_loading_is_named_and_the_next_call_loads(
    cluster: EngineCluster,
) -> None:
    killed = pytest.raises(RankDied, match=r"rank 1 .* was killed by SIGKILL")
    with planted(cluster, seams.LOAD_LANGUAGE, dies_on_rank_1, 2), killed:
        ShardedModel(cluster, checkpoint("gpt2"), 2)
    _, wanted = of_hugging_face("gpt2", 4, eos_token_id=None, pad_token_id=0)
    with ShardedModel(cluster, checkpoint("gpt2"), 2) as model:
        assert model.generate(PROMPTS, 4, stop_tokens=[]).tokens == wanted


@replacing
def dies_on_rank_1(original: Any, directory: Any, group: Any, **how: Any) -> Any:
    if group.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(directory, group, **how)


def test_the_stop_button_ends_after_a_token_and_the_model_stays(cluster: EngineCluster) -> None:
    with (
        ShardedModel(cluster, checkpoint("llama"), 2) as model,
        planted(cluster, seams.SHARE_TOKENS, slow, 2),
    ):
        wanted = model.generate(PROMPTS, 2, stop_tokens=[]).tokens
        main = threading.main_thread().ident or 0
        pressed: list[int] = []

        def press(prompt: int, token: int) -> None:
            if not pressed:
                pressed.append(token)
                signal.pthread_kill(main, signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            model.generate(PROMPTS, 50, stop_tokens=[], on_token=press)
        assert model.interrupted is not None
        assert 1 <= len(model.interrupted.tokens[0]) < 50
        assert model.generate(PROMPTS, 2, stop_tokens=[]).tokens == wanted


@replacing
def slow(original: Any, *arguments: Any) -> Any:
    import time

    time.sleep(0.05)
    return original(*arguments)


def test_logits_that_are_no_numbers_name_the_rank(cluster: EngineCluster, tmp_path: Path) -> None:
    for file in checkpoint("llama").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"][80, 3] = torch.nan  # of the second rank
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with (
        ShardedModel(cluster, tmp_path, 2) as model,
        pytest.raises(ConfigError, match=r"The logits of rank 1 are not finite in row 0\.$"),
    ):
        model.generate(PROMPTS, 4)


def test_the_language_model_of_a_llava_generates(cluster: EngineCluster) -> None:
    from transformers import LlavaForConditionalGeneration

    directory, prompts = llava_checkpoint("clip"), [[1, 2, 3, 22, 5, 6, 7], [9, 10, 19], [4, 4]]
    theirs = LlavaForConditionalGeneration.from_pretrained(directory).eval()
    with ShardedModel(cluster, directory, tensor_parallel=2) as model:
        made = model.generate(prompts, 8, stop_tokens=[])
        with pytest.raises(ConfigError, match="prompt 1 has the id 20, which represents an image"):
            model.generate([[1, 2], [3, IMAGE_TOKEN]], 8)
    for prompt, tokens in zip(prompts, made.tokens, strict=True):
        ids = torch.tensor([prompt])
        whole = theirs.generate(input_ids=ids, max_new_tokens=8, do_sample=False, eos_token_id=None)
        assert tokens == whole[0, len(prompt) :].tolist()
