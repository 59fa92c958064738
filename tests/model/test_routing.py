"""Replayed experts: the model's own change nothing, others do what plain PyTorch does with them."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeTopkRouter
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssTopKRouter
from transformers.models.granitemoe.modeling_granitemoe import GraniteMoeTopKRouter
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter
from transformers.models.olmoe.modeling_olmoe import OlmoeTopKRouter
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeTopKRouter
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextTopKRouter

from swe_rl.errors import PolicyError, TrajectoryError
from swe_rl.model import Routing, TokenScores, recompute_activations, token_scores
from swe_rl.model.routing import use_routing

MakeModel = Callable[..., PreTrainedModel]
LENGTHS = (11, 7, 16)
LAYERS, EXPERTS, CHOSEN = 2, 8, 3
N = sum(LENGTHS)
IDS = torch.randint(0, 97, (N,), generator=torch.Generator().manual_seed(1))
DOCUMENT = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))


def score(model: PreTrainedModel, routing: Routing | None = None) -> TokenScores:
    return token_scores(model, IDS, DOCUMENT, torch.full((N,), 0.8), 8, routing=routing)


def own_choice(model: PreTrainedModel) -> Tensor:
    """int16 [N, L, K]: what the routers choose of themselves, read at their outputs."""
    seen: list[Tensor] = []
    handles = [
        layer.mlp.gate.register_forward_hook(lambda _m, _a, output: seen.append(output[2]))
        for layer in model.model.layers
    ]
    with torch.no_grad():
        score(model)
    for handle in handles:
        handle.remove()
    return torch.stack(seen, dim=1).to(torch.int16)


def random_choice(seed: int) -> Tensor:
    scores = torch.rand(N, LAYERS, EXPERTS, generator=torch.Generator().manual_seed(seed))
    return scores.topk(CHOSEN).indices.to(torch.int16)


def gradients(model: PreTrainedModel, routing: Routing | None) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    logprobs = score(model, routing).logprobs
    torch.autograd.backward(logprobs.nansum())
    return logprobs.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_equal(one: tuple[Tensor, dict[str, Tensor]], two: tuple[Tensor, dict[str, Tensor]]) -> None:
    assert torch.equal(one[0].nan_to_num(7), two[0].nan_to_num(7))
    assert one[1].keys() == two[1].keys()
    for name, gradient in one[1].items():
        assert torch.equal(gradient, two[1][name]), name


@pytest.mark.parametrize("is_recomputed", [False, True])
def test_replaying_the_models_own_choices_changes_no_bit(make_model: MakeModel, is_recomputed: bool) -> None:
    model = make_model("qwen3_moe")
    plain = gradients(model, None)
    own = own_choice(model)
    if is_recomputed:
        recompute_activations(model)
        plain = gradients(model, None)
    routing = Routing(own, is_replayed=True)
    assert_equal(gradients(model, routing), plain)
    scores = score(model, routing)
    is_scored = ~scores.logprobs.isnan()
    assert torch.equal(scores.router_agreement[is_scored], torch.ones(N - len(LENGTHS)))
    assert scores.router_agreement[~is_scored].isnan().all()


def test_without_recorded_experts_the_models_own_choices_stand(make_model: MakeModel) -> None:
    model = make_model("qwen3_moe")
    plain = gradients(model, None)
    routing = Routing(torch.full((N, LAYERS, CHOSEN), -1, dtype=torch.int16), is_replayed=True)
    assert_equal(gradients(model, routing), plain)
    assert score(model, routing).router_agreement.isnan().all()


def test_experts_that_are_only_compared_change_no_bit(make_model: MakeModel) -> None:
    model = make_model("qwen3_moe")
    plain = gradients(model, None)
    assert_equal(gradients(model, Routing(random_choice(3), is_replayed=False)), plain)


def reference(model: Any, experts_NLK: Tensor, document: int) -> Tensor:
    """[n]: log-probabilities of one document in plain PyTorch, with loops over tokens and their experts."""
    own = (document == DOCUMENT).nonzero().squeeze(1)
    ids = IDS[own]
    hidden = model.model.embed_tokens(ids)[None]
    position = model.model.rotary_emb(hidden, torch.arange(len(ids))[None])
    mask = torch.full((len(ids), len(ids)), float("-inf")).triu(1)[None, None]
    for index, layer in enumerate(model.model.layers):
        attended, _ = layer.self_attn(layer.input_layernorm(hidden), position, mask)
        hidden = hidden + attended
        x = layer.post_attention_layernorm(hidden)[0]
        outputs = []
        for token, row in zip(own, x, strict=True):
            shares = F.softmax(layer.mlp.gate.weight @ row, dim=0)
            chosen = experts_NLK[token, index].long()
            weights = shares[chosen] / shares[chosen].sum()
            parts = []
            for weight, expert in zip(weights, chosen, strict=True):
                gate, up = (layer.mlp.experts.gate_up_proj[expert] @ row).chunk(2)
                parts.append(weight * (layer.mlp.experts.down_proj[expert] @ (F.silu(gate) * up)))
            outputs.append(torch.stack(parts).sum(0))
        hidden = hidden + torch.stack(outputs)[None]
    logits = model.lm_head(model.model.norm(hidden))[0] / 0.8
    return torch.log_softmax(logits, -1)[:-1].gather(1, ids[1:, None]).squeeze(1)


@pytest.mark.parametrize("is_recomputed", [False, True])
def test_replaying_other_experts_is_what_plain_pytorch_makes_of_them(
    make_model: MakeModel, is_recomputed: bool
) -> None:
    model = make_model("qwen3_moe")
    experts = random_choice(5)
    # the first document's tokens are unknown in part: there the own choice stands
    experts[2:5] = -1
    model.zero_grad()
    merged = torch.where(experts >= 0, experts, _own_given(model, experts))
    expected = [reference(model, merged, index) for index in range(len(LENGTHS))]
    torch.autograd.backward(torch.cat(expected).sum())
    wanted = {name: p.grad.clone() for name, p in model.named_parameters()}
    if is_recomputed:
        recompute_activations(model)
    logprobs, got = gradients(model, Routing(experts, is_replayed=True))
    for index, of_document in enumerate(expected):
        torch.testing.assert_close(logprobs[index == DOCUMENT][1:], of_document.detach(), rtol=0, atol=1e-5)
    for name, gradient in wanted.items():
        torch.testing.assert_close(got[name], gradient, rtol=1e-4, atol=1e-4 * float(gradient.abs().max()), msg=name)
    assert all(float(got[f"model.layers.{i}.mlp.gate.weight"].abs().max()) > 0 for i in range(LAYERS))


def _own_given(model: PreTrainedModel, experts: Tensor) -> Tensor:
    """What the routers choose of themselves where the layers before replay `experts`."""
    chosen: list[Tensor] = []
    with torch.no_grad():
        for layer in range(LAYERS):
            known = experts.clone()
            known[:, layer:] = -1
            for before, own in enumerate(chosen):
                known[:, before] = torch.where(experts[:, before] >= 0, experts[:, before], own)
            seen: list[Tensor] = []
            handle = model.model.layers[layer].mlp.gate.register_forward_hook(
                lambda _m, _a, output, seen=seen: seen.append(output[2])
            )
            score(model, Routing(known, is_replayed=True))
            handle.remove()
            chosen.append(seen[0].to(torch.int16))
    return torch.stack(chosen, dim=1)


def test_agreement_is_the_share_of_layers_with_the_same_set_at_the_token_that_the_next_is_drawn_from(
    make_model: MakeModel,
) -> None:
    model = make_model("qwen3_moe")
    experts = own_choice(model).flip(2)  # the order doesn't matter
    other = torch.tensor([e for e in range(EXPERTS) if e not in experts[4, 1]][:CHOSEN], dtype=torch.int16)
    experts[4, 1] = other
    experts[6] = -1
    scores = score(model, Routing(experts, is_replayed=False))
    agreement = scores.router_agreement
    assert (float(agreement[4]), float(agreement[5]), float(agreement[6])) == (1.0, 0.5, 1.0)
    assert bool(agreement[7].isnan()) and bool(agreement[0].isnan())
    assert torch.equal(agreement[8:11], torch.ones(3))


@pytest.mark.parametrize(
    ("experts", "message"),
    [
        (torch.zeros(N, LAYERS + 1, CHOSEN), "3 layers.*the policy has 2 layers"),
        (torch.zeros(N, LAYERS, CHOSEN + 1), "4 experts a token.*3 of them a token"),
        (torch.full((N, LAYERS, CHOSEN), EXPERTS), "numbers up to 8.*8 experts"),
    ],
)
def test_experts_of_another_model_are_refused(make_model: MakeModel, experts: Tensor, message: str) -> None:
    with pytest.raises(TrajectoryError, match=message):
        score(make_model("qwen3_moe"), Routing(experts.to(torch.int16), is_replayed=True))


def test_a_model_without_experts_has_nothing_to_replay(make_model: MakeModel) -> None:
    with pytest.raises(PolicyError, match="no layer has a router"):
        score(make_model("qwen3"), Routing(torch.zeros(N, LAYERS, CHOSEN, dtype=torch.int16), is_replayed=True))


ROUTERS = [
    Qwen3MoeTopKRouter, Qwen2MoeTopKRouter, Qwen3NextTopKRouter, OlmoeTopKRouter, MixtralTopKRouter,
    DeepseekV3TopkRouter, Glm4MoeTopkRouter, GptOssTopKRouter, GraniteMoeTopKRouter,
]  # fmt: skip


class _Layer(torch.nn.Module):
    def __init__(self, router: torch.nn.Module) -> None:
        super().__init__()
        self.router = router

    def forward(self, x: Tensor, **_: object) -> tuple[Tensor, Tensor]:
        """(weights, experts) [N, K], in whichever order the family's router gives them."""
        output = self.router(x)
        experts = next(part for part in output if not part.is_floating_point())
        return next(part for part in output if part.is_floating_point() and part.shape == experts.shape), experts


class _Model(torch.nn.Module):
    def __init__(self, router: torch.nn.Module) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([_Layer(router)])
        self.base_model = self


@pytest.mark.parametrize("make_router", ROUTERS)
def test_routers_of_many_families_give_their_own_weights_to_what_is_replayed(make_router: Any) -> None:
    torch.manual_seed(0)
    config = SimpleNamespace(
        num_experts_per_tok=4, num_experts=16, num_local_experts=16, hidden_size=12, norm_topk_prob=True,
        routed_scaling_factor=2.5, n_group=4, topk_group=2,
    )  # fmt: skip
    router = make_router(config)
    for tensor in router.state_dict().values():
        tensor.normal_()
    model: Any = _Model(router)
    x = torch.randn(40, 12)
    weights, own = model.layers[0](x)
    order = torch.tensor([2, 0, 3, 1])
    for experts, expected in ((own, weights), (own[:, order], weights[:, order])):
        routing = Routing(experts[:, None].to(torch.int16), is_replayed=True)
        use_routing(model, routing)
        got_weights, got = model.layers[0](x, routing=routing)
        assert torch.equal(got, experts)
        assert torch.equal(routing.agreement(), torch.ones(40))
        torch.testing.assert_close(got_weights, expected, rtol=0 if experts is own else 1e-6, atol=0)


class _TwiceTopKRouter(Qwen3MoeTopKRouter):
    def forward(self, hidden_states: Tensor) -> Any:
        super().forward(hidden_states)
        return super().forward(hidden_states)


def test_a_router_that_chooses_in_an_unknown_way_is_refused() -> None:
    config = SimpleNamespace(num_experts_per_tok=4, num_experts=16, hidden_size=12, norm_topk_prob=True)
    model: Any = _Model(_TwiceTopKRouter(config))
    routing = Routing(torch.zeros(5, 1, 4, dtype=torch.int16), is_replayed=True)
    use_routing(model, routing)
    with pytest.raises(PolicyError, match="_TwiceTopKRouter takes its experts by 2 top-k calls"):
        model.layers[0](torch.randn(5, 12), routing=routing)
