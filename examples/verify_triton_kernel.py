"""Check a Triton kernel, forward and backward, against a plain PyTorch reference.

    gradproof verify examples/verify_triton_kernel.py:case
    TRITON_INTERPRET=1 gradproof verify examples/verify_triton_kernel.py:case      # without a GPU

The kernel computes silu(x) = x·σ(x). `check_kernel` calls it at many sizes and strides, with NaN inputs and in memory
full of NaN, and compares every entry with the reference, within computed bounds.
"""

import torch
import triton
import triton.language as tl

import gradproof

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BLOCK = 256


@triton.jit
def _sigmoid(value):
    decay = tl.exp(-tl.abs(value))  # never above 1: exp(-value) would overflow
    return tl.where(value >= 0, 1.0, decay) / (1.0 + decay)


@triton.jit
def _forward(x, y, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < count)
    tl.store(y + at, value * _sigmoid(value), mask=at < count)


@triton.jit
def _backward(x, dy, dx, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < count)
    cotangent = tl.load(dy + at, mask=at < count)
    sigma = _sigmoid(value)
    tl.store(dx + at, cotangent * sigma * (1.0 + value * (1.0 - sigma)), mask=at < count)


class Silu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        if x.numel():
            _forward[(triton.cdiv(x.numel(), BLOCK),)](x, y, x.numel(), BLOCK)
        ctx.save_for_backward(x)
        return y

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        dy, dx = dy.contiguous(), torch.empty_like(x)
        if x.numel():
            _backward[(triton.cdiv(x.numel(), BLOCK),)](x, dy, dx, x.numel(), BLOCK)
        return dx


def fast(x):
    return Silu.apply(x)


def reference(x):
    return x * torch.sigmoid(x)


def case():
    torch.manual_seed(0)
    return gradproof.KernelCase(fast, reference, (torch.randn(8, 100, device=DEVICE),), shapes="x[T,I]")


if __name__ == "__main__":
    torch.manual_seed(0)
    report = gradproof.check_kernel(fast, reference, (torch.randn(8, 100, device=DEVICE),), shapes="x[T,I]")
    print(f"{report.status}: {report.summary}")
    assert report
