"""DeBERTa's disentangled attention: content to content, content to position and position to content, summed.

L_ij = scale · (q_i·k_j + q_i·κ_{δ(i,j)} + k_j·ρ_{δ(j,i)}),  A = softmax(L),  scale = (3D)^-1/2: three terms.
δ(i, j) = clip(i − j + S, 0, 2S − 1), S the option span. κ rel_keys and ρ rel_queries [H, 2S, D] are the relative
embeddings after the projections of keys and of queries; here each is a parameter of its own. The term of position to
position is left out, as published. Logarithmic buckets (version 2) are not here: distances are clipped. With both
tables zero it is `softmax` at that scale.
`naive` forms both tables' products for the whole call; `tiled` for one tile of queries and keys at a time.
Source: He et al. 2020, "DeBERTa: Decoding-enhanced BERT with Disentangled Attention", arXiv 2006.03654.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from attention_impls.biased import distances, positioned, row_distances
from attention_impls.call import Call
from attention_impls.contract import Implementation, Parameter
from attention_impls.makers import softmax_of
from attention_impls.tiling import checked


def _logits(span: int, call: Call, rows: Tensor) -> Tensor:
    """Row by row, with every key's two vectors side by side."""
    far, keys, queries = row_distances(call, rows), call.parameters["rel_keys"], call.parameters["rel_queries"]
    q, by_row = call.q[:, :, rows], []
    for r in range(len(rows)):
        there = (far[:, 0, r] + span).clamp(0, 2 * span - 1)  # δ(i, j) [1|B, J]
        back = (span - far[:, 0, r]).clamp(0, 2 * span - 1)  # δ(j, i)
        kappa, rho = keys[:, there].transpose(0, 1), queries[:, back].transpose(0, 1)  # [1|B, H, J, D]
        query = q[:, :, r, None]
        by_row.append((query * (call.k + kappa) + call.k * rho).sum(-1))
    scores = torch.stack(by_row, 2) if by_row else q @ call.k.mT
    return scores * call.scale


def _score(span: int, part: Call) -> Tensor:
    q, k, far = part.q * part.scale, part.k * part.scale, distances(part)
    shape = (*q.shape[:3], k.shape[2])
    there, back = ((sign * far + span).clamp(0, 2 * span - 1).expand(shape) for sign in (1, -1))
    content_to_position = (q @ part.parameters["rel_keys"].mT).gather(-1, there)
    position_to_content = (k @ part.parameters["rel_queries"].mT).gather(-1, back.mT).mT
    scores: Tensor = q @ part.k.mT + content_to_position + position_to_content
    return scores


def implementations(span: int = 64) -> list[Implementation]:
    """Disentangled attention over distances clipped to a span. Raises ValueError for a span below 1."""
    table = Parameter("H N D", "weight", sizes={"N": 2 * checked("span", span)})
    variant = softmax_of(
        "deberta",
        partial(_logits, span),
        parameters={"rel_keys": table, "rel_queries": table},
        scale=lambda head_dim: (3.0 * head_dim) ** -0.5,
        paper="He et al. 2020, arXiv 2006.03654",
        formula="A = softmax(scale · (q_i·k_j + q_i·κ_δ(i,j) + k_j·ρ_δ(j,i))), scale = (3D)^-1/2",
        cost="time O(I·J·D + (I+J)·S·D); memory O(H·(I·J + (I+J)·S)) naive, O(I) and one tile tiled",
    )
    return positioned(variant, partial(_score, span))
