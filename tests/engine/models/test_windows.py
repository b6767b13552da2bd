"""Attention in windows is that of brute force, and the same in every layout."""

import torch
from hypothesis import given
from hypothesis import strategies as st

import mimokit
from tests.layouts_multimodal import LANGUAGE, multimodal_config

HEADS, GROUPS, WIDTH = 4, 2, 8


class _Alone:
    """In place of the process groups of one rank."""

    def __init__(self) -> None:
        self.cp = self.tp = self

    def size(self) -> int:
        return 1

    def rank(self) -> int:
        return 0


def _core(windowed, window=(2, 0), mask_type="causal"):
    from mimokit.engine.megatron import AttnMaskType, TransformerConfig
    from mimokit.engine.models.attention import SequenceAttention

    config = TransformerConfig(
        num_layers=2, hidden_size=HEADS * WIDTH, num_attention_heads=HEADS,
        num_query_groups=GROUPS, window_size=window, window_attn_skip_freq=[1, 0],
        attention_dropout=0.0, masked_softmax_fusion=False,
    )  # fmt: skip
    number = 1 if windowed else 2
    return SequenceAttention(
        config, number, AttnMaskType[mask_type], "self", pg_collection=_Alone()
    ).eval()


def _by_hand(query, key, value, lengths, windowed):
    """Return [positions, heads * width], one query after another."""
    outputs, begin = [], 0
    for length in lengths:
        for place in range(begin, begin + length):
            first = max(begin, place - 2) if windowed else begin
            seen = slice(first, place + 1)
            heads = []
            for head in range(HEADS):
                group = head // (HEADS // GROUPS)
                scores = key[seen, group] @ query[place, head] / WIDTH**0.5
                heads.append(scores.softmax(0) @ value[seen, group])
            outputs.append(torch.cat(heads))
        begin += length
    return torch.stack(outputs)


@given(st.lists(st.integers(1, 7), min_size=1, max_size=3), st.booleans())
def test_a_row_attends_to_windows_as_by_hand(lengths, windowed):
    from mimokit.engine.parallel.row import SampleRow

    total = sum(lengths)
    query, key, value = (torch.randn(total, heads, WIDTH) for heads in (HEADS, GROUPS, GROUPS))
    params = SampleRow(tuple(lengths)).params(torch.device("cpu"))
    found = _core(windowed)(query, key, value, None, packed_seq_params=params)
    torch.testing.assert_close(found, _by_hand(query, key, value, lengths, windowed))


def _encoder(plan, config, name):
    from mimokit.engine.models.specs import multimodal_provider

    model = multimodal_provider(config.model, plan, 7).provide(plan, wrap=False).model
    (encoder,) = model.modality_submodules[name].encoders.values()
    return encoder.eval()


def _attended(plan, config, name, sizes):
    """Return [layers, items, positions, positions], True where a position attends to another."""
    import torch

    encoder, found = _encoder(plan, config, name), []
    for layer in encoder.decoder.layers:
        width = encoder.geometry.positions

        def core(query, key, value, mask, width=width, core=layer.self_attention.core_attention):
            items = query.shape[1]
            query, one = torch.zeros(width, items, 1, width), torch.eye(width)
            value = one[:, None, None].expand(-1, items, 1, -1)
            found.append(core(query, query, value, mask).transpose(0, 1) > 0)

        core(torch.zeros(width, len(sizes), 1, width), None, None, _mask_of(encoder, sizes))
    return torch.stack(found)


def _mask_of(encoder, sizes):
    mask = None if encoder.geometry is None else encoder._mask(sizes)
    return encoder._with_windows(encoder._hiding_padding(mask), sizes)


def _attended_by(cluster, name, sizes, **fields):
    config = multimodal_config({name: (1, 1), LANGUAGE: (1, 1)}, "homogeneous")
    network = config.model.get_architecture(name).model_copy(update={"num_layers": 2, **fields})
    config.model.module_architectures[name] = network
    plan = mimokit.plan(config)
    return cluster.run(_attended, plan, config, name, torch.tensor(sizes), world_size=1)[0]


def test_patches_attend_inside_squares_of_an_image_of_any_size(cluster):
    grids = [[1, 2, 4], [1, 4, 2], [1, 4, 4]]
    fields = {"window_size": 4, "full_attention_layers": [2], "num_registers": 1, "merge_size": 1}
    found = _attended_by(cluster, "qwen", grids, **fields)
    for (_, rows, columns), windowed, whole in zip(grids, *found, strict=True):
        places = [(row, column) for row in range(rows) for column in range(columns)]
        patches = 1 + torch.arange(len(places))
        assert windowed[0, : len(places) + 1].all(), "a register attends to all"
        assert not windowed[: len(places) + 1, len(places) + 1 :].any(), "padding is hidden"
        assert whole[: len(places) + 1, : len(places) + 1].all()
        assert not whole[:, len(places) + 1 :].any()
        squares = [(row // 2, column // 2) for row, column in places]
        expected = torch.tensor([[one == other for other in squares] for one in squares])
        assert torch.equal(windowed[patches][:, patches], expected)
        assert windowed[patches, 0].all(), "and all to a register"


def test_sound_attends_to_both_sides(cluster):
    for window in (4, 5):
        fields = {"window_size": window, "full_attention_layers": [2], "merge_size": 1}
        found = _attended_by(cluster, "audio", [24, 9], **fields)
        for heard, windowed, whole in zip((24, 9), *found, strict=True):
            places = torch.arange(24)
            ahead = places - places[:, None]
            seen = (ahead >= -(window // 2)) & (ahead <= (window - 1) // 2) & (places < heard)
            assert torch.equal(windowed[:heard], seen[:heard])
            assert torch.equal(whole, (places < heard).expand(24, 24))


@given(st.integers(1, 9), st.integers(0, 3), st.integers(0, 3), st.integers(1, 9))
def test_windows_on_both_sides_are_those_of_a_mask(length, before, after, heard):
    query, key, value = (torch.randn(length, 2, n, WIDTH) for n in (HEADS, GROUPS, GROUPS))
    hidden = (torch.arange(length) >= heard)[None, None, None]
    found = _core(True, (before, after), "padding")(query, key, value, hidden)
    places = torch.arange(length)
    ahead = places - places[:, None]
    seen = (ahead >= -before) & (ahead <= after) & ~hidden
    parts = (each.permute(1, 2, 0, 3) for each in (query, key, value))
    expected = torch.nn.functional.scaled_dot_product_attention(
        *parts, attn_mask=seen, enable_gqa=True
    )
    expected = expected.permute(2, 0, 1, 3).flatten(2)
    assert found.isfinite().all(), "padding has values, too"
    torch.testing.assert_close(found[:heard], expected[:heard])
