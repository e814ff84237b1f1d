"""Multi-head latent attention: keys and values rebuilt from one small latent a token, all that a cache must hold.

c = rms_norm(W_down x) [latent]; in head h: k = [W_uk c; rope(W_kr x)], v = W_uv c, q = [q_nope; rope(q_rope)]; then
softmax attention, scale 1/√(nope + rope), and an output projection. The rotated part of the key is one for all
heads. Two forms of the same function: `explicit` builds every head's k and v; `absorbed` moves W_uk into the
query and W_uv behind the attention, which then runs over the latents themselves: one key/value head, keys
latent + rope wide, values latent wide.

Source: DeepSeek-AI 2024, "DeepSeek-V2", arXiv 2405.04434, §2.1, with its proportions: nope = D, rope = D/2,
latent = 4·D; queries are not compressed (as in its Lite model); no biases. Rotations pair neighbouring
entries, base 10000. Inside stands any implementation of softmax.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from attention_impls.contract import Implementation, Layer, Workload
from attention_impls.layer_parts import Attending, join_heads, linear, only_self, split_heads, width
from attention_impls.mask import Mask

FORMS = ("explicit", "absorbed")
BASE = 10000.0


def rotated(x: Tensor) -> Tensor:
    """x [B, H, I, R] with entries 2p, 2p+1 of token t turned by t · base^(-2p/R) (Su et al. 2021, arXiv 2104.09864)."""
    tokens, size = x.shape[-2:]
    rates = BASE ** (-torch.arange(0, size, 2, dtype=torch.float64, device=x.device) / size)
    angles = torch.arange(tokens, dtype=torch.float64, device=x.device).unsqueeze(-1) * rates  # far angles need float64
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


class Up(nn.Module):
    """A matrix out of the latent that is read, not applied: no nn.Linear, so that no quantiser hides it."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach())


class LatentAttention(nn.Module):
    """x [B, I, M] -> [B, I, M] in one of the two forms."""

    def __init__(self, form: str, attention: Implementation, workload: Workload, generator: torch.Generator) -> None:
        super().__init__()
        m, w, self._form = width(workload), workload, form
        self._heads, self._nope, self._rope, self._latent = w.heads, w.head_dim, w.head_dim // 2, 4 * w.head_dim
        self.q = linear(m, w.heads * (self._nope + self._rope), w, generator, bias=False)
        self.kv_down = linear(m, self._latent + self._rope, w, generator, bias=False)
        self.norm = nn.RMSNorm(self._latent, eps=1e-6, dtype=w.torch_dtype)
        k_up = linear(self._latent, w.heads * self._nope, w, generator, bias=False)
        v_up = linear(self._latent, w.heads * w.value_dim, w, generator, bias=False)
        self.k_up, self.v_up = (up if form == "explicit" else Up(up.weight) for up in (k_up, v_up))
        self.o = linear(w.heads * w.value_dim, m, w, generator, bias=False)
        scale = (self._nope + self._rope) ** -0.5
        self.attention = Attending(attention, inside(form, w), generator, scale=scale)

    def forward(self, x: Tensor, mask: Mask) -> Tensor:
        """Tokens [B, I, M] under a mask -> [B, I, M]."""
        nope, rope = split_heads(self.q(x), self._heads).split([self._nope, self._rope], -1)
        latent, key_rope = self.kv_down(x).split([self._latent, self._rope], -1)
        shared = rotated(key_rope.unsqueeze(1))  # [B, 1, I, rope]
        attend = self._explicit if self._form == "explicit" else self._absorbed
        y: Tensor = self.o(join_heads(attend(x, nope, rotated(rope), self.norm(latent), shared, mask)))
        return y

    def _explicit(self, x: Tensor, nope: Tensor, rope: Tensor, latent: Tensor, shared: Tensor, mask: Mask) -> Tensor:
        """q parts [B, H, I, ·], latent [B, I, latent], the shared key part [B, 1, I, rope] -> [B, H, I, E]."""
        keys, values = (split_heads(up(latent), self._heads) for up in (self.k_up, self.v_up))
        k = torch.cat([keys, shared.expand(-1, self._heads, -1, -1)], -1)
        out: Tensor = self.attention(x, torch.cat([nope, rope], -1), k, values, mask)
        return out

    def _absorbed(self, x: Tensor, nope: Tensor, rope: Tensor, latent: Tensor, shared: Tensor, mask: Mask) -> Tensor:
        """As the explicit form: q [W_ukᵀ q_nope; q_rope] over keys [c; k_rope] and values c, then W_uv."""
        key_up, value_up = (
            up.get_parameter("weight").view(self._heads, -1, self._latent) for up in (self.k_up, self.v_up)
        )
        q = torch.cat([torch.einsum("bhid,hdl->bhil", nope, key_up), rope], -1)
        c = latent.unsqueeze(1)
        out = self.attention(x, q, torch.cat([c, shared], -1), c, mask)  # [B, H, I, latent]
        return torch.einsum("bhil,hel->bhie", out, value_up)


def inside(form: str, workload: Workload) -> Workload:
    """What the attention inside sees: every head its own keys, or one head of latents."""
    d = workload.head_dim
    if form == "explicit":
        return replace(workload, kv_heads=workload.heads, head_dim=d + d // 2)
    return replace(workload, kv_heads=1, head_dim=4 * d + d // 2, value_dim=4 * d)


def _refuses(attention: Implementation, workload: Workload) -> str | None:
    if attention.variant.name != "softmax":
        return f"mla is softmax attention; it takes any implementation of softmax, not of {attention.variant.name}"
    if workload.kv_heads != workload.heads:
        return "mla has one latent for all heads and no groups of them: leave kv_heads equal to heads"
    if workload.head_dim % 4:
        return f"mla rotates half of the head size in pairs: head_dim must be a multiple of 4; got {workload.head_dim}"
    return only_self(workload)


def _made(form: str = "explicit") -> Layer:
    """The layer in one form. Raises ValueError for a form nobody knows."""
    if form not in FORMS:
        raise ValueError(f"option form of mla must be one of {', '.join(FORMS)}; got {form!r}")
    return Layer(
        name="mla",
        doc="Multi-head latent attention: k and v of every head from one latent a token, rebuilt or absorbed.",
        build=partial(LatentAttention, form),
        refuses=_refuses,
        inside=partial(inside, form),
        configure=_made,
    )


LAYER = _made()
