"""Compiles what the wrappers launch for an H200, on a machine without one: `python compile_for_hopper.py`.

The interpreter runs Python, which allows more than Triton's language does. The launches go to a driver that knows the
target only, and end before they run. Prints one line a kernel: its module, its name, and its bytes of machine code.
test_triton_compile.py fails for a kernel that a wrapper launches and this script does not.
"""

import os

os.environ.pop("TRITON_INTERPRET", None)

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from gradproof.kernels.grouped.experts import weight_gradients
from gradproof.kernels.triton import adamw, combine, cross_entropy, dispatch, experts, norm_gelu, route
from gradproof.ops.experts import Chain
from gradproof.ops.route import Routed, Routing

launch = JITFunction.run


class Hopper:
    """As much of a driver as compiling needs."""

    def get_current_device(self):
        return 0

    def get_current_stream(self, device=None):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)


def compiled(kernel, *args, grid, warmup, **options):
    made = launch(kernel, *args, grid=grid, warmup=True, **options)
    print(kernel.fn.__module__.removeprefix("gradproof.kernels."), kernel.fn.__name__, len(made.asm["cubin"]))


def norms(N, H, dtype):
    E = 4
    h_NH, offset_F = torch.empty(N, H, dtype=dtype), torch.zeros(E + 1, dtype=torch.int64)
    b_EH, gamma_EH, beta_EH = (torch.empty(E, 4 * H)[:, i * H : (i + 1) * H] for i in range(3))
    params = (b_EH, gamma_EH, beta_EH)
    stat_N2 = norm_gelu.ragged_forward(h_NH, offset_F, *params, True, h_NH)
    norm_gelu.ragged_backward(h_NH, h_NH, stat_N2, offset_F, *params, True, h_NH, h_NH, *params, True)


def rows(T, E, K, O):
    z_TE, aux = torch.empty(T, E), torch.ones(())
    routing = Routing(k=K, scores="sigmoid", renormalise=True, balance=0.1, z_loss=0.1)
    _, saved = route.forward(z_TE, torch.zeros(E), routing)
    route.backward(Routed(z_TE, aux), saved, routing)
    plan = dispatch.plan(torch.zeros(T, K, dtype=torch.int64), E)
    rows_NI, _ = dispatch.forward(torch.empty(T, 96), plan, torch.bfloat16)
    dispatch.backward(rows_NI, None, plan)
    rows_NO = torch.empty(T * K, O, dtype=torch.bfloat16)
    combine.forward(rows_NO, z_TE, plan)
    combine.backward(torch.empty(T, O), None, rows_NO, z_TE, plan)
    z_TC, target_T = torch.empty(T, O), torch.zeros(T, dtype=torch.int64)
    loss, kept = cross_entropy.forward(z_TC, target_T, torch.ones(O), aux)
    cross_entropy.backward(loss, kept, z_TC, target_T)


def chains(T, widths, accumulate):
    """Whole chains in one kernel."""
    E, K, chain = 4, 2, Chain(widths, (True,) * (len(widths) - 2))
    plan = dispatch.plan(torch.zeros(T, K, dtype=torch.int64), E)
    theta_EP, x_NI = torch.empty(E, chain.length), torch.empty(T * K, widths[0], dtype=torch.bfloat16)
    narrow_EP, out_EP = theta_EP.to(torch.bfloat16), torch.empty_like(theta_EP)
    y_NO, saved = experts.forward(x_NI, theta_EP, plan, chain, narrow_EP)
    experts.backward(y_NO, saved, x_NI, theta_EP, plan, chain, narrow_EP, out_EP, accumulate)


def grouped(outputs, inputs):
    N, E = 512, 4
    dy_NO, x_NI = (torch.empty(N, width, dtype=torch.bfloat16) for width in (outputs, inputs))
    weight_gradients(dy_NO, x_NI, torch.zeros(E + 1, dtype=torch.int64), torch.empty(E, outputs, inputs), True)


def optimizer(blocks):
    p, g, m, v = torch.empty(4, blocks * 64).unbind(0)
    scalars = torch.ones(4).unbind(0)
    flags = torch.zeros(blocks, dtype=torch.bool)
    adamw.step(p, g, m, v, flags, *scalars, narrow_P=torch.empty_like(p, dtype=torch.bfloat16))
    adamw.norm(g)


if __name__ == "__main__":
    driver.set_active(Hopper())  # pyright: ignore[reportArgumentType]
    JITFunction.run = compiled
    norms(64, 128, torch.bfloat16)
    norms(64, 4096, torch.bfloat16)
    rows(300, 4, 2, 20)
    rows(40_000, 4, 2, 20)  # enough for every kernel that adds up blocks
    chains(40, (96, 128, 128, 128, 20), False)
    chains(8192, (32, 32, 32, 20), True)  # larger tiles, more parts
    grouped(1024, 1024)
    grouped(32, 96)  # smaller tiles
    optimizer(100)
