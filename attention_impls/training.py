"""How a layer is trained: the loss, the optimisers by the name of their direction, and the bytes they keep and spend.

A direction `train` is one step of it: gradients set to None, forward, loss, backward, optimiser. Source of AdamW:
Loshchilov and Hutter 2019, arXiv 1711.05101; of momentum: Sutskever et al. 2013, "On the importance of initialization
and momentum in deep learning".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

RATE = 1e-5  # thousands of timed steps must not carry the weights away from where they were judged
MOMENTUM = 0.9
COUNTER = 4  # bytes: AdamW counts the steps of each tensor in a float32 of its own

How = Literal["single", "foreach", "fused"]


@dataclass(frozen=True)
class Optimiser:
    """An optimiser and the form it runs in: one tensor at a time, `foreach` over lists, or one fused kernel.

    state(sizes): bytes kept between steps, for parameters of these many bytes. scratch(sizes): the most bytes alive
    at once in a step beyond what was there when it began; None where nobody has worked it out.
    """

    doc: str
    make: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    how: How
    state: Callable[[Sequence[int]], int]
    scratch: Callable[[Sequence[int]], int] | None = None
    eps: float = 0.0


def _adamw(how: How) -> Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]:
    return lambda given: torch.optim.AdamW(given, lr=RATE, foreach=how == "foreach", fused=how == "fused")


def _two_moments(sizes: Sequence[int]) -> int:
    return 2 * sum(sizes) + COUNTER * len(sizes)


def _one_at_a_time(sizes: Sequence[int]) -> int:
    """A root and its quotient; the quotient of the tensor before lives on in the loop's variable."""
    return max((before + 2 * now for before, now in pairwise((0, *sizes))), default=0)


OPTIMISERS = {
    "train": Optimiser("AdamW, one tensor at a time", _adamw("single"), "single", _two_moments, _one_at_a_time, 1e-8),
    "train_adamw_foreach": Optimiser(
        "AdamW, foreach over all tensors", _adamw("foreach"), "foreach", _two_moments, sum, 1e-8
    ),
    "train_adamw_fused": Optimiser(
        "AdamW, one fused kernel", _adamw("fused"), "fused", _two_moments, lambda sizes: 0, 1e-8
    ),
    "train_momentum": Optimiser(
        f"SGD with momentum {MOMENTUM}, one tensor at a time",
        lambda given: torch.optim.SGD(given, lr=RATE, momentum=MOMENTUM, foreach=False),
        "single",
        sum,
        lambda sizes: 0,
    ),
    "train_sgd": Optimiser(
        "SGD, one tensor at a time",
        lambda given: torch.optim.SGD(given, lr=RATE, foreach=False),
        "single",
        lambda sizes: 0,
        lambda sizes: 0,
    ),
}


def refuses(direction: str, dtype: torch.dtype) -> str | None:
    """Why an optimiser cannot train parameters of a dtype, or None."""
    eps = OPTIMISERS[direction].eps
    if eps and not float(torch.tensor(eps, dtype=dtype)):
        return f"AdamW's eps of {eps:g} is 0 in {str(dtype).removeprefix('torch.')}: 0/0 at the first zero gradient; \
take train_sgd, or keep the weights in f32 and put +autocast:f16 inside"
    return None


def loss_of(y: Tensor, target: Tensor) -> Tensor:
    """Squared error summed over the width, mean over tokens: y, target [B, I, M] -> a scalar.

    A mean over the width as well would make gradients too small for float16.
    """
    return nn.functional.mse_loss(y, target, reduction="sum") / (y.shape[0] * y.shape[1])


def loss_gradient(y: Tensor, target: Tensor) -> Tensor:
    """The loss's gradient [B, I, M] with respect to y, by hand."""
    return 2.0 * (y - target) / (y.shape[0] * y.shape[1])


def sizes_of(parameters: Iterable[Tensor]) -> list[int]:
    """Bytes of each parameter."""
    return [p.numel() * p.element_size() for p in parameters]


def state_of(optimiser: torch.optim.Optimizer) -> int:
    """Bytes of every tensor an optimiser keeps."""
    kept = (value for state in optimiser.state.values() for value in state.values() if isinstance(value, Tensor))
    return sum(sizes_of(kept))
