"""Training: gradients against float64 by hand, bytes against the optimiser's formulas, refusals, and weights that stay.

The bytes: AdamW keeps two moments of each parameter and a float32 count of its steps; one tensor at a time it has two
temporaries of the largest parameter alive, foreach has one list as large as all parameters, fused has none.
SGD keeps nothing, with momentum one buffer a parameter.
"""

import pytest
import torch

from attention_impls import catalogue
from attention_impls.training import OPTIMISERS, loss_gradient, loss_of
from bench.cell import parse_id
from bench.devices.cpu import DEVICE
from bench.protocol import Protocol
from bench.right import judge_step
from bench.step import make, refuses

H, N, D = 4, 64, 16
WIDTH = H * D
MATRIX, BIAS = WIDTH * WIDTH * 4, WIDTH * 4
WEIGHTS = 4 * (MATRIX + BIAS)  # q, k, v and o of multi_head, each with its bias
TENSORS = 8
LAYER = "softmax.sdpa_flash+in:multi_head"
STATE = {
    "train": 2 * WEIGHTS + 4 * TENSORS,
    "train_adamw_foreach": 2 * WEIGHTS + 4 * TENSORS,
    "train_adamw_fused": 2 * WEIGHTS + 4 * TENSORS,
    "train_momentum": WEIGHTS,
    "train_sgd": 0,
}
SCRATCH = {
    "train": BIAS + 2 * MATRIX,  # the loop still holds the quotient of the bias before
    "train_adamw_foreach": WEIGHTS,
    "train_adamw_fused": 0,
    "train_momentum": 0,
    "train_sgd": 0,
}
SCALARS = 64  # python numbers that become tensors of 4 or 8 bytes on their way


def cell_of(direction="train", subject=LAYER, dtype="f32", mask="full"):
    return parse_id(f"{subject}/b1-h{H}-n{N}-d{D}-{dtype}-{mask}/{direction}/cpu1")


def step_of(direction="train", subject=LAYER, **axes):
    torch.set_num_threads(1)
    return make(catalogue.find(subject), cell_of(direction, subject, **axes), 1)


def measured(step):
    with step.mode():
        return DEVICE.memory(step.phases())


def weights_of(step):
    return {name: p.detach().clone() for name, p in step.prepared.module.named_parameters()}


def test_every_optimiser_is_a_direction_of_a_cell_that_names_itself():
    for direction in OPTIMISERS:
        assert cell_of(direction).id.endswith(f"/{direction}/cpu1")


def test_the_gradient_by_hand_is_the_gradient_of_the_loss():
    torch.manual_seed(0)
    y, target = torch.randn(2, 2, 5, 8, dtype=torch.float64)
    y.requires_grad_()
    loss = loss_of(y, target)
    assert loss.item() == pytest.approx(((y - target) ** 2).sum().item() / 10, rel=1e-15)
    torch.testing.assert_close(loss_gradient(y.detach(), target), torch.autograd.grad(loss, y)[0])


@pytest.mark.parametrize("direction", OPTIMISERS)
def test_bytes_of_weights_gradients_state_and_scratch_are_their_formulas(direction):
    step = step_of(direction)
    kept, held = step.kept(), measured(step)
    assert kept == {"gradients": WEIGHTS, "optimiser_state": STATE[direction]}
    assert abs(held.scratch - SCRATCH[direction]) <= SCALARS
    stated = OPTIMISERS[direction]
    sizes = [MATRIX, BIAS] * 4
    assert (stated.state(sizes), stated.scratch(sizes)) == (STATE[direction], SCRATCH[direction])


def test_the_optimiser_s_peak_stands_on_the_gradients():
    held = measured(step_of("train"))
    assert WEIGHTS <= held.peak_optimise - held.scratch <= WEIGHTS + SCALARS


RATE, DECAY, EPS = 1e-5, 1e-2, 1e-8


def adamw(w, g):
    """The second step with one gradient twice: both moments, unbiased, are the gradient and its square."""
    return -RATE * DECAY * w - RATE * g / (g.abs() + EPS)


MOVES = {
    "train": adamw,
    "train_adamw_foreach": adamw,
    "train_adamw_fused": adamw,
    "train_momentum": lambda w, g: -RATE * (g + 0.9 * g),
    "train_sgd": lambda w, g: -RATE * g,
}


@pytest.mark.parametrize("direction", OPTIMISERS)
def test_a_timed_step_moves_every_weight_as_the_papers_say(direction):
    """One step was taken when the state was made, from the same weights, with the same gradients."""
    step = step_of(direction, dtype="f64")
    before, gradients = weights_of(step), step.expected(0).gradients
    with step.mode():
        step.once(0)()
    del gradients["k.bias"]  # a softmax does not feel it: its gradient is rounding around 0
    after = weights_of(step)
    for name, gradient in gradients.items():
        right = MOVES[direction](before[name], gradient)
        torch.testing.assert_close(after[name] - before[name], right, rtol=1e-8, atol=1e-15)


def test_what_is_judged_begins_at_the_same_weights_whatever_was_timed():
    step = step_of("train")
    first = step.seen(0)
    with step.mode():
        for _ in range(5):
            step.once(0)()
    again = step.seen(0)
    assert torch.equal(first.out, again.out)
    assert all(torch.equal(first.gradients[name], again.gradients[name]) for name in first.gradients)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("direction", ["fwdbwd", "train"])
def test_layers_are_judged_by_every_gradient(direction, dtype):
    for subject in (LAYER, "softmax.naive+in:mla", "additive.chunked+in:single_head"):
        heads = "h1" if "single" in subject else f"h{H}"
        cell = parse_id(f"{subject}/b1-{heads}-n{N}-d{D}-{dtype}-causal/{direction}/cpu1")
        found = judge_step(catalogue.find(subject), cell, Protocol())
        assert found.outcome == "ok", (subject, found.note)
        assert len(found.errors) > 4


def test_a_gradient_that_is_wrong_is_seen(monkeypatch):
    from bench.train_step import TrainStep

    real = TrainStep._gradients

    def louder(self, loss):
        return {name: 1.01 * g if name == "k.weight" else g for name, g in real(self, loss).items()}

    monkeypatch.setattr(TrainStep, "_gradients", louder)
    found = judge_step(catalogue.find(LAYER), cell_of(), Protocol())
    assert found.outcome == "wrong" and "k" in found.note


@pytest.mark.parametrize(
    ("subject", "dtype", "text"),
    [
        ("softmax.naive", "f32", "a kernel has nothing to train"),
        (LAYER, "f16", "eps of 1e-08 is 0 in float16"),
        (LAYER + "+int8_dynamic", "f32", "backward"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_its_reason(subject, dtype, text):
    assert text in refuses(catalogue.find(subject), cell_of("train", subject, dtype=dtype))


def test_pure_half_precision_with_the_default_eps_really_fails():
    """The reason for the refusal: a gradient of exactly zero, as an unused row has, is 0/0."""
    weight = torch.nn.Parameter(torch.ones(4, dtype=torch.float16))
    weight.grad = torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=torch.float16)
    torch.optim.AdamW([weight], foreach=False).step()
    assert weight.isnan().tolist() == [False, True, False, False]


def test_half_precision_trains_without_an_eps():
    assert refuses(catalogue.find(LAYER), cell_of("train_sgd", dtype="f16")) is None


def test_operators_of_the_optimiser_are_counted():
    sgd, adamw = (step_of(d).evidence().backward for d in ("train_sgd", "train"))
    assert sgd["add_"] == TENSORS  # w -= rate * g
    assert adamw["addcdiv_"] == adamw["sqrt"] == adamw["lerp_"] == TENSORS
    assert "addcdiv_" not in step_of("fwdbwd").evidence().backward


@pytest.mark.parametrize("direction", ["fwdbwd", "train"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_stack_of_layers_is_judged_by_the_gradients_of_its_norms_too(norm, direction):
    subject = f"softmax.sdpa_flash+in:encoder:layers-2:norm-{norm}+checkpoint"
    found = judge_step(catalogue.find(subject), cell_of(direction, subject, mask="causal"), Protocol())
    assert found.outcome == "ok", found.note
