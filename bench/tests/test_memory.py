"""Peak memory against hand counts, to the byte.

The count: storages alive at the worst moment above the inputs, wrapped scalars (4 bytes in a forward without
gradients, 8 where one is kept) and stashed random states included, each rounded as torch's CPU allocator does,
that is not at all. S is one [B, H, I, J] of scores, OUT the output, X one of q, k, v.
"""

import gc

import pytest
import torch

from attention_impls import catalogue
from bench.cell import parse_id
from bench.device import Held, Phases
from bench.devices.cpu import DEVICE, _account
from bench.step import make

H, N, D = 8, 256, 64
S, OUT = H * N * N * 4, H * N * D * 4
SCALAR, KEPT_SCALAR = 4, 8
RNG_STATE = 5056  # bytes of torch's CPU random state, stashed by a checkpoint


def held(subject, direction="fwd", mask="full", n=N):
    torch.set_num_threads(1)
    cell = parse_id(f"{subject}/b1-h{H}-n{n}-d{D}-f32-{mask}/{direction}/cpu1")
    step = make(catalogue.find(subject), cell, 1)
    with step.mode():
        return DEVICE.memory(step.phases())


def test_naive_forward_is_scores_and_weights_and_three_scalars():
    # q @ k.mT (S), scaled (S): the product is freed, softmax makes S again; its weights and the scaled scores are the
    # worst moment. The wrapped scale is 4 bytes in each of three places where the expression keeps it.
    assert held("softmax.naive").peak_forward == 2 * S + 3 * SCALAR


def test_naive_backward_holds_the_weights_the_output_and_the_scale():
    found = held("softmax.naive", "fwdbwd")
    assert found.held == S + OUT + KEPT_SCALAR
    assert found.peak_backward == 3 * S + 2 * OUT + KEPT_SCALAR


@pytest.mark.parametrize("rows", [64, 128])
def test_query_chunks_need_two_chunks_of_scores_and_the_parts_of_the_output(rows):
    """The last chunk is worst: its scores twice, and the output's parts so far; or the joining, 2 O."""
    found = held(f"softmax.naive+query_chunks:{rows}")
    scores, parts = H * rows * N * 4, OUT // (N // rows)
    last = 2 * scores + (N // rows - 1) * parts + 3 * SCALAR
    assert found.peak_forward == max(last, 2 * OUT)
    assert found.held == OUT


@pytest.mark.parametrize("threads", [1])
def test_the_fused_kernel_s_scratch_is_seen(threads):
    """Its log-sum-exp [H, N] in float32 and a scratch that a tracker of Python tensors never sees."""
    found = held("softmax.sdpa_flash")
    assert found.peak_forward > OUT + H * N * 4
    assert held("softmax.sdpa_flash", "fwdbwd").held == OUT + H * N * 4


def test_recomputation_holds_the_random_state_instead_of_the_weights():
    found = held("softmax.naive+recompute", "fwdbwd")
    assert OUT + RNG_STATE <= found.held <= OUT + RNG_STATE + 64
    assert found.held < held("softmax.naive", "fwdbwd").held - S + RNG_STATE + 64


def test_the_number_is_the_same_every_time_and_whatever_ran_before():
    first = held("softmax.naive", "fwdbwd")
    held("softmax.naive", "fwdbwd", n=512)
    held("softmax.sdpa_flash", "fwdbwd", n=64)
    again = held("softmax.naive", "fwdbwd")
    assert first == again


def _in_a_cycle():
    kept = [torch.empty(2**20)]
    kept.append(kept)


def test_older_garbage_is_not_freed_in_the_middle_of_a_session():
    phases = Phases(before=_in_a_cycle, forward=lambda: (gc.collect(), torch.ones(16))[1])
    assert DEVICE.memory(phases) == Held(peak_forward=64, held=64)


def test_what_a_step_leaves_in_cycles_counts_as_held_by_it():
    phases = Phases(before=lambda: None, forward=lambda: (_in_a_cycle(), torch.ones(16))[1])
    assert DEVICE.memory(phases).peak_forward == 4 * 2**20 + 64


def test_without_a_balance_there_is_no_number():
    events = [("attnbench.forward", 0), ("memory", 100), ("memory", -30)]
    assert _account(events, alive=70).peak_forward == 100
    assert _account(events, alive=170).why_missing.startswith("not measurable")


def test_frees_of_blocks_born_outside_the_session_are_never_a_negative_peak():
    events = [("memory", -500), ("attnbench.forward", 0), ("memory", 100)]
    assert _account(events, alive=100).peak_forward is None
