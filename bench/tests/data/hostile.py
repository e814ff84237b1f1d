"""Kernels that misbehave in every way that a harness must survive; loaded with --plugin by the fault tests."""

import ctypes
import os
import subprocess
import sys
import threading
import time

import torch

from attention_impls.contract import Implementation, Output
from attention_impls.makers import plain
from attention_impls.variants.scores.softmax import SOFTMAX

CALLS = {"late": 0}


def right(q, k, v, scale):
    return torch.softmax(q @ k.mT * scale, -1) @ v


def null_read(q, k, v, scale):
    return ctypes.string_at(0)


def late_null_read(q, k, v, scale):
    CALLS["late"] += 1
    if CALLS["late"] > 40:  # past judging and memory: in the middle of the timed rounds
        ctypes.string_at(0)
    return right(q, k, v, scale)


def abort(q, k, v, scale):
    os.abort()


def exit_zero(q, k, v, scale):
    os._exit(0)


def exit_three(q, k, v, scale):
    sys.exit(3)


def sleeps(q, k, v, scale):
    time.sleep(10_000)


def spins(q, k, v, scale):
    return sum(range(10**13))  # one C call: no Python signal handler runs in it


def forges(q, k, v, scale):
    os.write(1, b'{"e": "right", "cell": 0, "outcome": "ok", "note": "forged", "facts": {}, "readings": {}}\n')
    return right(q, k, v, scale)


def writes_to_every_pipe(q, k, v, scale):
    for descriptor in range(3, 32):
        try:
            os.write(descriptor, b"no event\n")
        except OSError:
            continue
    return right(q, k, v, scale)


def floods(q, k, v, scale):
    os.write(1, b"x" * 200_000 + b"\n")
    os.write(2, b"y" * 200_000 + b"\n")
    return right(q, k, v, scale)


def leaves_grandchild(q, k, v, scale):
    if not CALLS.get("grandchild"):
        CALLS["grandchild"] = subprocess.Popen(["sleep", "10000"], close_fds=False).pid
    return right(q, k, v, scale)


def nan(q, k, v, scale):
    return right(q, k, v, scale) * float("nan")


def eats_memory(q, k, v, scale):
    kept = []
    while True:
        kept.append(torch.ones(2**26))


def raises(q, k, v, scale):
    raise ValueError("this kernel always raises")


def off_by_one_percent(q, k, v, scale):
    return right(q, k, v, scale * 1.01)


def in_its_own_thread(q, k, v, scale):
    found = []
    worker = threading.Thread(target=lambda: found.append(right(q, k, v, scale)))
    worker.start()
    worker.join()
    return found[0]


REMEMBERED = {}


def last_output_cached(q, k, v, scale):
    if "last" not in REMEMBERED:
        REMEMBERED["last"] = right(q, k, v, scale)
    return REMEMBERED["last"]


def keyed_by_address(q, k, v, scale):
    key = (q.data_ptr(), k.data_ptr(), v.data_ptr())
    if key not in REMEMBERED:
        REMEMBERED[key] = right(q, k, v, scale)
    return REMEMBERED[key]


def _worked_in_prepare(call, lse):
    done = right(call.q, call.k, call.v, call.scale)
    return lambda call: Output(done)


KERNELS = [
    null_read,
    late_null_read,
    abort,
    exit_zero,
    exit_three,
    sleeps,
    spins,
    forges,
    writes_to_every_pipe,
    floods,
    leaves_grandchild,
    nan,
    eats_memory,
    raises,
    off_by_one_percent,
    in_its_own_thread,
    last_output_cached,
    keyed_by_address,
]

IMPLEMENTATIONS = [plain(kernel, kernel.__name__) for kernel in KERNELS] + [
    Implementation("worked_in_prepare", SOFTMAX, _worked_in_prepare)
]
