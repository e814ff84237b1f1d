"""performer-pytorch 1.1.4 (P. Wang): FAVOR+ by its own functions, with the call's Ω and with eps = 0.

After Choromanski et al. 2020, arXiv 2009.14794. Its default adds 1e-4 to every feature, which biases the estimate
where there are many: another function than `performer`. Causal by its own form in plain torch, which holds a state for
every token. Keys are stabilised by the largest of all, which later keys can move: an early row of very small weights
may be 0/0 where a later key is very large. In float16 its gradients overflow. It imports distutils, which Python 3.12
no longer has without setuptools. Options as `performer`.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

from attention_impls.call import Call
from attention_impls.contract import Growth, Implementation, Run, Support
from attention_impls.needs import package
from attention_impls.peers import first_of, imported, only_default_scale, out_only, some_heads_shared
from attention_impls.variants.linear import performer

LIBRARY = "performer_pytorch"
NEEDS = (package(LIBRARY, "performer-pytorch"), package("distutils", "setuptools"))


def _favor(call: Call, lse: bool) -> Run:
    library = imported(f"{LIBRARY}.performer_pytorch")
    causal = partial(library.causal_linear_attention_noncuda, eps=0.0)
    attend = causal if call.mask.simplified().causal else library.linear_attention
    omega = call.parameters["omega"]
    features = partial(library.softmax_kernel, projection_matrix=omega, eps=0.0)

    def run(call: Call) -> Tensor:
        out: Tensor = attend(features(call.q, is_query=True), features(call.k, is_query=False), call.v)
        return out

    return out_only(run)


def _oblong(call: Call) -> str | None:
    """Its causal form cuts queries and keys into as many pieces each, whatever their lengths."""
    oblong = call.mask.causal and call.q.shape[2] != call.k.shape[2]
    return "needs as many keys as queries under a causal mask" if oblong else None


def implementations(features: int = 128) -> list[Implementation]:
    """The one kernel, for one number of features. Raises ValueError for fewer than one."""
    variant = performer.implementations(features)[0].variant
    support = Support(
        dtypes=frozenset({"f64", "f32", "tf32", "bf16"}),
        masks=frozenset({"full", "causal"}),
        starts=frozenset({"zero"}),
        needs=NEEDS,
        why_not=first_of(only_default_scale, some_heads_shared, _oblong),
    )
    return [Implementation(LIBRARY, variant, _favor, support, growth=Growth(1, 1, "features fixed"))]
