"""What the text of the notebooks says is true: figures, names of tabs, imports."""

import re
from pathlib import Path

import nbformat

import mimokit
from mimokit.architecture import model_of_config
from mimokit.engine.strategies import STRATEGIES
from mimokit.experiment.verification import STEPS
from mimokit.prediction.band import CLEAR, TIE
from mimokit_widgets.planner.screen import TABS
from tests.rows import rows

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LANGUAGE = "language_module"
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight")


def cells(name: str, kind: str) -> list[str]:
    notebook = nbformat.read(ROOT / "notebooks" / name, 4)
    return [cell.source for cell in notebook.cells if cell.cell_type == kind]


def text(name: str) -> str:
    return "\n".join(cells(name, "markdown"))


@rows("file", *NOTEBOOKS)
def test_no_notebook_imports_from_deep_inside_or_edits_nested_mappings(file: Path) -> None:
    code = "\n".join(cells(file.name, "code"))
    imported = re.findall(r"^\s*(?:from|import) (mimokit[\w.]*)", code, re.MULTILINE)
    assert imported
    assert [name for name in imported if name.count(".") > 1] == []
    assert not re.search(r"\[\"(model|data|runtime|module_parallelisms)\"\]", code)
    assert "module_parallelisms" not in code


@rows("file", *NOTEBOOKS)
def test_tabs_are_called_what_the_planner_calls_them(file: Path) -> None:
    assert set(re.findall(r"\btab \*([^*]+)\*", text(file.name))) <= set(TABS.values())


@rows("file", *NOTEBOOKS)
def test_each_ends_with_a_link_to_the_next(file: Path) -> None:
    last = cells(file.name, "markdown")[-1]
    numbered = [each.name for each in NOTEBOOKS if each.name[0].isdigit()]
    if not file.name[0].isdigit():
        assert all(f"]({name})" in last for name in numbered)
        return
    links = re.findall(r"\]\((\w+\.ipynb)\)", last)
    following = numbered[numbered.index(file.name) + 1 :]
    assert links == (following[:1] or ["start.ipynb"])


def test_the_text_about_80_gpus() -> None:
    said = text("00_plan_a_layout.ipynb")
    code = "\n".join(cells("00_plan_a_layout.ipynb", "code"))
    config = mimokit.load_preset("video_77b_heterogeneous")
    model = model_of_config(config.model)
    encoder, language = model.branches[0].encoder.parameters, model.language.parameters
    assert f"An encoder of {encoder / 1e9:.1f} billion parameters" in said
    assert f"a language model of {language / 1e9:.1f} billion" in said
    frames = config.data.image_seq_length // 256
    assert f"a video of {frames} frames" in said
    words = config.data.seq_length - config.data.image_seq_length
    assert f"{words:,} tokens of text" in said
    assert f"TEXT, PER_IMAGE = {words}, 256" in code
    assert "(1, 4, 16, 64)" in code  # "samples with one image to 64"
    plan = mimokit.plan(config)
    images, words_ranks = plan.modules["images"], plan.modules[LANGUAGE]
    assert f"has {images.size} GPUs to itself, and the language model has the other" in said
    assert (plan.world_size, words_ranks.size) == (80, 64)
    small = model_of_config(mimokit.load_preset("llava_7b_homogeneous").model)
    assert f"an encoder of {small.branches[0].encoder.parameters / 1e9:.1f} billion" in said
    assert f"up to {TIE:.0%} is a tie".replace("%", " %") in said.lower()
    assert f"predicted 3 to {CLEAR:.0%} apart".replace("%", " %") in said


def test_the_text_about_the_first_layout() -> None:
    from mimokit.engine.data.digits import IMAGE_SIZE, MAX_DIGITS

    said = text("01_first_light.ipynb")
    plan = mimokit.plan(ROOT / "configs/digits_colocated.yaml")
    images, language = plan.modules["images"], plan.modules[LANGUAGE]
    assert f"it runs as {images.data_parallel} replicas" in said
    assert f"cut into {language.tensor_parallel} tensor-parallel shards" in said
    assert f"runs as {language.data_parallel} replicas" in said
    assert f"on the same {plan.world_size} ranks" in said
    assert plan.world_size == images.size == language.size
    assert f"after each of {STEPS} optimizer steps" in said
    assert f"the {NUMBERS[language.tensor_parallel]} ranks of a language replica" in said
    assert f"a strip of 1 to {MAX_DIGITS} scans ({IMAGE_SIZE}×{IMAGE_SIZE} pixels" in said


def test_the_text_about_three_modes() -> None:
    from mimokit.engine.data.digits import MAX_DIGITS

    said = text("02_heterogeneous.ipynb")
    plans = [
        mimokit.plan(ROOT / f"configs/digits_{mode}.yaml")
        for mode in ("homogeneous", "colocated", "heterogeneous")
    ]
    assert {plan.world_size for plan in plans} == {8}
    assert "on the same eight ranks" in said
    assert len({plan.batch.global_batch_size for plan in plans}) == 1  # the same samples per step
    assert f"after each of {STEPS} optimizer steps" in said
    mean = (1 + MAX_DIGITS) / 2
    assert f"A strip has 1 to {MAX_DIGITS} images, {mean} on average" in said


def test_the_text_about_steps() -> None:
    said = text("03_step_through.ipynb")
    fan_in = mimokit.load_experiment_config(ROOT / "configs/digits_colocated.yaml")
    fan_in.data.base_batch_size = 4
    plan = mimokit.plan(fan_in)
    images, language = plan.modules["images"], plan.modules[LANGUAGE]
    assert f"{NUMBERS[images.data_parallel].capitalize()} replicas of the vision encoder" in said
    assert f"with {NUMBERS[language.data_parallel]} language replicas" in said
    assert plan.batch.modules["images"].micro_batch_size == 1  # "has encoded one sample"
    assert plan.batch.modules[LANGUAGE].micro_batch_size == 4  # "those of its four samples"
    apart = mimokit.plan(ROOT / "configs/digits_heterogeneous.yaml")
    images, language = apart.modules["images"], apart.modules[LANGUAGE]
    assert list(images.ranks) == [0, 1]
    assert (language.ranks.start, language.ranks.stop - 1) == (2, 7)
    assert (
        "the encoder on ranks 0 and 1, the language model on ranks 2 to 7 in three stages" in said
    )
    assert language.pipeline_parallel == 3
    audio = mimokit.load_experiment_config(ROOT / "configs/digits_audio.yaml")
    presence = audio.data.modality_presence["audio"]
    assert not any(presence.at(1, sample) for sample in range(8))
    silent = [sample for sample in range(8) if not presence.at(0, sample)]
    assert silent == [sample for sample in range(8) if sample % 4 == silent[0]]
    assert "the second micro-batch has no audio, and every fourth sample of the first" in said


def test_the_text_about_frames() -> None:
    said = text("04_frame_parallel.ipynb")
    digits = mimokit.load_experiment_config(ROOT / "configs/digits_videos.yaml")
    frames = digits.data.modality_frames["images"]
    plan = mimokit.plan(digits)
    (batch,) = plan.frames
    assert f"{max(frames)} frames while another encodes {NUMBERS[min(frames)]}" in said
    assert (plan.world_size, batch.shared) == (2, True)
    assert f"{NUMBERS[plan.world_size].capitalize()} engines, four of the samples on each" in said
    assert {len(samples) for samples in batch.counts} == {4}
    assert min(batch.counts[0]) > max(batch.counts[1])  # "one reads the long videos"
    llava = mimokit.load_preset("llava_7b_colocated")
    assert mimokit.plan(llava).batch.modules["images"].micro_batch_size == 1
    assert llava.model.deployment_mode == "colocated"
    assert mimokit.plan(llava).world_size == 8  # "The plan for eight ranks"


def test_the_text_about_the_searched_model() -> None:
    said = text("06_predict_and_search.ipynb")
    code = "\n".join(cells("06_predict_and_search.ipynb", "code"))
    length = int(re.search(r"seq_length=(\d+)", code)[1])
    samples = int(re.search(r"global_batch(?:_size)?=(\d+)", code)[1])
    patches = int(re.search(r"EncoderInput\(length=(\d+), count=2\)", code)[1])
    merge = int(re.search(r'"spatial_merge_size": (\d+)', code)[1])
    assert f"{samples} samples of {length:,} tokens" in said
    assert f"two images of {patches:,} patches each, which become {patches // merge**2:,}" in said
    guess = re.search(r"ParallelSizes\(tensor=(\d+), pipeline=(\d+), data=(\d+)\)", code)
    tensor, pipeline, data = map(int, guess.groups())
    assert (tensor, tensor * pipeline * data) == (8, 256)  # a node; "on 256 H100s"
    assert f"{NUMBERS[pipeline]} pipeline stages" in said
    assert "memory_share=0.8" in code  # "leave a fifth of the memory free"
    assert f"--gpus 256 --seq-length {length} --global-batch {samples}" in said


def test_the_text_about_strategies() -> None:
    said = text("07_strategies.ipynb")
    code = "\n".join(cells("07_strategies.ipynb", "code"))
    assert "gives nine of them" in said
    made = set(re.findall(r"strategies\.(\w+Strategy)\(", code)) - {"CommunicateOptimizeStrategy"}
    assert made == {kind.__name__ for kind in STRATEGIES.values()}
    assert len(made) == 9
    assert 'Network("100 Mbit/s", ' in code  # "on a link of 100 Mbit/s"
    assert "nodes, step_seconds = 4, 0.005" in code  # "to compute for 5 ms"
    assert "compute for 5 ms on every node" in said
    first, half = (
        mimokit.load_experiment_config(ROOT / "configs" / f"digits_{name}.yaml")
        for name in ("colocated", "replicas")
    )
    assert half.model.module_architectures == first.model.module_architectures
    assert half.data == first.data
    ranks = mimokit.plan(first).world_size
    plan = mimokit.plan(half)
    assert plan.replicas is not None
    assert (plan.replicas.layout_ranks, plan.replicas.replicas) == (ranks // 2, 2)
    assert "cut to half its ranks so that two replicas fit eight engines" in said
    assert f"EngineCluster(n={plan.world_size})" in code
    assert half.strategy is not None
    assert half.strategy.H < STEPS  # verify sees steps with and without an exchange
    own = code[code.index("class OneTensorInTurn") : code.index("own = strategies")].strip()
    assert len(own.replace("\n\n", "\n").splitlines()) <= 10
    assert "every fifth step" in said
    assert "divmod(local_step + 1, 5)" in own


def test_the_text_about_weights() -> None:
    said = text("08_weights_and_sampling.ipynb")
    code = "\n".join(cells("08_weights_and_sampling.ipynb", "code"))
    sizes = {
        name: int(size) for name, size in re.findall(r"^    (\w+)=(\d+),$", code, re.MULTILINE)
    }
    vocab, heads = sizes["vocab_size"], NUMBERS[sizes["num_attention_heads"]]
    groups = NUMBERS[sizes["num_key_value_heads"]]
    assert f"{NUMBERS[sizes['num_hidden_layers']].capitalize()} layers, {heads} query heads" in said
    assert f"in {groups} groups, and a vocabulary of {vocab:,} tokens" in said
    assert (vocab % 2, vocab % 4 > 0) == (1, True)
    padded = -(-vocab // 4) * 4
    assert (padded - vocab, padded) == (1, 1004)
    assert f"with one row of zeros to {padded:,}" in said
    assert f"instead of all {padded:,}" in said
    (kept,) = set(re.findall(r"top_k=(\d+)", code))
    assert f"the {kept} most likely tokens, ranks exchange the {kept} largest logits" in said
    assert sizes["num_key_value_heads"] < 8, "fewer groups than eight ranks"
