"""Modules that `verify` is tried on: right ones, and wrong ones with the names that must be accused.

Each entry is a function without arguments that returns (module, inputs), as a user's case does.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def mlp(*layers, rows=8, width=6):
    return nn.Sequential(*layers), (torch.randn(rows, width),)


class Wrapped(nn.Module):
    """A linear layer, a function in the middle, another linear layer."""

    def __init__(self, middle, width=12):
        super().__init__()
        self.a, self.b, self.middle = nn.Linear(6, width), nn.Linear(width, 3), middle

    def forward(self, x):
        return self.b(self.middle(self.a(x)))


def wrapped(middle):
    return Wrapped(middle), (torch.randn(8, 6),)


class Normalised(nn.Module):
    """40 normalised layers of width 6: small displacements grow until they fill the whole range."""

    def __init__(self, layers=40, width=6):
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()) for _ in range(layers)]
        )

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Tied(nn.Module):
    """One weight used twice."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.out = nn.Linear(6, 11, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, ids):
        return self.out(torch.tanh(self.embed(ids)))


class SharedStorage(nn.Module):
    """Two parameters over the same memory, one transposed."""

    def __init__(self):
        super().__init__()
        memory = torch.randn(6, 6)
        self.a, self.b = nn.Parameter(memory), nn.Parameter(memory.T)

    def forward(self, x):
        return torch.tanh(x @ self.a) @ self.b.square()


class TopKMoE(nn.Module):
    def __init__(self, experts=4, k=2):
        super().__init__()
        self.gate, self.k = nn.Linear(6, experts), k
        self.experts = nn.ModuleList([nn.Linear(6, 3) for _ in range(experts)])

    def forward(self, x):
        value, index = self.gate(x).softmax(-1).topk(self.k)
        rows = torch.stack([expert(x) for expert in self.experts], 1)
        return (value[..., None] * rows.gather(1, index[..., None].expand(-1, -1, 3))).sum(1)


class Outputs(nn.Module):
    """Returns a structure in which the first tensor has no gradient."""

    def __init__(self, kind):
        super().__init__()
        self.linear, self.kind = nn.Linear(6, 3), kind

    def forward(self, x):
        y = self.linear(x)
        label = y.argmax(-1)
        return {"tuple": (label, y), "dict": {"label": label, "logits": y}, "nested": {"out": [label, (y, x)]}}[
            self.kind
        ]


class Casts(nn.Module):
    """Explicit float32 inside, as in many attention and norm layers."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)
        self.register_buffer("scale", torch.rand(8))

    def forward(self, x):
        h = self.a(x).float()
        return self.b((h * self.scale * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)).float()


class OnlyFloat32(nn.Module):
    """Refuses float64 by itself."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x):
        if x.dtype != torch.float32:
            raise TypeError("float32 only")
        return torch.tanh(self.linear(x))


class OwnGenerator(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.generator = nn.Linear(6, 3), torch.Generator().manual_seed(5)

    def forward(self, x):
        return self.linear(x) * torch.rand(3, generator=self.generator)


class Writes(nn.Module):
    """Writes into its input and into a buffer that it replaces."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.register_buffer("seen", torch.zeros(6))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        self.seen = self.seen + 1
        x.mul_(2.0)
        return self.linear(x + self.seen).relu_()


class UsesInput(nn.Module):
    def forward(self, x, mask=None):
        return torch.sin(x) * (1.0 if mask is None else mask)


class KeyBias(nn.Module):
    """Attention: its key bias has a gradient of zero."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        nn.init.normal_(self.k.bias)

    def forward(self, x):
        return (self.q(x) @ self.k(x).transpose(-1, -2)).softmax(-1) @ self.v(x)


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.spare = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x):
        return self.linear(x)


class Parametrised(nn.Module):
    """A forward as a function of the module and its input, and parameters by name."""

    def __init__(self, function, **parameters):
        super().__init__()
        self.function = function
        for name, value in parameters.items():
            setattr(self, name, nn.Parameter(value) if not isinstance(value, nn.Parameter) else value)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def masked(blocked):
    """Attention scores with an additive mask as a second, floating input."""
    mask = torch.zeros(5, 5).masked_fill(torch.ones(5, 5).triu(1).bool(), blocked)
    module = Parametrised(
        lambda self, x, m: (x @ self.w @ x.T + m).softmax(-1) @ x @ self.v, w=torch.randn(6, 6), v=torch.randn(6, 3)
    )
    return module, (torch.randn(5, 6), mask)


class Buffered(nn.Module):
    """Buffers that are sparse, and expanded over one number."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("adjacency", (torch.rand(4, 4) > 0.5).float().to_sparse())
        self.register_buffer("ones", torch.ones(1).expand(3))

    def forward(self, x):
        return torch.sparse.mm(self.adjacency.to(x.dtype), self.linear(x)) * self.ones


def overlapping():
    """Three parameters, the last of which covers the other two."""
    memory = torch.randn(10)
    module = Parametrised(lambda self, x: x * self.a.sum() + self.b.square().sum() * self.c.sin().sum() * x)
    module.a, module.b, module.c = nn.Parameter(memory[:5]), nn.Parameter(memory[5:]), nn.Parameter(memory)
    return module, (torch.randn(3),)


RIGHT = {
    "mask of ones and zeros": lambda: (
        Parametrised(lambda self, x, m: (x @ self.w).masked_fill(m == 0, -9.0).softmax(-1), w=torch.randn(6, 5)),
        (torch.randn(4, 6), (torch.rand(4, 5) > 0.4).float()),
    ),
    "additive mask": lambda: masked(-1e9),
    "infinite mask": lambda: masked(-torch.inf),
    "smallest number as mask": lambda: masked(torch.finfo(torch.float32).min),
    "sparse and expanded buffers": lambda: (Buffered(), (torch.randn(4, 6),)),
    "three overlapping parameters": overlapping,
    "complex parameter": lambda: (
        Parametrised(lambda self, x: torch.fft.irfft(torch.fft.rfft(x) * self.w), w=torch.randn(4, dtype=torch.cfloat)),
        (torch.randn(3, 6),),
    ),
    "complex input": lambda: (
        Parametrised(lambda self, x: (x * self.w).abs().square(), w=torch.randn(4)),
        (torch.randn(3, 4, dtype=torch.cfloat),),
    ),
    "clamped by a tensor": lambda: (
        Parametrised(
            lambda self, x: torch.clamp(self.w, min=x) + torch.cat([x[:0].flatten(), x[:1, 0]]).max(0).values,
            w=torch.randn(4),
        ),
        (torch.randn(3, 4),),
    ),
    "linear": lambda: mlp(nn.Linear(6, 3)),
    "gelu and norm": lambda: mlp(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3)),
    "relu": lambda: mlp(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 3), rows=40),
    "dropout in training": lambda: mlp(nn.Linear(6, 8), nn.Dropout(0.4), nn.Tanh(), nn.Linear(8, 3)),
    "batch norm in training": lambda: mlp(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.SiLU(), nn.Linear(8, 3)),
    "one row": lambda: mlp(nn.Linear(6, 3), nn.Tanh(), rows=1),
    "tiny output": lambda: wrapped(lambda h: 1e-20 * torch.tanh(h)),
    "huge output": lambda: wrapped(lambda h: 1e20 * torch.tanh(h)),
    "max pooling": lambda: (
        nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)),
        (torch.randn(2, 2, 8, 8),),
    ),
    "lstm": lambda: (nn.LSTM(6, 5, batch_first=True), (torch.randn(3, 4, 6),)),
    "transformer layer": lambda: (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (torch.randn(2, 5, 8),)),
    "weight norm": lambda: mlp(nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)), nn.Tanh()),
    "spectral norm": lambda: mlp(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3)).eval(), nn.Tanh()),
    "tied weights": lambda: (Tied(), (torch.randint(0, 11, (4, 3)),)),
    "shared storage": lambda: (SharedStorage(), (torch.randn(4, 6),)),
    "sparse embedding": lambda: (nn.Embedding(11, 6, sparse=True), (torch.randint(0, 11, (4, 3)),)),
    "embedding with padding": lambda: (nn.Embedding(11, 6, padding_idx=0), (torch.tensor([[0, 1, 2], [3, 0, 0]]),)),
    "top-k routing": lambda: (TopKMoE(), (torch.randn(20, 6),)),
    "tuple output": lambda: (Outputs("tuple"), (torch.randn(4, 6),)),
    "dict output": lambda: (Outputs("dict"), (torch.randn(4, 6),)),
    "nested output": lambda: (Outputs("nested"), (torch.randn(4, 6),)),
    "float32 casts": lambda: (Casts(), (torch.randn(4, 6),)),
    "float32 only": lambda: (OnlyFloat32(), (torch.randn(4, 6),)),
    "own generator": lambda: (OwnGenerator(), (torch.randn(4, 6),)),
    "in place": lambda: (Writes(), (torch.randn(4, 6),)),
    "no parameters, keyword inputs": lambda: (UsesInput(), {"x": torch.randn(4, 6), "mask": torch.rand(6)}),
    "zero gradient by symmetry": lambda: (KeyBias(), (torch.randn(2, 5, 6),)),
    "unused parameters": lambda: (Unused(), (torch.randn(4, 6),)),
    "checkpointed": lambda: wrapped(lambda h: checkpoint(torch.tanh, h, use_reentrant=False)),
    "complex inside": lambda: wrapped(lambda h: torch.fft.rfft(h).abs().square()[..., :1] * h),
    "moderately saturated": lambda: wrapped(lambda h: torch.sigmoid(h + 12)),
    "scalar loss": lambda: wrapped(lambda h: h.square().mean() * h),
}


def near_kinks(op):
    """Arguments so near to a kink of the second derivative that steps cross it."""
    module = Parametrised(lambda self, x: op(self.w * x), w=torch.randn(64))
    return module, (1e-6 * torch.randn(64, 64),)


UNCLEAR = {
    "beyond the period": lambda: (
        Parametrised(lambda self, x: torch.sin(1e10 * self.w * x), w=torch.randn(6)),
        (torch.randn(4, 6),),
    ),
    "rapid": lambda: (
        Parametrised(lambda self, x: torch.sin(1e7 * self.w * x), w=torch.randn(6)),
        (torch.randn(4, 6),),
    ),
    "rapid but small": lambda: (
        Parametrised(
            lambda self, x: 3 * torch.tanh(x * self.w).sum() + 1e-10 * torch.sin(1e5 * self.v).sum(),
            w=torch.randn(6),
            v=torch.randn(6),
        ),
        (torch.randn(4, 6),),
    ),
    "celu near its kink": lambda: near_kinks(torch.celu),
    "huber near its kink": lambda: near_kinks(lambda h: torch.nn.functional.huber_loss(h + 1, torch.zeros_like(h))),
    "large constant": lambda: (Parametrised(lambda self, x: 1e14 + x * self.w, w=torch.randn(6)), (torch.randn(4, 6),)),
    "bf16 inside": lambda: wrapped(lambda h: torch.tanh(h.bfloat16()).to(h.dtype)),
    "half inside": lambda: wrapped(lambda h: torch.tanh(h.half()).to(h.dtype)),
}


def function(forward, backward):
    """An autograd function of one argument from its forward and its (wrong) backward(g, x, y)."""

    class Custom(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = forward(x)
            ctx.save_for_backward(x, y)
            return y

        @staticmethod
        def backward(ctx, g):
            return backward(g, *ctx.saved_tensors)

    return Custom.apply


class CustomLinear(nn.Module):
    """tanh(x Wᵀ + b) whose backward passes its gradients through `spoil(dx, dw, db)`."""

    def __init__(self, spoil):
        super().__init__()
        self.w, self.b, self.last = nn.Parameter(torch.randn(12, 6)), nn.Parameter(torch.randn(12)), nn.Linear(12, 3)

        class Linear(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, w, b):
                ctx.save_for_backward(x, w)
                return x @ w.T + b

            @staticmethod
            def backward(ctx, g):
                x, w = ctx.saved_tensors
                return spoil(g @ w, g.T @ x, g.sum(0))

        self.linear = Linear.apply

    def forward(self, x):
        return self.last(torch.tanh(self.linear(x, self.w, self.b)))


def custom(spoil, rows=16):
    return CustomLinear(spoil), (torch.randn(rows, 6),)


def at(tensor, index, factor):
    """`tensor` with one entry or row times `factor`."""
    changed = tensor.clone()
    changed[index] *= factor
    return changed


def hooked(register):
    module, inputs = mlp(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    register(module)
    return module, inputs


def doubled(case, name):
    module, inputs = case
    module.get_parameter(name).register_hook(lambda g: 2 * g)
    return module, inputs


class Detached(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x):
        return self.a(x) * torch.sigmoid(self.b(x).detach())


class Straight(nn.Module):
    """A straight-through estimator: by design not the derivative of its forward."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x):
        y = self.linear(x)
        return y + (torch.round(4 * y) / 4 - y).detach()


# name: (case, the tensors that must be accused, and no others)
WRONG = {
    "behind an infinite mask": (lambda: doubled(masked(-torch.inf), "w"), {"w"}),
    "behind an additive mask": (lambda: doubled(masked(-1e9), "v"), {"v"}),
    "complex parameter": (lambda: doubled(RIGHT["complex parameter"](), "w"), {"w"}),
    "1% too large": (lambda: custom(lambda dx, dw, db: (dx, 1.01 * dw, db)), {"w"}),
    "one part in ten thousand": (lambda: custom(lambda dx, dw, db: (dx, (1 + 1e-4) * dw, db)), {"w"}),
    "one row of the weight": (lambda: custom(lambda dx, dw, db: (dx, at(dw, 3, 1.02), db)), {"w"}),
    "one entry of the weight": (lambda: custom(lambda dx, dw, db: (dx, at(dw, (3, 2), 0.9), db)), {"w"}),
    "only the bias": (lambda: custom(lambda dx, dw, db: (dx, dw, -db)), {"b"}),
    "only the input": (lambda: custom(lambda dx, dw, db: (at(dx, 5, 1.05), dw, db)), {"x"}),
    "bf16 in the backward": (lambda: custom(lambda dx, dw, db: (dx, dw.bfloat16().to(dw.dtype), db)), {"w"}),
    "float32 in the backward": (lambda: custom(lambda dx, dw, db: (dx, dw.float().to(dw.dtype), db)), {"w"}),
    "weight and bias": (lambda: custom(lambda dx, dw, db: (dx, 2 * dw, 2 * db)), {"w", "b"}),
    "sums twice": (lambda: custom(lambda dx, dw, db: (dx, dw + dw, db)), {"w"}),
    "not finite": (lambda: custom(lambda dx, dw, db: (dx, at(dw, (0, 0), torch.nan), db)), {"w"}),
    "tanh for its derivative": (
        lambda: wrapped(function(torch.tanh, lambda g, x, y: g * (1 - y**2) * (1 + 1e-3 * y))),
        {"a.weight", "a.bias", "x"},
    ),
    "detached gate": (lambda: (Detached(), (torch.randn(8, 6),)), {"b.weight", "b.bias", "x"}),
    "everything detached": (lambda: wrapped(lambda h: h.detach()), {"a.weight", "a.bias", "x"}),
    "hook on a parameter": (lambda: hooked(lambda m: m[0].weight.register_hook(lambda g: 0.98 * g)), {"0.weight"}),
    "hook on the module": (
        lambda: hooked(lambda m: m[1].register_full_backward_hook(lambda _, gi, go: (1.03 * gi[0],))),
        {"0.weight", "0.bias", "input"},
    ),
    "forward hook that detaches": (
        lambda: hooked(lambda m: m[0].register_forward_hook(lambda _, x, y: y.detach())),
        {"0.weight", "0.bias", "input"},
    ),
    "straight-through rounding": (lambda: (Straight(), (torch.randn(8, 6),)), {"linear.weight", "linear.bias", "x"}),
    "saturated and claimed large": (
        lambda: wrapped(function(lambda x: torch.sigmoid(x + 12), lambda g, x, y: g * y)),
        {"a.weight", "a.bias", "x"},
    ),
}
