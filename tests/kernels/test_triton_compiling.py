"""Kernels compiled side by side: launched inside, they are compiled and do not run; elsewhere all is as before."""

from threading import Thread

import pytest
import torch

from gradproof.kernels.triton import combine
from gradproof.kernels.triton.compiling import compiling
from gradproof.ops import combine as reference
from gradproof.ops import dispatch

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device: nothing is compiled")


def call(T=40, K=2, E=4, O=13):
    generator = torch.Generator().manual_seed(0)
    index_TK = torch.rand(T, E, generator=generator).argsort(1)[:, :K].contiguous()
    plan = dispatch.DispatchPlan(*(tensor.cuda() for tensor in dispatch.plan(index_TK, E)))
    rows_NO, gates_TE = torch.randn(T * K, O, generator=generator), torch.rand(T, E, generator=generator)
    return rows_NO.cuda(), gates_TE.cuda(), plan


@on_a_gpu
def test_what_is_launched_inside_is_compiled_and_runs_afterwards():
    given = call()
    with compiling():
        combine.forward(*given)
    y_TO, _ = combine.forward(*given)
    torch.testing.assert_close(y_TO, reference.forward(*given)[0])


@on_a_gpu
def test_other_threads_launch_as_ever():
    given, made = call(), []
    combine.forward(*given)
    with compiling():
        thread = Thread(target=lambda: made.append(combine.forward(*given)[0]))
        thread.start()
        thread.join()
    torch.testing.assert_close(made[0], reference.forward(*given)[0])


def test_everything_is_put_back():
    triton = pytest.importorskip("triton")
    before = triton.runtime.jit.JITFunction.run, torch._assert_async
    with pytest.raises(ZeroDivisionError), compiling():
        assert triton.runtime.jit.JITFunction.run is not before[0]
        raise ZeroDivisionError
    assert (triton.runtime.jit.JITFunction.run, torch._assert_async) == before
