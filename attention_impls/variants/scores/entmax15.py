"""1.5-entmax attention: A_ij = [L_ij/2 − τ_i]₊², τ_i such that row i sums to 1, L = scale · q kᵀ.

Between softmax and sparsemax: keys below a threshold weigh exactly 0, and weights go to 0 smoothly. It is `entmax`
at alpha 1.5, whose kernels it has. Source: Peters, Niculae, Martins 2019, "Sparse Sequence-to-Sequence Models",
arXiv 1905.05702.
"""

from __future__ import annotations

from attention_impls.variants.scores.entmax import of_alpha

IMPLEMENTATIONS = of_alpha("entmax15", 1.5)
