"""The one place where a random generator is made: masks, inputs and parameters of a workload.

A generator per name, seeded by crc32 of the seed, the workload and the name, so that a new parameter
changes no other draw. Everything is drawn on the CPU in float32, then rounded and moved: the same
numbers for every dtype and device.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable

import torch
from torch import Tensor

from attention_impls.call import Call
from attention_impls.contract import DTYPES, Parameter, Variant, Workload
from attention_impls.mask import Mask

SEED = 2026
MASK_WORDS = ("full", "causal", "causal:bottom_right", "padded:F", "packed:N", "dense:F")
LAYOUTS = ("B H I D", "B I H D")  # stride orders in which q, k, v can be born


def generator(name: str, seed: int = SEED) -> torch.Generator:
    """A CPU generator of its own for `name`."""
    return torch.Generator().manual_seed(zlib.crc32(f"{seed}/{name}".encode()))


def build_mask(workload: Workload, device: str = "cpu") -> Mask:
    """The mask that `workload.mask` names, joined by "+".

    full; causal (top-left: query i sees keys j <= i); causal:bottom_right (the last query stands at the
    last key); padded:F (key lengths drawn between F·J and J, the first sequence at F·J); packed:N
    (N documents side by side, boundaries drawn); dense:F (each pair visible with probability F, drawn per
    batch and head). On device "meta" dense parts carry shapes only. Raises ValueError for other words.
    """
    parts: dict[str, object] = {}
    for word in workload.mask.split("+"):
        kind, _, argument = word.partition(":")
        parts.update(_mask_part(kind, argument, workload, device))
    mask = Mask(q_len=workload.q_len, kv_len=workload.kv_len, **parts)  # type: ignore[arg-type]
    return mask if device == "meta" else mask.to(device)


def _mask_part(kind: str, argument: str, w: Workload, device: str) -> dict[str, object]:
    if kind == "full" and not argument:
        return {}
    if kind == "causal" and argument in ("", "bottom_right"):
        return {"causal": True, "q_start": w.kv_len - w.q_len if argument else 0}
    if kind == "padded":
        return {"key_lengths": _lengths(w, _fraction(w.mask, argument))}
    if kind == "packed":
        return _segments(w, _count(w.mask, argument))
    if kind == "dense":
        fraction = _fraction(w.mask, argument)
        shape = (w.batch, w.heads, w.q_len, w.kv_len)
        if device == "meta":
            return {"dense": torch.empty(shape, dtype=torch.bool, device="meta")}
        return {"dense": torch.rand(shape, generator=generator(f"{w.mask}/dense/{shape}")) < fraction}
    raise ValueError(f"mask {w.mask!r}: no word {kind + (':' + argument if argument else '')!r}; known: "
                     f"{', '.join(MASK_WORDS)}, joined by '+'")  # fmt: skip


def _fraction(mask: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value <= 1.0:
        raise ValueError(f"mask {mask!r}: expected a number in (0, 1] after ':', got {text!r}")
    return value


def _count(mask: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(f"mask {mask!r}: expected a whole number of at least 1 after ':', got {text!r}")
    return int(text)


def _lengths(w: Workload, fraction: float) -> Tensor:
    shortest = max(1, round(fraction * w.kv_len))
    made = generator(f"{w.mask}/lengths/{w.batch}/{w.kv_len}")
    lengths = torch.randint(shortest, w.kv_len + 1, (w.batch,), generator=made)
    lengths[:1] = shortest
    return lengths


def _segments(w: Workload, count: int) -> dict[str, object]:
    if w.q_len != w.kv_len:
        raise ValueError(f"mask {w.mask!r}: packed documents need as many keys as queries")
    if count > w.kv_len:
        raise ValueError(f"mask {w.mask!r}: {count} documents do not fit into {w.kv_len} tokens")
    rows = []
    for b in range(w.batch):
        made = generator(f"{w.mask}/segments/{b}/{w.kv_len}")
        cuts = torch.randperm(w.kv_len - 1, generator=made)[: count - 1].sort().values + 1
        rows.append(torch.bucketize(torch.arange(w.kv_len), cuts, right=True))
    ids = torch.stack(rows) if rows else torch.zeros((0, w.kv_len), dtype=torch.long)
    return {"q_segments": ids, "k_segments": ids}


def _normal(shape: tuple[int, ...], made: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=made)


def _heavytail(shape: tuple[int, ...], made: torch.Generator) -> Tensor:
    """Student t with 3 degrees of freedom, scaled to unit variance: finite variance, infinite kurtosis."""
    chi = torch.randn((3, *shape), generator=made).square().sum(0)
    return torch.randn(shape, generator=made) / chi.div(3).sqrt() / math.sqrt(3.0)


def _outliers(shape: tuple[int, ...], made: torch.Generator) -> Tensor:
    """Normal with one entry in a thousand a hundred times larger."""
    large = torch.rand(shape, generator=made) < 1e-3
    return torch.randn(shape, generator=made) * torch.where(large, 100.0, 1.0)


def _runs(shape: tuple[int, ...], made: torch.Generator) -> Tensor:
    """Rows repeated in runs of 32 along the token axis: long runs of equal scores."""
    tokens = shape[2]
    few = torch.randn((*shape[:2], -(-tokens // 32), shape[3]), generator=made)
    return few.repeat_interleave(32, 2)[:, :, :tokens]


def _offset_channels(shape: tuple[int, ...], made: torch.Generator) -> Tensor:
    """Normal with four channels moved by 20, the same for every token."""
    return torch.randn(shape, generator=made) + 20.0 * _four_channels(shape[-1])


def _scaled_channels(shape: tuple[int, ...], made: torch.Generator) -> Tensor:
    """Normal with four channels twenty times larger."""
    return torch.randn(shape, generator=made) * (1.0 + 19.0 * _four_channels(shape[-1]))


def _four_channels(size: int) -> Tensor:
    """[size], 1 at four places evenly apart (all, where there are no more), else 0."""
    places = torch.arange(4) * size // 4
    return torch.zeros(size).index_fill(0, places, 1.0)


DISTRIBUTIONS: dict[str, Callable[[tuple[int, ...], torch.Generator], Tensor]] = {
    "normal": _normal,
    "heavytail": _heavytail,
    "outliers": _outliers,
    "runs": _runs,
    "offset_channels": _offset_channels,
    "scaled_channels": _scaled_channels,
}
KEYS_ONLY = frozenset({"offset_channels", "scaled_channels"})  # of k, and of a layer's tokens; q and v are normal


def draw(
    variant: Variant,
    workload: Workload,
    *,
    which: int = 0,
    device: str = "cpu",
    layout: str = "B H I D",
    place: str = "",
) -> Call:
    """Inputs number `which` of a workload: q, k, v, the mask and every parameter of `variant`.

    On device "meta" nothing is drawn, and `place` says where the call would run. `layout` "B I H D"
    gives q, k, v that stride order, still indexed [B, H, I, D]. Raises ValueError for
    an unknown distribution of inputs or layout.
    """
    w = workload
    if layout not in LAYOUTS:
        raise ValueError(f"no layout called {layout!r}; known: {', '.join(LAYOUTS)}")
    if w.inputs not in DISTRIBUTIONS:
        raise ValueError(f"no distribution of inputs called {w.inputs!r}; known: {', '.join(DISTRIBUTIONS)}")
    shapes = {
        "q": (w.batch, w.heads, w.q_len, w.head_dim),
        "k": (w.batch, w.kv_heads, w.kv_len, w.head_dim),
        "v": (w.batch, w.kv_heads, w.kv_len, w.value_dim),
    }
    q, k, v = (_tensor(name, shape, w, which, device, layout) for name, shape in shapes.items())
    return Call(
        q=q,
        k=k,
        v=v,
        mask=build_mask(w, device),
        scale=variant.scale(w.head_dim),
        parameters={n: draw_parameter(n, p, w, which, device) for n, p in variant.parameters.items()},
        axes={n: p.axes for n, p in variant.parameters.items()},
        place=place,
    )


def draw_tokens(workload: Workload, width: int, which: int = 0, device: str = "cpu") -> Tensor:
    """What a layer is given: x [B, I, M], M = `width`, input set number `which`, from the workload's distribution."""
    shape = (workload.batch, 1, workload.q_len, width)
    return _tensor("x", shape, workload, which, device, "B H I D")[:, 0]


def draw_upstream(like: Tensor, which: int = 0, rows: Tensor | None = None) -> Tensor:
    """A random gradient of the output, shaped and typed `like` it; nonzero only in `rows` of axis 2 if given."""
    shape = tuple(like.shape)
    made = generator(f"upstream/{which}/{shape}")
    if rows is None:
        return torch.randn(shape, generator=made).to(device=like.device, dtype=like.dtype)
    few = torch.randn((*shape[:2], len(rows), shape[3]), generator=made)
    whole = torch.zeros_like(like)
    whole[:, :, rows.to(like.device)] = few.to(device=like.device, dtype=like.dtype)
    return whole


def sample_rows(q_len: int, count: int, name: str = "rows") -> Tensor:
    """At most `count` row indices, sorted: the first, the last and others drawn between."""
    if q_len <= count:
        return torch.arange(q_len)
    inner = torch.randperm(q_len - 2, generator=generator(f"{name}/{q_len}"))[: count - 2] + 1
    return torch.cat([torch.tensor([0, q_len - 1]), inner]).sort().values


def _tensor(name: str, shape: tuple[int, ...], w: Workload, which: int, device: str, layout: str) -> Tensor:
    if device == "meta":
        return torch.empty(shape, dtype=w.torch_dtype, device="meta")
    kind = "normal" if w.inputs in KEYS_ONLY and name in ("q", "v") else w.inputs
    drawn = DISTRIBUTIONS[kind](shape, generator(f"{which}/{w.inputs}/{shape}/{name}"))
    if layout == "B I H D":
        drawn = drawn.transpose(1, 2).contiguous().transpose(1, 2)
    return drawn.to(device=device, dtype=w.torch_dtype, memory_format=torch.preserve_format)


def draw_parameter(name: str, p: Parameter, w: Workload, which: int = 0, device: str = "cpu") -> Tensor:
    """A mechanism's parameter `name` for input set `which` of a workload."""
    dtype = w.torch_dtype if p.dtype == "workload" else DTYPES.get(p.dtype) or getattr(torch, p.dtype)
    shape = p.shape(w)
    if device == "meta":
        return torch.empty(shape, dtype=dtype, device="meta")
    # constants and random features are the same for every input set: a cache of them is no cheat
    set_name = which if p.learned else 0
    made = generator(f"{set_name}/{shape}/{name}")
    drawn = p.draw(made, shape) if p.draw else torch.randn(shape, generator=made)
    return drawn.to(device=device, dtype=dtype)
