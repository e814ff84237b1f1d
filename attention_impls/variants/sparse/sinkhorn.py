"""Sinkhorn attention: each block of queries attends to its own block of keys and to a soft match of all blocks.

Tokens are cut into N blocks of `block`. With q̄_m, k̄_n the means of a block's queries and keys, S = Sinkhorn(exp(
scale · q̄_m·k̄_n / temperature)): `iterations` times its rows, then its columns, are divided by their sums. Block m's
matched keys are k'_mt = Σ_n S_mn k_nt, t the place within a block, and its matched values v'_mt = Σ_n S_mn v_nt, sorted
like the keys (sinkhorn-transformer takes them from the keys, by mistake). A token of block m attends by one softmax
over scale · q·k of its own block's keys and of the matched ones: A = A_own + Σ_t A_matched,t S_mn at (n, t). Places
that the short last block lacks count as zeros. Rows need not sum to 1: rows of S do so only in the limit.

Source: Tay et al. 2020, "Sparse Sinkhorn Attention", arXiv 2002.11296. There the matrix comes from a network over block
sums with Gumbel noise; here, as in sinkhorn-transformer without noise, it compares queries and keys, by their means. No
mask: every block's mean is in every S. With one block each key counts twice in the softmax, which is `softmax`.
Options: block, iterations, temperature.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from attention_impls.call import Call, hide, wide
from attention_impls.contract import Implementation, Output, Run, Support, Variant
from attention_impls.tiling import checked, spans

Sizes = tuple[int, int, float]
"""(block, iterations, temperature)"""


def _weights(sizes: Sizes, call: Call, rows: Tensor) -> Tensor:
    """The definition, one block of queries after another; its own keys and the matched ones in one softmax."""
    block, iterations, temperature = sizes
    q, k, tokens = call.q, call.k, call.k.shape[2]
    bounds = spans(tokens, block)
    queries, keys = (torch.stack([x[:, :, lo:hi].mean(2) for lo, hi in bounds], 2) for x in (q, k))
    match = torch.softmax(call.scale * (queries @ keys.mT) / temperature, -1)  # [B, H, N, N], its rows divided once
    match = match / match.sum(-2, keepdim=True)
    for _ in range(iterations - 1):
        match = match / match.sum(-1, keepdim=True)
        match = match / match.sum(-2, keepdim=True)
    lines = []
    for m, (lo, hi) in enumerate(bounds):
        own = torch.eye(tokens, dtype=q.dtype)[lo:hi].expand(*q.shape[:2], -1, -1)
        matched = q.new_zeros(*q.shape[:2], min(block, tokens), tokens)  # what each matched place is made of
        for n, (first, last) in enumerate(bounds):
            places = torch.arange(last - first)
            matched[:, :, places, first + places] = match[:, :, m, n, None]
        sources = torch.cat([own, matched], 2)
        logits = q[:, :, lo:hi] @ (sources @ k).mT * call.scale
        lines.append(torch.softmax(logits, -1) @ sources)
    return torch.cat(lines, 2)[:, :, rows]


def _cut(x: Tensor, block: int) -> Tensor:
    """[B, H, T, D] -> [B, H, N, block, D], zeros behind the last token."""
    blocks: Tensor = pad(x, (0, 0, 0, -x.shape[2] % block)).unflatten(2, (-1, block))
    return blocks


def _match(sizes: Sizes, call: Call) -> Tensor:
    """S [B, H, N, N] in logarithms, so that no exponential overflows."""
    block, iterations, temperature = sizes
    tokens = call.q.shape[2]
    counts = torch.tensor([hi - lo for lo, hi in spans(tokens, block)], device=call.q.device).unsqueeze(-1)
    queries, keys = (_cut(x, block).sum(3) / counts for x in (call.q, call.k))
    logs = queries @ keys.mT * (call.scale / temperature)
    for _ in range(iterations):
        logs = logs.log_softmax(-1)
        logs = logs.log_softmax(-2)
    return logs.exp()


def _expanded(call: Call) -> Call:
    """In float32 at least, every query head with keys of its own."""
    return call.map(wide).expanded()


def _dense(sizes: Sizes, call: Call, lse: bool) -> Run:
    """Every pair materialised: own keys by a mask, matched ones spread back over the keys they are made of."""
    block, tokens = sizes[0], call.q.shape[2]
    of_token = torch.arange(tokens, device=call.q.device) // block
    own, places = of_token.unsqueeze(-1) == of_token, min(block, tokens)

    def run(call: Call) -> Output:
        whole = _expanded(call)
        match = _match(sizes, whole)[:, :, of_token]  # [B, H, I, N]
        keys = torch.einsum("bhin,bhntd->bhitd", match, _cut(whole.k, block)[:, :, :, :places])
        matched = torch.einsum("bhid,bhitd->bhit", whole.q, keys)
        logits = hide(whole.q @ whole.k.mT, own)
        weights = torch.softmax(torch.cat([logits, matched], -1) * call.scale, -1)
        spread = match.unsqueeze(-1) * weights[..., None, tokens:]  # [B, H, I, N, places]
        weights = weights[..., :tokens] + pad(spread, (0, block - places)).flatten(3)[..., :tokens]
        return Output((weights @ whole.v).to(call.q.dtype))

    return run


def _blocked(sizes: Sizes, call: Call, lse: bool) -> Run:
    """Blocks side by side, each against twice its own size of keys: O(I·block)."""
    block, tokens = sizes[0], call.q.shape[2]
    places = torch.arange(-(-tokens // block) * block, device=call.q.device).view(-1, 1, block)
    seen = torch.cat([places < tokens, (places % block < tokens).expand_as(places)], -1)  # [N, 1, 2·block]

    def run(call: Call) -> Output:
        whole = _expanded(call)
        q, k, v = (_cut(x, block) for x in (whole.q, whole.k, whole.v))
        match = _match(sizes, whole)
        k, v = (torch.cat([x, torch.einsum("bhmn,bhntd->bhmtd", match, x)], 3) for x in (k, v))
        out = torch.softmax(hide(q @ k.mT * call.scale, seen), -1) @ v
        return Output(out.flatten(2, 3)[:, :, :tokens].to(call.q.dtype))

    return run


def implementations(block: int = 64, iterations: int = 8, temperature: float = 0.75) -> list[Implementation]:
    """Both forms. Raises ValueError for a size below 1 or a temperature that is not positive."""
    sizes = (checked("block", block), checked("iterations", iterations), temperature)
    if not temperature > 0:
        raise ValueError(f"option temperature must be positive; got {temperature}")
    variant = Variant(
        "sinkhorn",
        weights=partial(_weights, sizes),
        couples=frozenset({"queries", "keys"}),
        masks=frozenset({"full"}),
        row_stochastic=False,
        self_only=True,
        paper="Tay et al. 2020, arXiv 2002.11296",
        formula="A = softmax over the own block's keys and Σ_n S_mn k_n, S = Sinkhorn(exp(scale · q̄ k̄ᵀ / temperature))",
        cost="time O(I·block·(D+E) + (I/block)²·(D + block·(D+E))), memory O(I·block + (I/block)²); dense O(I·J·D)",
        approximates="softmax",
    )
    support = Support(masks=variant.masks, cross=False)
    return [
        Implementation("dense", variant, partial(_dense, sizes), support),
        Implementation("blocked", variant, partial(_blocked, sizes), support),
    ]
