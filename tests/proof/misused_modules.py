"""Modules that are right as long as they are called in one way: alone, once, with contiguous memory, all outputs used.
Each has its right sister.

Each entry of WRONG is a function without arguments that returns (module, inputs), what is accused, and the check that
sees it; RIGHT is the same without faults.
"""

import torch
from torch import nn
from torch.autograd import Function


def x(rows=8, width=6):
    return torch.randn(rows, width)


# Random numbers in one buffer.


class OwnDropout(nn.Module):
    """Dropout of its own; `reused` draws every mask into the same memory."""

    def __init__(self, reused, draw=lambda mask: mask.bernoulli_(0.5)):
        super().__init__()
        self.a, self.b, self.reused, self.draw = nn.Linear(6, 12), nn.Linear(12, 3), reused, draw
        self.mask = torch.zeros(8, 12)

    def forward(self, x):
        module = self
        mask = self.mask if self.reused else torch.empty_like(self.mask)

        class Dropout(Function):
            @staticmethod
            def forward(ctx, x):
                ctx.mask = module.draw(mask[: len(x)])
                return 2 * x * ctx.mask

            @staticmethod
            def backward(ctx, g):
                return 2 * g * ctx.mask

        return self.b(Dropout.apply(torch.tanh(self.a(x))))


def uniform(mask):
    """Drawn otherwise in each dtype."""
    return mask.copy_((torch.rand(mask.shape, dtype=mask.dtype) < 0.5).to(mask.dtype))


class Noisy(nn.Module):
    """Noise that float32 and float64 draw otherwise."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        h = self.a(x)
        return self.b(torch.tanh(h + 0.1 * torch.randn_like(h)))


# What a first call leaves behind.


class Normed(nn.Module):
    """RMS norm with a backward that takes 1/rms from a cache, and so does the forward if it is told to."""

    def __init__(self, key, forward_too=False):
        super().__init__()
        self.w, self.cache, self.key, self.forward_too = nn.Parameter(torch.randn(6)), {}, key, forward_too
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        module = self

        class RMSNorm(Function):
            @staticmethod
            def forward(ctx, x):
                rstd = x.square().mean(-1, keepdim=True).rsqrt()
                ctx.key = module.key(x)
                cached = module.cache.setdefault(ctx.key, rstd)
                rstd = cached if module.forward_too else rstd
                ctx.save_for_backward(x * rstd)
                return x * rstd

            @staticmethod
            def backward(ctx, g):
                (y,) = ctx.saved_tensors
                return (g - y * (g * y).mean(-1, keepdim=True)) * module.cache[ctx.key]

        return self.out(RMSNorm.apply(x) * self.w)


class KeptWeight(nn.Module):
    """Keeps a transposed copy of its weight for the backward; `fresh` looks whether the weight was updated since."""

    def __init__(self, fresh):
        super().__init__()
        self.w, self.fresh, self.kept = nn.Parameter(torch.randn(3, 6)), fresh, None

    def forward(self, x):
        module = self

        class Product(Function):
            @staticmethod
            def forward(ctx, x, w):
                ctx.save_for_backward(x)
                version = module.w._version if module.fresh else 0
                if module.kept is None or module.kept[0] != version:
                    module.kept = version, w.detach().T.contiguous()
                ctx.transposed = module.kept[1]
                return x @ w.T

            @staticmethod
            def backward(ctx, g):
                (x,) = ctx.saved_tensors
                return g @ ctx.transposed.T, g.T @ x

        return Product.apply(torch.tanh(x), self.w)


class Annealed(nn.Module):
    """The forward itself depends on how often it was called; `wrong` keeps the factor of the first call."""

    def __init__(self, wrong):
        super().__init__()
        self.linear, self.wrong = nn.Linear(6, 3), wrong
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        y, calls = self.linear(x), self.calls.clone()
        return (y + (y / calls - y).detach()) if self.wrong else y / calls


# Cotangents.


class Square(nn.Module):
    """Fills the gradient as if its memory were row-major; `like` makes that memory."""

    def __init__(self, like, shape=(6,)):
        super().__init__()
        self.w, self.like, self.shape = nn.Parameter(torch.randn(6)), like, shape

    def forward(self, x):
        module = self

        class Squared(Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * x

            @staticmethod
            def backward(ctx, g):
                (x,) = ctx.saved_tensors
                dx = module.like(g)
                memory = torch.as_strided(dx, (dx.numel(),), (1,))
                memory.copy_((2 * x * g).reshape(-1))
                return dx

        return Squared.apply(x * self.w)


class RowStride(nn.Module):
    """Reads the cotangent row by row, each one after the other in memory."""

    def __init__(self, wrong):
        super().__init__()
        self.w, self.wrong = nn.Parameter(torch.randn(6, 4)), wrong

    def forward(self, x):
        module = self

        class Product(Function):
            @staticmethod
            def forward(ctx, x, w):
                ctx.save_for_backward(x, w)
                return x @ w

            @staticmethod
            def backward(ctx, g):
                x, w = ctx.saved_tensors
                if module.wrong and g.stride(0) == 0 and g.stride(1) == 1:
                    g = g * (torch.arange(len(g)) == 0)[:, None]  # no row after the first
                return g @ w.T, x.T @ g

        return Product.apply(x, self.w)


# Inputs.


class RowMajor(nn.Module):
    """A kernel that goes through memory; `wrong` takes it for row-major whatever the strides are, or only those of a
    dtype."""

    def __init__(self, wrong, only=None, gradient=True):
        super().__init__()
        self.w, self.wrong, self.only, self.gradient = nn.Parameter(torch.randn(6)), wrong, only, gradient

    def forward(self, x):
        module = self

        def read(x):
            if not module.wrong or module.only not in (None, x.dtype):
                return x
            storage = x.untyped_storage().nbytes() // x.element_size()
            return torch.as_strided(x, (min(x.numel(), storage),), (1,), 0).reshape(x.shape)

        class Scale(Function):
            @staticmethod
            def forward(ctx, x, w):
                ctx.save_for_backward(x, w)
                return read(x) * w

            @staticmethod
            def backward(ctx, g):
                x, w = ctx.saved_tensors
                return g * w if module.gradient else None, (g * read(x)).sum(0)

        return torch.tanh(Scale.apply(x, self.w))


def transposed():
    return torch.randn(6, 8).T


def sliced():
    return torch.randn(8, 9)[:, 1:7]


# Outputs.


class Flow(nn.Module):
    """y = x·exp(s) and log det; the backward of s is missing where only `needs` outputs are used."""

    def __init__(self, wrong=None, none=True):
        super().__init__()
        self.s, self.wrong, self.none = nn.Parameter(torch.randn(6) / 3), wrong, none

    def forward(self, x):
        module = self

        class Scale(Function):
            @staticmethod
            def forward(ctx, x, s):
                ctx.save_for_backward(x, s)
                ctx.set_materialize_grads(False)
                return x * s.exp(), s.sum().expand(len(x)).clone()

            @staticmethod
            def backward(ctx, gy, gd):
                x, s = ctx.saved_tensors
                dx = None if gy is None else gy * s.exp()
                if module.wrong == "y alone" and gd is None:
                    return dx, None if module.none else torch.zeros_like(s)
                if module.wrong == "log det alone" and gy is None:
                    return dx, None
                ds = torch.zeros_like(s)
                if gy is not None:
                    ds = ds + (gy * x * s.exp()).sum(0)
                if gd is not None:
                    ds = ds + gd.sum()
                return dx, ds

        return Scale.apply(x, self.s)


class ManyOutputs(nn.Module):
    """More outputs than are taken alone; the tenth is wrong without the first."""

    def __init__(self, wrong):
        super().__init__()
        self.w, self.wrong = nn.Parameter(torch.randn(6)), wrong

    def forward(self, x):
        module = self

        class Two(Function):
            @staticmethod
            def forward(ctx, x, w):
                ctx.save_for_backward(x, w)
                ctx.set_materialize_grads(False)
                return x * w, x + w

            @staticmethod
            def backward(ctx, g, h):
                x, w = ctx.saved_tensors
                if g is None:
                    return h, None if module.wrong else h.sum(0)
                h = torch.zeros_like(g) if h is None else h
                return g * w + h, (g * x).sum(0) + h.sum(0)

        first, tenth = Two.apply(x, self.w)
        return [first, *(torch.tanh(i * first) for i in range(1, 9)), tenth]


class BeforeNorm(nn.Module):
    """The gradient of the bias before a norm is rounding alone, in one output as in both."""

    def __init__(self):
        super().__init__()
        self.b, self.norm, self.out = nn.Parameter(torch.randn(6)), nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x):
        y = self.norm(x + self.b)
        return y, torch.tanh(self.out(y))


# Features of very different size.


class Standardised(nn.Module):
    """A linear layer, or one of its own, on standardised features of 1.7e7, 1 and 1e-6."""

    def __init__(self, x, product=None):
        super().__init__()
        self.register_buffer("mean", x.mean(0))
        self.register_buffer("std", x.std(0))
        self.linear, self.product = nn.Linear(3, 4), product

    def forward(self, x):
        z = (x - self.mean) / self.std
        return torch.tanh(self.linear(z) if self.product is None else self.product(x, z, self.linear.weight))


class LargeMissing(Function):
    """Features beyond 1e6 are missing in the weight's gradient, though not in the forward."""

    @staticmethod
    def forward(ctx, x, z, w):
        ctx.save_for_backward(x, z, w)
        return z @ w.T

    @staticmethod
    def backward(ctx, g):
        x, z, w = ctx.saved_tensors
        return None, g @ w, g.T @ torch.where(x.abs() > 1e6, 0.0, z)


class LargeFeature(nn.Module):
    """Not standardised: the weights are small where the features are large."""

    def __init__(self, product):
        super().__init__()
        self.w, self.product = nn.Parameter(torch.randn(4, 3) * torch.tensor([1e-8, 1.0, 1.0])), product

    def forward(self, x):
        return torch.tanh(self.product(x, x, self.w))


def features():
    return torch.randn(16, 3) * torch.tensor([1e6, 1.0, 1e-6]) + torch.tensor([1.7e7, 0.0, 0.0])


def scattered():
    return torch.randn(16, 3) * torch.tensor([1.7e7, 1.0, 1e-6])


def standardised(product=None, made=features):
    given = made()
    return Standardised(given, product), (given,)


def large_feature(product):
    given = torch.randn(16, 3)
    given[:, 0] += 1.7e7
    return LargeFeature(product), (given,)


WRONG = {
    "one buffer for every mask": (lambda: (OwnDropout(True), (x(),)), {"a.weight", "a.bias", "x"}, "in_flight"),
    "one buffer for every mask of uniform numbers": (
        lambda: (OwnDropout(True, uniform), (x(),)),
        {"a.weight", "a.bias", "x"},
        "in_flight",
    ),
    "a statistic kept by shape": (lambda: (Normed(lambda x: x.shape), (x(),)), {"x"}, "second_step"),
    "a statistic kept by shape, in the forward too": (
        lambda: (Normed(lambda x: x.shape, forward_too=True), (x(),)),
        {"x"},
        "second_step",
    ),
    "the factor of the first call": (
        lambda: (Annealed(True), (x(),)),
        {"linear.weight", "linear.bias", "x"},
        "second_step",
    ),
    "a weight kept from the first step": (lambda: (KeptWeight(False), (x(),)), {"x"}, "second_step"),
    "takes the cotangent's strides": (lambda: (Square(torch.empty_like), (x(),)), {"w", "x"}, "strided_cotangent"),
    "takes the cotangent's strides, three axes": (
        lambda: (Square(torch.empty_like), (torch.randn(3, 4, 6),)),
        {"w", "x"},
        "strided_cotangent",
    ),
    "an expanded row": (lambda: (RowStride(True), (x(),)), {"w", "x"}, "strided_cotangent"),
    "reads a transposed input as row-major": (lambda: (RowMajor(True), (transposed(),)), {"x"}, "layout"),
    "reads a sliced input as row-major": (lambda: (RowMajor(True), (sliced(),)), {"x"}, "layout"),
    "reads it so in float32": (lambda: (RowMajor(True, torch.float32), (transposed(),)), {"x"}, "layout"),
    "reads it so, and passes no gradient on": (
        lambda: (RowMajor(True, gradient=False), (transposed(),)),
        {"x"},
        "layout",
    ),
    "no gradient of y alone": (lambda: (Flow("y alone"), (x(),)), {"s"}, "one_output"),
    "a zero gradient of y alone": (lambda: (Flow("y alone", none=False), (x(),)), {"s"}, "one_output"),
    "no gradient of log det alone": (lambda: (Flow("log det alone"), (x(),)), {"s"}, "one_output"),
    "no gradient of the tenth output alone": (lambda: (ManyOutputs(True), (x(),)), {"w"}, "one_output"),
}

RIGHT = {
    "a mask of its own": lambda: (OwnDropout(False), (x(),)),
    "a mask of uniform numbers": lambda: (OwnDropout(False, uniform), (x(),)),
    "noise": lambda: (Noisy(), (x(),)),
    "a statistic of each call": lambda: (Normed(lambda x: object()), (x(),)),
    "a weight kept until it is updated": lambda: (KeptWeight(True), (x(),)),
    "a forward that depends on the calls before it": lambda: (Annealed(False), (x(),)),
    "row-major memory of its own": lambda: (
        Square(lambda g: torch.empty_like(g, memory_format=torch.contiguous_format)),
        (torch.randn(3, 4, 6),),
    ),
    "an expanded row": lambda: (RowStride(False), (x(),)),
    "a transposed input": lambda: (RowMajor(False), (transposed(),)),
    "a sliced input": lambda: (RowMajor(False), (sliced(),)),
    "an expanded input": lambda: (RowMajor(False), (torch.randn(6).expand(8, 6),)),
    "row-major, and contiguous": lambda: (RowMajor(True), (x(),)),
    "a transposed input and dropout": lambda: (
        nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 3)),
        (transposed(),),
    ),
    "channels last": lambda: (
        nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(80, 3)),
        (torch.randn(4, 3, 6, 6).to(memory_format=torch.channels_last),),
    ),
    "transposed token ids": lambda: (
        nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 4)),
        (torch.randint(0, 9, (5, 3)).T,),
    ),
    "each output alone": lambda: (Flow(), (x(),)),
    "many outputs": lambda: (ManyOutputs(False), (x(),)),
    "two outputs of a norm": lambda: (BeforeNorm(), (x(),)),
    "two outputs of a norm in float64": lambda: (BeforeNorm().double(), (x().double(),)),
    "standardised features": standardised,
    "standardised features around zero": lambda: standardised(made=scattered),
    "a large feature with a small weight": lambda: large_feature(lambda x, z, w: z @ w.T),
}
