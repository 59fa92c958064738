"""Log-probabilities of packed rows against the plainest computation: one document, full logits, autograd."""

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from swe_rl.errors import PolicyError
from swe_rl.model import token_logprobs, token_scores
from swe_rl.model.linear import linear
from swe_rl.model.scores import ChunkedScores, Tile

MakeModel = Callable[..., PreTrainedModel]
FAMILIES = ["qwen3", "qwen2", "llama"]


def _row(*lengths: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 97, (sum(lengths),), generator=generator)
    return ids, torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))


def _plain(
    model: PreTrainedModel, ids: torch.Tensor, document: torch.Tensor, temperature: torch.Tensor
) -> torch.Tensor:
    parts = []
    for index in document.unique():
        own = document == index
        logits = model(input_ids=ids[own][None]).logits[0, :-1] / temperature[own][1:, None]
        scores = torch.log_softmax(logits, -1).gather(1, ids[own][1:, None]).squeeze(1)
        parts += [torch.full((1,), float("nan")), scores]
    return torch.cat(parts)


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_documents_score_as_each_alone_in_a_plain_forward(make_model: MakeModel, family: str) -> None:
    model = make_model(family)
    ids, document = _row(7, 1, 30, 2, 12)
    temperature = torch.tensor([0.5, 1.0, 1.3, 2.0, 0.7])[document]
    with torch.no_grad():
        got = token_logprobs(model, ids, document, temperature, chunk=5)
        expected = _plain(model, ids, document, temperature)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=0, equal_nan=True)
    assert expected.nanmean() < -3  # far from certain: a wrong shift or a leak would show


def test_a_document_doesnt_see_the_one_before_it(make_model: MakeModel) -> None:
    model = make_model()
    ids, document = _row(20, 20)
    other = ids.clone()
    other[:20] = (other[:20] + 1) % 97
    ones = torch.ones(40)
    with torch.no_grad():
        first, second = (token_logprobs(model, row, document, ones, chunk=64) for row in (ids, other))
    assert torch.equal(first[21:], second[21:])
    assert not torch.allclose(first[1:20], second[1:20])


def test_only_first_tokens_and_unneeded_positions_are_nan(make_model: MakeModel) -> None:
    model = make_model()
    ids, document = _row(6, 9)
    needed = torch.zeros(15, dtype=torch.bool)
    needed[[0, 3, 6, 7, 14]] = True  # 0 and 6 begin a document: asked for, yet nothing precedes them
    with torch.no_grad():
        full = token_logprobs(model, ids, document, torch.ones(15), chunk=4)
        part = token_logprobs(model, ids, document, torch.ones(15), chunk=4, needed_N=needed)
    assert full.isnan().nonzero().squeeze(1).tolist() == [0, 6]
    assert (~part.isnan()).nonzero().squeeze(1).tolist() == [3, 7, 14]
    torch.testing.assert_close(part[[3, 7, 14]], full[[3, 7, 14]])


def test_temperature_zero_is_scored_at_temperature_one(make_model: MakeModel) -> None:
    model = make_model()
    ids, document = _row(9)
    with torch.no_grad():
        zero, one = (token_logprobs(model, ids, document, torch.full((9,), t), chunk=4) for t in (0.0, 1.0))
    torch.testing.assert_close(zero, one, equal_nan=True)


@pytest.mark.parametrize("is_tied", [True, False])
def test_gradients_equal_those_of_full_logits(make_model: MakeModel, is_tied: bool) -> None:
    model = make_model(is_tied=is_tied)
    ids, document = _row(11, 4, 25)
    temperature = torch.tensor([0.6, 1.0, 1.5])[document]
    weight = torch.randn(40, generator=torch.Generator().manual_seed(2))
    grads = []
    for scores in (
        token_logprobs(model, ids, document, temperature, chunk=7),
        _plain(model, ids, document, temperature),
    ):
        model.zero_grad()
        torch.where(scores.isnan(), 0.0, scores * weight).sum().backward()
        grads.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    assert grads[0].keys() == grads[1].keys()
    for name, grad in grads[1].items():
        assert grad.abs().max() > 0, name
        torch.testing.assert_close(grads[0][name], grad, atol=2e-4, rtol=1e-4, msg=name)


def test_entropy_and_its_gradient_equal_those_of_full_logits(make_model: MakeModel) -> None:
    model = make_model()
    ids, document = _row(12)
    temperature = torch.full((12,), 0.8)
    got = token_scores(model, ids, document, temperature, chunk=5)
    log_p = torch.log_softmax(model(input_ids=ids[None]).logits[0, :-1] / 0.8, -1)
    expected = -(log_p.exp() * log_p).sum(-1)
    torch.testing.assert_close(got.entropy[1:], expected, atol=1e-5, rtol=0)
    mixed = torch.autograd.grad((got.entropy[1:] + 2 * got.logprobs[1:]).sum(), model.lm_head.weight)[0]
    chosen = log_p.gather(1, ids[1:, None]).squeeze(1)
    plain = torch.autograd.grad((expected + 2 * chosen).sum(), model.lm_head.weight)[0]
    torch.testing.assert_close(mixed, plain, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_neither_chunk_changes_scores_or_gradients(make_model: MakeModel, dtype: torch.dtype, tolerance: float) -> None:
    model = make_model().to(dtype)
    ids, document = _row(13, 21)
    results = []
    for chunk, vocab_chunk in ((1000, 1000), (1, 1000), (3, 32), (32, 1), (34, 96)):
        model.zero_grad()
        scores = token_scores(model, ids, document, torch.full((34,), 0.7), chunk, vocab_chunk=vocab_chunk)
        (scores.logprobs + 0.5 * scores.entropy).nansum().backward()
        grads = [parameter.grad.clone() for parameter in model.parameters()]
        results.append([scores.logprobs.detach(), scores.entropy.detach(), *grads])
    for result in results[1:]:
        for ours, whole in zip(result, results[0], strict=True):
            scale = float(whole.nan_to_num().abs().max())
            torch.testing.assert_close(ours, whole, atol=tolerance * scale, rtol=0, equal_nan=True)


@pytest.mark.parametrize("size", [1.0, 30.0, 300.0])
def test_scores_stay_exact_where_one_part_of_the_vocabulary_dwarfs_the_others(size: float) -> None:
    """Logits of up to thousands, from there on in float64 without chunks: nothing overflows, nothing cancels."""
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(20, 6, generator=generator)
    weight = size * torch.randn(50, 6, generator=generator)
    targets = torch.randint(0, 50, (20,), generator=generator)
    log_p = torch.log_softmax(linear(hidden, weight).double(), -1)
    logprobs, entropy = ChunkedScores.apply(hidden, weight, None, targets, torch.ones(20), Tile(7, 9), torch.float32)  # type: ignore[no-untyped-call]
    expected = log_p.gather(1, targets[:, None]).squeeze(1)
    torch.testing.assert_close(logprobs.double(), expected, rtol=1e-5, atol=2e-6 * size)
    torch.testing.assert_close(entropy.double(), -(log_p.exp() * log_p).sum(1), rtol=1e-5, atol=2e-6 * size)
    assert entropy.max() > 0.01


def test_peak_memory_depends_neither_on_positions_times_vocabulary_nor_on_a_chunk_of_either_alone() -> None:
    """The largest tensor that any operation returns, forward and backward, in a case where only a tile is small."""
    num_positions, num_words, width, tile = 300, 4000, 4, Tile(40, 200)
    hidden = torch.randn(num_positions, width, requires_grad=True)
    weight = torch.randn(num_words, width, requires_grad=True)
    targets, ones = torch.randint(0, num_words, (num_positions,)), torch.ones(num_positions)
    with Largest() as largest:
        logprobs, _ = ChunkedScores.apply(hidden, weight, None, targets, ones, tile, torch.float32)  # type: ignore[no-untyped-call]
        logprobs.sum().backward()
    assert largest.numel == weight.numel() < min(tile.positions * num_words, num_positions * tile.words)


class Largest(torch.utils._python_dispatch.TorchDispatchMode):
    """Remembers the size of the largest tensor that an operation returned while it was entered."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.numel = max(self.numel, out.numel())
        return out


def test_no_tensor_of_all_positions_by_the_vocabulary_is_made(make_model: MakeModel) -> None:
    model = make_model()
    ids, document = _row(200, 300)
    with Largest() as largest:
        scores = token_logprobs(model, ids, document, torch.ones(500), chunk=16)
        scores[~scores.isnan()].sum().backward()
    assert 0 < largest.numel < 500 * 97


def test_a_frozen_output_matrix_gets_no_gradient_and_the_layers_the_same(make_model: MakeModel) -> None:
    model = make_model(is_tied=False)
    ids, document = _row(20)
    grads = []
    for is_frozen in (False, True):
        model.zero_grad(set_to_none=True)
        model.lm_head.weight.requires_grad_(not is_frozen)
        token_logprobs(model, ids, document, torch.ones(20), chunk=7).nansum().backward()
        grads.append({name: p.grad for name, p in model.named_parameters()})
    assert grads[0]["lm_head.weight"] is not None and grads[1]["lm_head.weight"] is None
    for name in grads[0].keys() - {"lm_head.weight"}:
        assert torch.equal(grads[0][name], grads[1][name]), name


def test_nothing_needed_still_gives_a_graph_with_zero_gradients(make_model: MakeModel) -> None:
    model = make_model()
    ids, document = _row(5)
    scores = token_logprobs(model, ids, document, torch.ones(5), 8, needed_N=torch.zeros(5, dtype=torch.bool))
    assert scores.isnan().all()
    scores.nan_to_num(0.0).sum().backward()
    assert all(p.grad is None or not p.grad.abs().any() for p in model.parameters())


def test_bfloat16_compute_is_near_float32_and_leaves_the_masters_alone(make_model: MakeModel) -> None:
    model = make_model()
    ids, document = _row(30, 30)
    exact = token_logprobs(model, ids, document, torch.ones(60), 16)
    rough = token_logprobs(model, ids, document, torch.ones(60), 16, compute_dtype=torch.bfloat16)
    gap = (exact - rough).abs().nan_to_num(0.0)
    assert 0 < gap.max() < 0.2
    assert rough.dtype == torch.float32
    rough[~rough.isnan()].sum().backward()
    assert {p.grad.dtype for p in model.parameters()} == {torch.float32}


def test_a_window_shorter_than_a_document_is_refused(make_model: MakeModel) -> None:
    model = make_model("qwen3")
    for layer in model.model.layers:
        layer.self_attn.sliding_window = 8
    ids, document = _row(9, 3)
    with pytest.raises(PolicyError, match="window of 8 tokens"):
        token_logprobs(model, ids, document, torch.ones(12), 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"document_N": torch.tensor([0, 1, 0])}, "ascending"),
        ({"temperature_N": torch.tensor([1.0, -1.0, 1.0])}, "temperature"),
        ({"temperature_N": torch.ones(2)}, "temperature has shape"),
        ({"needed_N": torch.ones(3)}, "expected torch.bool"),
        ({"chunk": 0}, "chunk is 0"),
        ({"vocab_chunk": 0}, "by 0 words"),
    ],
)
def test_contradicting_arrays_are_refused(make_model: MakeModel, change: dict[str, object], message: str) -> None:
    arguments = {
        "token_ids_N": torch.tensor([1, 2, 3]),
        "document_N": torch.tensor([0, 0, 1]),
        "temperature_N": torch.ones(3),
        "chunk": 8,
    } | change
    with pytest.raises(ValueError, match=message):
        token_logprobs(make_model(), **arguments)
