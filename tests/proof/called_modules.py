"""Modules that are right in float64, called plainly at one point, and wrong as they train; and right ones that look
odd.

Each entry is a function without arguments that returns (module, inputs) and, for a wrong one, what is accused.
"""

import ctypes
import dataclasses

import torch
from torch import nn
from torch.autograd import Function


def x(rows=8, width=6):
    return torch.randn(rows, width)


class Around(nn.Module):
    """A function of (x, w) between two linear layers."""

    def __init__(self, function, **attributes):
        super().__init__()
        self.a, self.w, self.b = nn.Linear(6, 6), nn.Parameter(torch.randn(6, 6) / 3), nn.Linear(6, 3)
        self.function = function
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x):
        return self.b(torch.tanh(self.function(self, torch.tanh(self.a(x)), self.w)))


def product(backward):
    """x w with a backward of one's own: (ctx, g, x, w) to (dx, dw)."""

    class Product(Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x @ w

        @staticmethod
        def backward(ctx, g):
            return backward(ctx, g, *ctx.saved_tensors)

    return Around(lambda self, x, w: Product.apply(x, w))


def right_product(ctx, g, x, w):
    return g @ w.T, x.T @ g


def wrong_in(dtype):
    def backward(ctx, g, x, w):
        w_ = w.to(g.dtype)
        return g @ w_.T, (x.T @ g * (2.0 if x.dtype == dtype else 1.0)).to(w.dtype)

    return product(backward)


def lazy_weight(ctx, g, x, w):
    """No weight gradient where the input's is not asked for."""
    return g @ w.T, x.T @ g if ctx.needs_input_grad[0] else torch.zeros_like(w)


class LastOnly(nn.Module):
    """A layer whose weight gradient hangs on whether its input needs one."""

    def __init__(self, backward):
        super().__init__()
        self.inner = product(backward)
        self.inner.a = nn.Identity()

    def forward(self, x):
        return self.inner(x)


class OnSelf(nn.Module):
    """Keeps its activations on itself instead of on the graph."""

    def __init__(self):
        super().__init__()
        self.w, self.b, self.kept = nn.Parameter(torch.randn(6, 6) / 3), nn.Linear(6, 3), None

    def forward(self, x):
        module = self

        class Product(Function):
            @staticmethod
            def forward(ctx, x, w):
                module.kept = x, w
                return x @ w

            @staticmethod
            def backward(ctx, g):
                x, w = module.kept
                return g @ w.T, x.T @ g

        return self.b(torch.tanh(Product.apply(x, self.w)))


class Spends(nn.Module):
    """The second backward through its graph gives half."""

    def __init__(self):
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(6, 6) / 3), nn.Linear(6, 3)

    def forward(self, x):
        class Product(Function):
            @staticmethod
            def forward(ctx, x, w):
                ctx.save_for_backward(x, w)
                ctx.uses = 0
                return x @ w

            @staticmethod
            def backward(ctx, g):
                x, w = ctx.saved_tensors
                ctx.uses += 1
                return g @ w.T, x.T @ g / ctx.uses

        return self.b(Product.apply(x, self.w))


def reads_memory(ctx, g, x, w):
    """Takes the cotangent's memory for its numbers."""
    flat = torch.as_strided(g, (g.numel(),), (1,)) if g.untyped_storage().nbytes() >= g.nbytes else g.flatten()
    g = flat.reshape(g.shape)
    return g @ w.T, x.T @ g


class ReadsMemory(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(6, 6) / 3)

    def forward(self, x):
        class Product(Function):
            @staticmethod
            def forward(ctx, x, w):
                ctx.save_for_backward(x, w)
                return x @ w

            @staticmethod
            def backward(ctx, g):
                return reads_memory(ctx, g, *ctx.saved_tensors)

        return Product.apply(x, self.w)


class Overwrites(nn.Module):
    """Writes `.grad` instead of adding to it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x):
        module = self

        class Plain(Function):
            @staticmethod
            def forward(ctx, x, w):
                ctx.save_for_backward(x, w)
                return x @ w.T

            @staticmethod
            def backward(ctx, g):
                x, w = ctx.saved_tensors
                module.linear.weight.grad = g.T @ x
                return g @ w, None

        return Plain.apply(x, self.linear.weight) + self.linear.bias


class LoRA(nn.Module):
    """B = 0: the gradient of A vanishes there, whatever the code says."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.base = nn.Linear(6, 5)
        self.A, self.B = nn.Parameter(torch.randn(6, 2)), nn.Parameter(torch.zeros(2, 5))
        self.A.register_hook(lambda g: factor * g)

    def forward(self, x):
        return self.base(x) + x @ self.A @ self.B


class ZeroBranch(nn.Module):
    """A residual branch that is scaled by zero."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.branch, self.gain = nn.Linear(6, 6), nn.Parameter(torch.zeros(()))
        self.branch.weight.register_hook(lambda g: factor * g)

    def forward(self, x):
        return x + self.gain * torch.tanh(self.branch(x))


class WrongAfterEval(nn.Module):
    def __init__(self, factor=2.0):
        super().__init__()
        self.linear, self.factor = nn.Linear(6, 3), factor

    def forward(self, x):
        y = torch.tanh(self.linear(x))
        if not self.training:
            y = 1.5 * y
            y.register_hook(lambda g: self.factor * g)
        return y


class WrongForOneRow(nn.Module):
    def __init__(self, factor=2.0):
        super().__init__()
        self.linear, self.factor = nn.Linear(6, 3), factor

    def forward(self, x):
        y = torch.tanh(self.linear(x))
        if len(x) == 1:
            y.register_hook(lambda g: self.factor * g)
        return y


class UnderAutocast(nn.Module):
    """Asks for bf16 by itself, and is wrong there alone."""

    def __init__(self, factor=2.0):
        super().__init__()
        self.a, self.b, self.factor = nn.Linear(6, 16), nn.Linear(16, 3), factor

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            h = self.a(x)
            if h.dtype == torch.bfloat16:
                h.register_hook(lambda g: self.factor * g)
        return self.b(torch.tanh(h.to(x.dtype)))


class MainGrad(nn.Module):
    """Gradients are added to `main_grad`, as Megatron does it."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.linear, self.factor = nn.Linear(6, 3), factor
        self.linear.weight.main_grad = torch.zeros_like(self.linear.weight)

    def forward(self, x):
        module = self

        class Fused(Function):
            @staticmethod
            def forward(ctx, x, w):
                ctx.save_for_backward(x, w)
                return x @ w.T

            @staticmethod
            def backward(ctx, g):
                x, w = ctx.saved_tensors
                w_ = module.linear.weight
                w_.main_grad.add_((module.factor * g.T @ x).to(w_.main_grad.dtype))
                return g @ w, None

        return Fused.apply(x, self.linear.weight) + self.linear.bias


class StepsInside(nn.Module):
    """An optimizer that steps as soon as a gradient is there, and takes it off."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)

        def step(p):
            with torch.no_grad():
                p -= 0.1 * p.grad
            p.grad = None

        self.linear.weight.register_post_accumulate_grad_hook(step)

    def forward(self, x):
        return torch.tanh(self.linear(x))


def pointer_kernel(right=True):
    """float32 by raw pointers: in float64 it would read garbage."""
    scale = 1.0 if right else 2.0

    def numbers(t):
        return (ctypes.c_float * t.numel()).from_address(t.data_ptr())

    class Square(Function):
        @staticmethod
        def forward(ctx, x):
            x = x.contiguous()
            y = torch.zeros_like(x)
            given, out = numbers(x), numbers(y)
            for i in range(x.numel()):
                out[i] = given[i] * given[i]
            ctx.save_for_backward(x)
            return y

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            g = g.contiguous()
            dx = torch.zeros_like(x)
            given, up, out = numbers(x), numbers(g), numbers(dx)
            for i in range(x.numel()):
                out[i] = scale * 2 * given[i] * up[i]
            return dx

    return Around(lambda self, x, w: Square.apply(x @ w))


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    scale: torch.Tensor
    name: str = "batch"


class TakesDataclass(nn.Module):
    def __init__(self, factor=1.0):
        super().__init__()
        self.linear, self.factor = nn.Linear(6, 3), factor

    def forward(self, batch):
        scale = batch.scale * 1.0
        scale.register_hook(lambda g: self.factor * g)
        return torch.tanh(self.linear(batch.x)) * scale


class SparseParameter(nn.Module):
    def __init__(self, factor=1.0):
        super().__init__()
        places = torch.tensor([[0, 1, 2, 4], [1, 0, 3, 5]])
        self.w = nn.Parameter(torch.sparse_coo_tensor(places, torch.randn(4), (5, 6), is_coalesced=True))
        self.factor = factor

    def forward(self, x):
        y = torch.sparse.mm(self.w, x.T)
        if self.factor != 1.0:
            y.register_hook(lambda g: self.factor * g)
        return y.T


class Opaque:
    def __init__(self, x):
        self.x = x


class TakesOpaque(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, held):
        return torch.tanh(self.linear(held.x))


class Masked(nn.Module):
    """A float mask that is only compared."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x, mask):
        return torch.where(mask > 0.5, torch.tanh(self.linear(x)), 0.0)


class BatchNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv1d(6, 8, 3, padding=1), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x):
        return self.out(torch.relu(self.norm(self.conv(x))).mean(-1))


WRONG = {
    "wrong in float32, right in float64": (lambda: (wrong_in(torch.float32), (x(),)), {"w"}),
    "wrong under the autocast that it asks for": (
        lambda: (UnderAutocast(), (x(),)),
        {"a.weight", "a.bias", "x"},
    ),
    "a weight gradient that is zero without dx": (lambda: (LastOnly(lazy_weight), (x(),)), {"inner.w"}),
    "activations on self": (lambda: (OnSelf(), (x(),)), {"w"}),
    "a second backward": (lambda: (Spends(), (x(),)), {"w"}),
    "a cotangent that lies apart": (lambda: (ReadsMemory(), (x(),)), {"w", "x"}),
    "writes over a gradient": (lambda: (Overwrites(), (x(),)), {"linear.weight"}),
    "lora with B = 0": (lambda: (LoRA(2.0), (x(),)), {"A"}),
    "a branch scaled by zero": (lambda: (ZeroBranch(2.0), (x(),)), {"branch.weight"}),
    "wrong after eval()": (lambda: (WrongAfterEval(), (x(),)), {"linear.weight", "linear.bias", "x"}),
    "wrong for one row": (lambda: (WrongForOneRow(), (x(),)), {"linear.weight", "linear.bias", "x"}),
    "main_grad": (lambda: (MainGrad(2.0), (x(),)), {"linear.weight"}),
    "raw pointers": (lambda: (pointer_kernel(False), (x(),)), {"a.weight", "a.bias", "w", "x"}),
    "inside a dataclass": (lambda: (TakesDataclass(2.0), (Batch(x(), torch.rand(3)),)), {"batch.scale"}),
    "a sparse parameter": (lambda: (SparseParameter(2.0), (x(),)), {"w", "x"}),
    "a large feature": (
        lambda: (nn.Sequential(_Scaled(2.0)), (torch.tensor([[1.7e7, 1.0, -2.0], [0.3, 2.0, 1.0]]),)),
        {"input"},
    ),
}


class _Scaled(nn.Module):
    """Of large numbers the gradient is twice too large."""

    def __init__(self, factor):
        super().__init__()
        self.w, self.factor = nn.Parameter(torch.ones(3)), factor

    def forward(self, x):
        y = x * 1.0
        y.register_hook(lambda g: torch.where(x.abs() > 1e6, self.factor * g, g))
        return torch.tanh(y * 1e-7) * self.w


RIGHT = {
    "a product with its own backward": lambda: (product(right_product), (x(),)),
    "autocast by itself": lambda: (UnderAutocast(1.0), (x(),)),
    "lora": lambda: (LoRA(), (x(),)),
    "a branch scaled by zero": lambda: (ZeroBranch(), (x(),)),
    "main_grad": lambda: (MainGrad(), (x(),)),
    "raw pointers": lambda: (pointer_kernel(), (x(4),)),
    "a dataclass": lambda: (TakesDataclass(), (Batch(x(), torch.rand(3)),)),
    "a sparse parameter": lambda: (SparseParameter(), (x(),)),
    "a float mask": lambda: (Masked(), (x(), (torch.rand(8, 6) > 0.5).float())),
    "a large feature": lambda: (_Scaled(1.0), (torch.tensor([[1.7e7, 1.0, -2.0], [0.3, 2.0, 1.0]]),)),
    "lstm": lambda: (nn.LSTM(6, 5, 2, batch_first=True), (torch.randn(3, 4, 6),)),
    "convolution with batch norm": lambda: (BatchNorm(), (torch.randn(4, 6, 7),)),
    "dropout": lambda: (nn.Sequential(nn.Linear(6, 20), nn.Dropout(0.5), nn.Linear(20, 3)), (x(),)),
    "sparse embedding": lambda: (nn.Embedding(9, 4, sparse=True), (torch.randint(0, 9, (5, 2)),)),
    "complex": lambda: (nn.Linear(6, 3, dtype=torch.complex64), (torch.randn(4, 6, dtype=torch.complex64),)),
    "token ids": lambda: (
        nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 4), nn.GELU()),
        (torch.randint(0, 9, (3, 5)),),
    ),
    "top-k routing": lambda: _top_k(),
    "in place": lambda: (_InPlace(), (x(),)),
    "attention": lambda: (nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True), (torch.randn(3, 5, 8),)),
    "float64 already": lambda: (nn.Linear(6, 3).double(), (x().double(),)),
}


def _top_k():
    from modules import TopKMoE

    return TopKMoE(), (x(),)


class _InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        x.mul_(2)
        return self.linear(x).relu_()
