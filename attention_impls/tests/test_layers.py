"""Layers against torch's own module, numpy and float64; int8 against its arithmetic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attention_impls import catalogue, inputs, judge, layer_subject
from attention_impls.catalogue import Subject
from attention_impls.contract import Parameter, Workload
from attention_impls.layer_parts import Attending
from attention_impls.layers.multi_head import MultiHead
from attention_impls.makers import of, softmax_of
from attention_impls.transforms import int8_dynamic

WORKLOAD = Workload(batch=2, heads=4, kv_heads=4, q_len=33, kv_len=33, head_dim=8, value_dim=8, mask="causal")
ONE = replace(WORKLOAD, heads=1, kv_heads=1)


def _answer(subject: Subject, workload: Workload) -> layer_subject.LayerAnswer:
    """One step of the layer itself: y and the gradients of a random upstream gradient."""
    x = layer_subject.draw(workload).requires_grad_()
    prepared = layer_subject.prepare(subject, workload)
    out = prepared.run(x)
    leaves = prepared.leaves(x)
    return layer_subject.LayerAnswer(
        out.detach(), dict(zip(leaves, torch.autograd.grad(out, list(leaves.values()), _upstream(out)), strict=True))
    )


def _upstream(out: Tensor) -> Tensor:
    return inputs.draw_upstream(out)


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_multi_head_is_torchs_own_module_with_the_same_weights(mask: str) -> None:
    workload = replace(WORKLOAD, dtype="f64", mask=mask)
    prepared = layer_subject.prepare(catalogue.find("softmax.naive+in:multi_head"), workload)
    ours, theirs = prepared.module, nn.MultiheadAttention(32, 4, batch_first=True, dtype=torch.float64)
    parts = [ours.get_submodule(name) for name in ("q", "k", "v")]
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([p.weight for p in parts]))
        theirs.in_proj_bias.copy_(torch.cat([p.bias for p in parts]))
        theirs.out_proj.load_state_dict(ours.get_submodule("o").state_dict())
    x = layer_subject.draw(workload).requires_grad_()
    hidden = torch.ones(33, 33, dtype=torch.bool).triu(1) if mask == "causal" else None  # there True means hidden
    expected = theirs(x, x, x, attn_mask=hidden, need_weights=False)[0]
    out = prepared.run(x)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    upstream = _upstream(out)
    got, right = (torch.autograd.grad(y, x, upstream)[0] for y in (out, expected))
    torch.testing.assert_close(got, right, rtol=1e-12, atol=1e-12)


def test_single_head_is_three_products_and_a_softmax_by_hand() -> None:
    workload = replace(ONE, dtype="f64", value_dim=5)
    prepared = layer_subject.prepare(catalogue.find("softmax.naive+in:single_head"), workload)
    assert {name: tuple(p.shape) for name, p in prepared.module.named_parameters()} == {
        "q.weight": (8, 8),
        "k.weight": (8, 8),
        "v.weight": (5, 8),
    }
    x = layer_subject.draw(workload)
    wq, wk, wv = (prepared.module.get_parameter(f"{name}.weight").detach().numpy() for name in "qkv")
    t = x.numpy()
    logits = (t @ wq.T) @ (t @ wk.T).transpose(0, 2, 1) / np.sqrt(8)
    logits[:, np.triu(np.ones((33, 33), dtype=bool), 1)] = -np.inf
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ (t @ wv.T)
    np.testing.assert_allclose(prepared.run(x).detach().numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "workload"),
    [
        ("softmax.naive+in:multi_head", WORKLOAD),
        ("softmax.sdpa_flash+in:multi_head", replace(WORKLOAD, kv_heads=2)),
        ("softmax.naive+recompute+query_chunks:8+in:multi_head", replace(WORKLOAD, kv_heads=2, value_dim=12)),
        ("softmax.naive+key_chunks:8+in:multi_head", replace(WORKLOAD, mask="causal+padded:0.5")),
        ("softmax.naive+in:single_head", ONE),
    ],
)
def test_a_layer_and_all_its_gradients_are_those_of_its_float64_self(name: str, workload: Workload) -> None:
    subject = catalogue.find(name)
    assert layer_subject.refuses(subject, workload, "train", "cpu") is None
    seen = _answer(subject, workload)
    right = layer_subject.reference(subject, workload, layer_subject.draw(workload), _upstream(seen.out))
    assert set(seen.gradients) == set(right.gradients)
    distances = layer_subject.errors(seen, right)
    assert all(e.worst_row < 1e-5 for e in distances.values()), distances


def test_a_wrong_projection_shows_in_the_gradient_of_its_matrix() -> None:
    subject = catalogue.find("softmax.naive+in:multi_head")
    seen = _answer(subject, WORKLOAD)
    right = layer_subject.reference(subject, WORKLOAD, layer_subject.draw(WORKLOAD), _upstream(seen.out))
    seen.gradients["k.bias"].add_(seen.gradients["k.weight"].abs().mean())
    distances = layer_subject.errors(seen, right)
    assert [name for name, e in distances.items() if e.worst_row > 1e-3] == ["dk"]


def test_the_yardstick_is_the_same_layer_in_half_precision() -> None:
    subject, half = catalogue.find("softmax.naive+in:multi_head"), replace(WORKLOAD, dtype="bf16")
    x = layer_subject.draw(half)
    right = layer_subject.reference(subject, half, x)
    rough = layer_subject.reference(subject, half, x, dtype=torch.bfloat16)
    with torch.no_grad():
        seen = layer_subject.prepare(subject, half).run(x)
    own = judge.errors(rough.out, right.out)
    assert judge.errors(seen, right.out).worst_row <= judge.budget(own, torch.bfloat16)


def test_a_layer_is_built_alike_every_time_and_whatever_the_global_random_state_is() -> None:
    subject = catalogue.find("softmax.naive+in:multi_head")
    before = torch.get_rng_state()
    one, two = (layer_subject.prepare(subject, WORKLOAD).module.state_dict() for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one[name], two[name]) for name in one)


GIVEN = {
    "temperature": Parameter("H", "weight"),
    "gate": Parameter("B H J", "token", squash=torch.nn.functional.logsigmoid),
    "amount": Parameter("B I", "token"),
    "slopes": Parameter("H", "constant", draw=lambda generator, shape: torch.linspace(0.1, 1.0, shape[0])),
    "noise": Parameter("H I J", "random"),
}


def _toy_logits(call: object, rows: Tensor) -> Tensor:
    p = call.parameters
    logits = call.q[:, :, rows] @ call.k.mT * call.scale * (p["temperature"] + p["slopes"])[:, None, None]
    return logits * p["amount"][:, None, rows, None] + p["gate"][:, :, None] + p["noise"][:, rows]


TOY = softmax_of("toy", _toy_logits, parameters=GIVEN)


def _toy(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, scale: float, **p: Tensor) -> Tensor:
    logits = torch.einsum("bhid,bhjd->bhij", q, k) * scale * (p["temperature"] + p["slopes"]).view(1, -1, 1, 1)
    logits = logits * p["amount"].view(p["amount"].shape[0], 1, -1, 1) + p["gate"].unsqueeze(2) + p["noise"]
    return torch.softmax(logits, -1) @ v


def test_parameters_of_a_mechanism_become_parts_of_the_layer_by_their_role() -> None:
    workload = replace(WORKLOAD, mask="full")
    bare = of(TOY, _toy)
    subject = replace(catalogue.find("softmax.naive+in:multi_head"), bare=bare, inner=bare)
    attending = layer_subject.prepare(subject, workload).module.get_submodule("attention")
    assert isinstance(attending, Attending)
    assert {name: tuple(p.shape) for name, p in attending.named_parameters()} == {
        "weights.temperature": (4,),
        "gates.gate.weight": (4, 32),
        "gates.gate.bias": (4,),
        "gates.amount.weight": (1, 32),
        "gates.amount.bias": (1,),
    }
    assert sorted(name for name, _ in attending.named_buffers()) == ["noise", "slopes"]
    seen = _answer(subject, workload)
    right = layer_subject.reference(subject, workload, layer_subject.draw(workload), _upstream(seen.out))
    distances = layer_subject.errors(seen, right)
    assert all(e.worst_row < 1e-5 for e in distances.values()), distances
    # a shift of all logits of a head: the gate's bias alone has no gradient, its matrix has
    assert float(right.gradients["attention.gates.gate.weight"].norm()) > 1e-3


def test_a_gate_is_a_squashed_projection_of_the_tokens_in_the_order_of_its_axes() -> None:
    seen: dict[str, Tensor] = {}

    def spy(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, scale: float, **given: Tensor) -> Tensor:
        seen.update(given)
        return v

    module = MultiHead(of(TOY, spy), WORKLOAD, inputs.generator("layer"))
    x = layer_subject.draw(WORKLOAD)
    module(x, inputs.build_mask(WORKLOAD))
    gates = module.get_submodule("attention.gates")
    gate = x @ gates.get_parameter("gate.weight").T + gates.get_parameter("gate.bias")  # [B, J, H]
    amount = x @ gates.get_parameter("amount.weight").T + gates.get_parameter("amount.bias")  # [B, I, 1]
    torch.testing.assert_close(seen["gate"], torch.log(1 / (1 + torch.exp(-gate))).transpose(1, 2))
    torch.testing.assert_close(seen["amount"], amount[..., 0])


def test_a_gate_without_tokens_is_an_error() -> None:
    variant = softmax_of("toy", _toy_logits, parameters={"gate": Parameter("B H", "token")})
    with pytest.raises(ValueError, match="it needs B and one of I, J"):
        MultiHead(of(variant, _toy), WORKLOAD, inputs.generator("layer"))


def test_attention_is_prepared_once_for_a_mask_and_a_shape() -> None:
    prepared: list[tuple[int, int]] = []
    naive = catalogue.find("softmax.naive+in:multi_head")

    def counting(call: object, lse: bool) -> object:
        prepared.append((call.q.shape[0], call.q.shape[2]))
        return naive.bare.prepare(call, lse)

    module = MultiHead(replace(naive.bare, prepare=counting), WORKLOAD, inputs.generator("layer"))
    mask, x = inputs.build_mask(WORKLOAD), layer_subject.draw(WORKLOAD)
    for _ in range(3):
        module(x, mask)
    module(x[:1], mask)
    module(x[:1, :20], replace(mask, q_len=20, kv_len=20))
    assert prepared == [(2, 33), (1, 33), (1, 20)]


def test_layers_say_what_they_cannot_do() -> None:
    multi, single = (catalogue.find(f"softmax.naive+in:{name}") for name in ("multi_head", "single_head"))
    cross = replace(WORKLOAD, kv_len=64)
    assert "self-attention" in str(layer_subject.refuses(multi, cross, "fwd", "cpu"))
    assert "set heads to 1" in str(layer_subject.refuses(single, WORKLOAD, "fwd", "cpu"))
    tf32 = replace(WORKLOAD, dtype="tf32")
    assert "CUDA only" in str(layer_subject.refuses(multi, tf32, "fwd", "cpu"))
    narrow = catalogue.find("softmax.sdpa_flash+in:multi_head")
    assert "value size" in str(layer_subject.refuses(narrow, replace(WORKLOAD, value_dim=4), "fwd", "cpu"))
    with pytest.raises(ValueError, match=r"add \+in:multi_head"):
        layer_subject.refuses(catalogue.find("softmax.naive"), WORKLOAD, "fwd", "cpu")


INT8 = "softmax.naive+in:multi_head+int8_dynamic"


def test_int8_agrees_with_its_written_arithmetic_and_is_two_percent_from_float64() -> None:
    subject, x = catalogue.find(INT8), layer_subject.draw(WORKLOAD)
    with torch.no_grad():
        y = layer_subject.prepare(subject, WORKLOAD).run(x)
    assert judge.errors(y, layer_subject.reference(subject, WORKLOAD, x).out).relative < 1e-5
    assert 5e-3 < judge.errors(y, layer_subject.reference(subject, WORKLOAD, x, rounded=False).out).relative < 6e-2


def test_int8_arithmetic_of_a_small_matrix_by_hand() -> None:
    """Weight scale 2·1/255; activations from -1 to 2 in steps of 3/127, zero at round(127/3) = 42."""
    linear = nn.Linear(2, 1, bias=False, dtype=torch.float64)
    linear.weight.data = torch.tensor([[1.0, -0.5]], dtype=torch.float64)
    x = torch.tensor([[2.0, -1.0], [0.3, 0.7]], dtype=torch.float64)
    w = np.array([127.0, -64.0]) * 2 / 255  # 127.5 -> 128 -> clamped to 127; -63.75 -> -64
    a = np.array([[85.0, -42.0], [13.0, 30.0]]) * 3 / 127  # 84.67, -42.33, 12.7, 29.63
    assert torch.allclose(int8_dynamic.Int8Arithmetic(linear)(x), torch.from_numpy(a @ w)[:, None], rtol=1e-14)


def test_int8_lists_the_four_modules_that_became_int8_and_proves_that_they_ran() -> None:
    subject, x = catalogue.find(INT8), layer_subject.draw(WORKLOAD)
    plain = catalogue.find("softmax.naive+in:multi_head")
    with torch.no_grad():
        prepared = layer_subject.prepare(subject, WORKLOAD)
        seen = layer_subject.gather(prepared, x)
        unchanged = layer_subject.gather(layer_subject.prepare(plain, WORKLOAD), x)
    assert int8_dynamic.became_int8(prepared.module) == ["q", "k", "v", "o"]
    proof = int8_dynamic.TRANSFORM.applied
    assert proof is not None
    assert proof(seen, unchanged) == (True, "4 modules in int8 (q, k, v, o), 4 calls of linear_dynamic")
    assert not proof(unchanged, unchanged).ok


@pytest.mark.parametrize("module", [nn.Identity(), nn.MultiheadAttention(8, 2)], ids=["no_linear", "torch_own"])
def test_int8_that_would_change_no_module_is_an_error(module: nn.Module) -> None:
    with pytest.raises(ValueError, match=r"no nn\.Linear"):
        int8_dynamic.TRANSFORM.wrap_layer(module, None)


def test_int8_refuses_backward_other_devices_and_other_dtypes() -> None:
    subject = catalogue.find(INT8)
    assert layer_subject.refuses(subject, WORKLOAD, "fwd", "cpu") is None
    assert "no backward" in str(layer_subject.refuses(subject, WORKLOAD, "fwdbwd", "cpu"))
    assert "no backward" in str(layer_subject.refuses(subject, WORKLOAD, "train", "cpu"))
    assert "not on cuda" in str(layer_subject.refuses(subject, WORKLOAD, "fwd", "cuda"))
    assert "not bf16" in str(layer_subject.refuses(subject, replace(WORKLOAD, dtype="bf16"), "fwd", "cpu"))


def test_layer_transforms_belong_after_the_layer() -> None:
    with pytest.raises(ValueError, match="belongs after"):
        catalogue.find("softmax.naive+int8_dynamic")
    with pytest.raises(ValueError, match="belongs before"):
        catalogue.find("softmax.naive+in:multi_head+recompute")
