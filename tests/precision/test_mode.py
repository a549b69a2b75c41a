"""The rounding mode. The survey below runs common modules and optimizers and inspects every aten op."""

import copy
import math
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from gradproof.precision import mode as mode_module
from gradproof.precision import rounding
from gradproof.precision.formats import FORMATS, format_named, nearest
from gradproof.precision.mode import KEPT_WIDE, NARROW, OPERANDS, Range, Rounding, _leaves, _written
from gradproof.precision.watching import EXACT, ModulePlaces

aten = torch.ops.aten
BF16, FP16, FP32 = (FORMATS[name] for name in ("bf16", "fp16", "fp32"))
both = pytest.mark.parametrize("format", [BF16, FP16], ids=lambda f: f.name)
NOT_COMPUTED = EXACT - {aten.embedding, aten.index_select, aten.gather, aten.cat, aten.stack, aten.index}


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def on_grid(x, format):
    """Whether the format holds every value."""
    wide = x.detach().to(torch.float64 if x.dtype == torch.float64 else torch.float32)
    return torch.equal(nearest(wide, format).nan_to_num(), wide.nan_to_num())


def same(ours, right):
    assert (ours.shape, ours.dtype) == (right.shape, right.dtype)
    assert torch.equal(ours.nan_to_num(), right.nan_to_num()), (ours - right).abs().max()


def both_passes(f, *inputs, seed=1):
    """The output and the gradients of the inputs, for a random cotangent."""
    leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    y = f(*leaves)
    wanted = [x for x in leaves if x.requires_grad]
    grads = torch.autograd.grad(y, wanted, normal(*y.shape, seed=seed).to(y.dtype), allow_unused=True)
    return [y.detach(), *[g for g in grads if g is not None]]


class Inspected(Rounding):
    """Inspects the result of each op after the mode has processed it."""

    seen: set
    wrong: list

    def _dispatched(self, func, args, kwargs):
        out = super()._dispatched(func, args, kwargs)
        packet = getattr(func, "overloadpacket", None)
        if not func.is_view and packet not in NOT_COMPUTED:
            self.seen.add(str(func))
            kept = KEPT_WIDE.get(packet, ())
            results = [r for i, r in enumerate(_leaves([out], {})) if i not in kept]
            for tensor in [*results, *_written(func, args, kwargs)]:
                if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided:
                    format = self.carried.get(tensor.dtype)
                    if format is not None and not on_grid(tensor, format):
                        self.wrong.append((str(func), tensor.dtype))
        return out


def inspected(format, native, monkeypatch, seed=None):
    """The mode of `rounding`, or one with tensors of the format's own dtype, with inspection."""
    if native:
        mode = Inspected(NARROW, seed=seed)
    else:
        monkeypatch.setattr(mode_module, "Rounding", Inspected)
        mode = rounding(format, mode="nearest" if seed is None else "stochastic", seed=seed or 0)
    mode.seen, mode.wrong = set(), []
    return mode


def images(*channels):
    return lambda: [normal(2, channels[0] if channels else 4, 6, 6)]


def rows(n=8):
    return lambda: [normal(5, n)]


def lines():
    return [normal(2, 4, 9)]


def tokens():
    return [torch.arange(12).reshape(3, 4) % 10]


def sequence():
    return [normal(3, 5, 8)]


def named(f):
    class Called(nn.Module):
        def forward(self, *inputs):
            return f(*inputs)

    return Called


INDEX = torch.tensor([[0, 2, 1], [3, 3, 0], [1, 0, 2], [2, 1, 1], [4, 4, 4]])
MODULES = {
    "linear": (lambda: nn.Linear(8, 6), rows()),
    "bilinear": (lambda: nn.Bilinear(8, 8, 3), lambda: [normal(5, 8), normal(5, 8, seed=2)]),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, padding=1), lines),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3, groups=2), images()),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2), lambda: [normal(1, 2, 4, 4, 4)]),
    "conv_transpose2d": (lambda: nn.ConvTranspose2d(4, 3, 3, stride=2), images()),
    "layer_norm": (lambda: nn.LayerNorm(8), rows()),
    "rms_norm": (lambda: nn.RMSNorm(8), rows()),
    "group_norm": (lambda: nn.GroupNorm(2, 4), images()),
    "instance_norm": (lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True), images()),
    "batch_norm": (lambda: nn.BatchNorm2d(4), images()),
    "batch_norm_eval": (lambda: nn.BatchNorm2d(4).eval(), images()),
    "local_response_norm": (lambda: nn.LocalResponseNorm(2), images()),
    "embedding": (lambda: nn.Embedding(10, 6, padding_idx=0), tokens),
    "embedding_max_norm": (lambda: nn.Embedding(10, 6, max_norm=1.0), tokens),
    "embedding_bag": (lambda: nn.EmbeddingBag(10, 6, mode="mean"), tokens),
    "attention": (lambda: nn.MultiheadAttention(8, 2, batch_first=True), lambda: sequence() * 3),
    "encoder_layer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True), sequence),
    "decoder_layer": (lambda: nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0), lambda: sequence() * 2),
    "lstm": (lambda: nn.LSTM(8, 6, 2, bidirectional=True), sequence),
    "gru": (lambda: nn.GRU(8, 6), sequence),
    "rnn": (lambda: nn.RNN(8, 6), sequence),
    "lstm_cell": (lambda: nn.LSTMCell(8, 6), rows()),
    "max_pool": (lambda: nn.MaxPool2d(2), images()),
    "avg_pool": (lambda: nn.AvgPool2d(2), images()),
    "adaptive_pool": (lambda: nn.AdaptiveAvgPool2d(3), images()),
    "adaptive_max_pool": (lambda: nn.AdaptiveMaxPool2d(3), images()),
    "lp_pool": (lambda: nn.LPPool2d(2, 2), images()),
    "unfold": (lambda: nn.Unfold(2), images()),
    "dropout": (lambda: nn.Dropout(0.3), rows()),
    "dropout2d": (lambda: nn.Dropout2d(0.3), images()),
    "alpha_dropout": (lambda: nn.AlphaDropout(0.3), rows()),
    "feature_alpha_dropout": (lambda: nn.FeatureAlphaDropout(0.3), images()),
    "upsample": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), images()),
    "upsample_nearest": (lambda: nn.Upsample(scale_factor=2), images()),
    "pixel_shuffle": (lambda: nn.PixelShuffle(2), images()),
    "reflection_pad": (lambda: nn.ReflectionPad2d(1), images()),
    "constant_pad": (lambda: nn.ConstantPad2d(1, 0.1), images()),
    "weight_norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 6)), rows()),
    "spectral_norm": (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(8, 6)), rows()),
    "cosine": (lambda: nn.CosineSimilarity(), lambda: [normal(5, 8), normal(5, 8, seed=2)]),
    "sdpa": (named(F.scaled_dot_product_attention), lambda: [normal(2, 2, 5, 8, seed=s) for s in range(3)]),
    "sdpa_causal": (
        named(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)),
        lambda: [normal(2, 2, 5, 8, seed=s) for s in range(3)],
    ),
    "einsum": (named(lambda x, y: torch.einsum("bi,bj->ij", x, y)), lambda: [normal(5, 8), normal(5, 3)]),
    "cumsum": (named(lambda x: x.cumsum(1) + x.cumprod(1) + x.cummax(1).values), rows()),
    "sorting": (named(lambda x: x.sort(1).values[:, :3] + x.topk(3).values + x.kthvalue(2).values[:, None]), rows()),
    "scatter": (
        named(lambda x: torch.zeros_like(x).scatter_add(1, INDEX, x[:, :3]) + x.scatter(1, INDEX[:, :1], 0.1)),
        rows(),
    ),
    "gather": (
        named(lambda x: x.gather(1, INDEX) + x[INDEX[:, 0]][:, :3] + x.index_select(0, INDEX[:, 1])[:, 1:4]),
        rows(),
    ),
    "index": (
        named(lambda x: x.index_add(0, INDEX[:, 0], x).index_put((INDEX[:, 1],), x * x, accumulate=True)),
        rows(),
    ),
    "in_place": (named(lambda x: (x * 2).mul_(x).add_(0.1).clamp_(-1.2, 0.7).addcmul_(x, x).sigmoid_()), rows()),
    "out": (named(lambda x: x * torch.add(x.detach(), 0.3, out=torch.empty_like(x))), rows()),
    "norms": (named(lambda x: x.norm(dim=1) + torch.linalg.vector_norm(x, 3, dim=1) + x.norm()), rows()),
    "moments": (named(lambda x: x.std(1) + x.var(1) + x.mean(1) + torch.var_mean(x, 1)[1] + x.prod(1)), rows()),
    "logsumexp": (named(lambda x: x.logsumexp(1) + x.log_softmax(1)[:, 0] + x.softmax(0)[:, 1]), rows()),
    "where": (named(lambda x: torch.where(x > 0, x, 0.1) + x.masked_fill(x > 1, 0.3) + x.tril() + x.flip(0)), rows()),
    "linalg": (
        named(lambda x: torch.linalg.solve(x @ x.mT + 3 * torch.eye(5), x) + torch.linalg.inv(x[:, :5]).mm(x)),
        lambda: [normal(5, 8) + torch.eye(5, 8)],
    ),
    "fft": (named(lambda x: torch.fft.irfft(torch.fft.rfft(x))), rows()),
    "powers": (
        named(lambda x: x.abs().pow(1.5) + x.exp() + x.abs().log1p() + x.sin() + x.atan2(x + 3) + x.erf()),
        rows(),
    ),
    "reduced": (
        named(lambda x: x.amax(1) + x.max(1).values + x.min() + x.median() + x.sum(0)[:5] + x[0].dot(x[1])),
        rows(),
    ),
    "baddbmm": (
        named(lambda x, y: torch.baddbmm(y[:, :5, :5], x, x.mT) + torch.lerp(y[:, :5, :5], x @ x.mT, 0.3)),
        lambda: [normal(2, 5, 6), normal(2, 6, 6, seed=3)],
    ),
    "cdist": (named(lambda x: torch.cdist(x, x + 1)), rows()),
    "grid_sample": (
        named(lambda x: F.grid_sample(x, x[:, :2].permute(0, 2, 3, 1).tanh(), align_corners=False)),
        images(),
    ),
}
ACTIVATIONS = [
    "ELU",
    "Hardshrink",
    "Hardsigmoid",
    "Hardtanh",
    "Hardswish",
    "LeakyReLU",
    "LogSigmoid",
    "PReLU",
    "ReLU",
    "ReLU6",
    "RReLU",
    "SELU",
    "CELU",
    "GELU",
    "Sigmoid",
    "SiLU",
    "Mish",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Tanh",
    "Tanhshrink",
    "GLU",
    "Softmin",
    "Softmax",
    "LogSoftmax",
]
for name in ACTIVATIONS:
    kind = getattr(nn, name)
    MODULES[name] = (
        lambda kind=kind: kind(dim=1) if "Softm" in kind.__name__ or "LogSoft" in kind.__name__ else kind(),
        rows(),
    )
MODULES["gelu_tanh"] = (lambda: nn.GELU(approximate="tanh"), rows())
LOSSES = {
    "L1Loss": None, "MSELoss": None, "HuberLoss": None, "SmoothL1Loss": None, "SoftMarginLoss": "sign",
    "BCEWithLogitsLoss": "unit", "KLDivLoss": "unit", "PoissonNLLLoss": "unit", "CrossEntropyLoss": "class",
    "MultiMarginLoss": "class", "MultiLabelSoftMarginLoss": "unit",
}  # fmt: skip
for name, target in LOSSES.items():
    y = {"sign": normal(5, 8, seed=4).sign(), "unit": normal(5, 8, seed=4).sigmoid(), "class": INDEX[:, 0]}.get(
        target, normal(5, 8, seed=4)
    )
    MODULES[name] = (
        lambda name=name, y=y: named(lambda x: getattr(nn, name)()(x, y.to(x.dtype) if y.is_floating_point() else y))(),
        rows(),
    )
MODULES["nll"] = (named(lambda x: F.nll_loss(x, INDEX[:, 0], reduction="none")), rows())
MODULES["bce"] = (named(lambda x: F.binary_cross_entropy(x.sigmoid(), torch.full_like(x, 0.3))), rows())
NO_NATIVE = {"linalg", "fft"}  # no low-precision kernels, or their own fp32 tensors


def run_module(name, format, native, mode):
    make, inputs = MODULES[name]
    torch.manual_seed(0)
    module = make()
    dtype = format.dtype if native else torch.float32
    inputs = [x.to(dtype).requires_grad_() if x.is_floating_point() else x for x in inputs()]
    module.to(dtype)
    with mode:
        out = module(*inputs)
        out = next(o for o in (out if isinstance(out, tuple) else (out,)))
        out.backward(normal(*out.shape, seed=9).to(out.dtype))
    return out


SEEN: set[str] = set()


@pytest.mark.parametrize("native", [False, True], ids=["carrier", "native"])
@both
@pytest.mark.parametrize("name", MODULES)
def test_every_op_of_a_module_gives_what_the_format_holds(name, format, native, monkeypatch):
    """Fails if any result or mutated argument, forward or backward, is left unrounded."""
    if native and name in NO_NATIVE:
        pytest.skip("torch has no low-precision kernel for it")
    mode = inspected(format, native, monkeypatch)
    run_module(name, format, native, mode)
    SEEN.update(mode.seen)
    assert mode.seen and not mode.wrong


OPTIMIZERS = {
    "sgd": (torch.optim.SGD, dict(lr=0.1, momentum=0.9, weight_decay=0.01)),
    "adam": (torch.optim.Adam, dict(lr=0.1, amsgrad=True)),
    "adamw": (torch.optim.AdamW, dict(lr=0.1)),
    "rmsprop": (torch.optim.RMSprop, dict(lr=0.1, momentum=0.5, centered=True)),
    "adagrad": (torch.optim.Adagrad, dict(lr=0.1)),
}
WAYS = [
    (name, way)
    for name in OPTIMIZERS
    for way in ("foreach", "fused", "loop")
    if not (way == "fused" and name == "rmsprop")
]


@pytest.mark.parametrize("native", [False, True], ids=["carrier", "native"])
@both
@pytest.mark.parametrize(("name", "way"), WAYS)
def test_every_op_of_an_optimizer_gives_what_the_format_holds(name, way, format, native, monkeypatch):
    """Fails if lists of tensors, fused updates or the moments are left unrounded."""
    kind, options = OPTIMIZERS[name]
    options = options | {"foreach": dict(foreach=True), "fused": dict(fused=True), "loop": dict(foreach=False)}[way]
    dtype = format.dtype if native else torch.float32
    weights = [normal(4, 3, seed=s).to(dtype).requires_grad_() for s in range(3)]
    optimizer = kind(weights, **options)
    mode = inspected(format, native, monkeypatch)
    for step in range(2):
        for i, w in enumerate(weights):
            w.grad = normal(4, 3, seed=10 + step + i).to(dtype)
        with mode:
            optimizer.step()
    SEEN.update(mode.seen)
    before = [normal(4, 3, seed=s).to(dtype) for s in range(3)]
    assert all(not torch.equal(w, b) and on_grid(w, format) for w, b in zip(weights, before, strict=True))
    assert not mode.wrong


def test_the_walk_met_every_kind_of_op():
    """The survey proves nothing about kinds of ops that it does not reach."""
    if not SEEN:
        pytest.skip("the walk was not run")
    print(len(SEEN), *sorted(SEEN))
    kinds = {
        "in place": [op for op in SEEN if op.split(".")[1].endswith("_")],
        "out=": [op for op in SEEN if op.endswith("out")],
        "foreach": [op for op in SEEN if "_foreach_" in op],
        "fused": [op for op in SEEN if "_fused_adam" in op],
        "backward": [op for op in SEEN if "_backward" in op],
    }
    assert all(kinds.values()), kinds
    assert len(SEEN) > 200


# One rounding


def one_rounding(x, y):
    return {
        "add": x + y, "sub": x - y, "mul": x * y, "div": x / y, "sqrt": x.abs().sqrt(), "neg": -x, "abs": x.abs(),
        "maximum": torch.maximum(x, y), "relu": x.relu(), "scalar": x * 0.3,
    }  # fmt: skip


@both
@given(shape=st.lists(st.integers(0, 5), min_size=1, max_size=3), seed=st.integers(0, 99))
def test_one_rounding_is_torchs_own(format, shape, seed):
    """Fails if the mode rounds twice, truncates, or computes in low precision."""
    x, y = normal(*shape, seed=seed, dtype=format.dtype), normal(*shape, seed=seed + 100, dtype=format.dtype)
    real = one_rounding(x, y)
    wide = x.float(), y.float()
    with rounding(format):
        carried = one_rounding(*wide)
    with Rounding(NARROW):
        native = one_rounding(x, y)
    for name, right in real.items():
        same(carried[name].to(format.dtype), right)
        assert on_grid(carried[name], format), name
        same(native[name], right)


@both
def test_products_accumulate_in_fp32(format):
    """Fails if partial sums are rounded: 1000 terms would be off by several units."""
    x, w = normal(7, 1000), normal(1000, 5, seed=1)
    with rounding(format):
        y = x @ w
    exact = nearest(x, format).double() @ nearest(w, format).double()
    assert on_grid(y, format)
    assert ((y.double() - exact).abs() <= format.unit * exact.abs() * 1.001 + 1e-4).all()
    assert ((y.double() - exact).abs() > 1e-4).any()


# Carrier and native dtype


class HandRMS(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(normal(8))

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class T5Norm(HandRMS):
    def forward(self, x):
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + 1e-6)
        if self.weight.dtype in (torch.float16, torch.bfloat16):
            x = x.to(self.weight.dtype)
        return self.weight * x


class WideSoftmax(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        scores = (self.q(x) @ self.k(x).mT).masked_fill(torch.ones(5, 5).triu(1).bool(), torch.finfo(x.dtype).min)
        return F.softmax(scores, dim=-1, dtype=torch.float32).to(x.dtype) @ x


class Rotary(nn.Module):
    """bf16 cannot hold positions above 256: they must stay in the island that `.float()` creates from integers."""

    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(8, 8)

    def forward(self, x):
        x = self.proj(x)
        position = torch.arange(1001, 1006)[:, None].float()
        angle = position * 10 ** -torch.arange(4).float()
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(dtype=x.dtype)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1).to(x.dtype)


def llama_norm():
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    return LlamaRMSNorm(8)


ALIKE = {
    "linear": lambda: nn.Linear(8, 8),
    "mlp": lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 8), nn.Softmax(-1)),
    "encoder": lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True),
    "conv": lambda: nn.Sequential(nn.Conv1d(5, 4, 3), nn.BatchNorm1d(4), nn.SiLU(), nn.GroupNorm(2, 4)),
    "gru": lambda: nn.GRU(8, 8),
    "rms": HandRMS,
    "llama": llama_norm,
    "t5": T5Norm,
    "softmax": WideSoftmax,
    "rotary": Rotary,
}
ISLANDS = ("rms", "llama", "t5", "softmax", "rotary")


def with_grads(module, x, mode):
    with mode:
        y = module(x)
        y = y[0] if isinstance(y, tuple) else y
        y.backward(normal(*y.shape, seed=5).to(y.dtype))
    return [y.detach(), x.grad, *[p.grad for p in module.parameters()], *module.buffers()]


@both
@pytest.mark.parametrize("name", ALIKE)
def test_carriers_have_the_bits_of_the_native_dtype(name, format):
    """Fails if an island is rounded, if it does not end, or if code sees a different dtype than natively."""
    torch.manual_seed(0)
    wide = ALIKE[name]()
    narrow = copy.deepcopy(wide).to(format.dtype)
    x = normal(3, 5, 8)
    # fp32 itself is one rounding of fp64, so that even the last bit of an island does not depend on torch.
    native = Rounding({**NARROW, torch.float32: FP32} if name in ISLANDS else NARROW)
    simulated = with_grads(wide, x.clone().requires_grad_(), rounding(format))
    right = with_grads(narrow, x.to(format.dtype).requires_grad_(), native)
    for a, b in zip(simulated, right, strict=True):
        if b.is_floating_point():
            assert a.dtype == torch.float32 and b.dtype == format.dtype
            same(a.to(b.dtype), b)
            assert on_grid(a, format)


def test_an_island_is_not_rounded_until_it_ends():
    seen = {}
    x = normal(6, 4).requires_grad_()
    with rounding("bf16"):
        h = x * 1
        wide = h.float()
        y = wide / 3
        y.register_hook(lambda g: seen.update(inside=g.clone()))
        back = (y * 7).to(h.dtype)
        assert (wide.dtype, y.dtype, back.dtype) == (torch.float32, torch.float32, torch.bfloat16)
        assert h.to(h.dtype) is h and h.bfloat16() is h and (h + wide).dtype == torch.float32
        back.backward(normal(6, 4, seed=2))
    assert back.dtype == x.grad.dtype == torch.float32  # the substitution ends with the mode
    assert on_grid(y.detach(), FP32) and not on_grid(y.detach(), BF16) and on_grid(back, BF16)
    assert not on_grid(seen["inside"] / 3, BF16) and on_grid(x.grad, BF16)
    same(back.detach(), nearest(nearest(nearest(nearest(x.detach(), BF16) / 3, FP32) * 7, FP32), BF16))


# Fills


@pytest.mark.parametrize("format", ["bf16", "fp16", "e8m4", "e5m7", "e4m3"])
@pytest.mark.parametrize("top", ["seen", "carrier"])
def test_a_fill_with_the_smallest_number_is_the_formats(format, top):
    """Fails if it becomes −inf, is counted as an overflow, or keeps a value that the format does not hold."""
    f, x, mask = format_named(format), normal(3, 4), torch.tensor([True, False, True, False])
    scores = nearest(x, f)
    with rounding(format) as mode:
        h = x * 1
        low = torch.finfo(h.dtype if top == "seen" else torch.float32).min
        filled = [
            h.masked_fill(mask, low), torch.where(mask, low, h), h.clone().masked_fill_(mask, low),
            torch.where(mask, torch.full_like(h, low), h), torch.where(mask, torch.full((3, 4), low), h),
            torch.where(mask, torch.tensor(low), h), torch.where(mask, mask.to(h.dtype) * low, h),
            torch.where(mask, h.new_full((3, 4), low), h), torch.where(mask, torch.empty_like(h).fill_(low), h),
        ]  # fmt: skip
        high = h.masked_fill(mask, -low)
        p = (h * 0.01 + torch.zeros_like(h).masked_fill(mask, low)).softmax(-1)
    for y in filled:
        same(y, torch.where(mask, -f.largest, scores))
    same(high, torch.where(mask, f.largest, scores))
    assert not mode.ranges
    assert (p[:, mask] == 0).all() and torch.allclose(p.sum(-1), torch.ones(3), atol=4 * f.unit)


def test_a_mask_that_was_made_outside():
    mask = torch.full((3,), torch.finfo(torch.float32).min)
    with rounding("fp16") as mode:
        y = mask * 1
        z = mask.clone()
    assert (y == -65504).all() and (z == -65504).all() and not mode.ranges


@pytest.mark.parametrize("island", [False, True])
def test_fills_of_fp64_carriers_and_islands_are_those_of_fp32(island):
    x = normal(3, dtype=torch.float32 if island else torch.float64)
    with rounding("bf16" if island else "fp32"):
        h = x.float() if island else x * 1
        y = h.masked_fill(torch.tensor([True, False, False]), torch.finfo(h.dtype).min)
    assert y.dtype == torch.float64 and y[0] == torch.finfo(torch.float32).min


# Ranges


class Losing(nn.Module):
    def __init__(self):
        super().__init__()
        self.big, self.small, self.quiet = nn.Identity(), nn.Identity(), nn.Linear(3, 3)
        self.big.forward = lambda x: x * 4e4
        self.small.forward = lambda x: x * 1e-8

    def forward(self, x):
        return self.big(x), self.small(x), self.quiet(x)


@pytest.mark.parametrize("native", [False, True])
def test_losses_are_counted_where_they_happen(native):
    """Fails if losses are counted twice, or if incoming infinities or zeros count."""
    module = Losing()
    x = torch.tensor([[1.0, 2.0, 4.0], [math.inf, 0.0, -8.0], [math.nan, 0.5, 1.0]])
    places = ModulePlaces(module)
    mode = Rounding(NARROW, places=places) if native else rounding("fp16", places=places)
    if native:
        module, x = module.half(), x.half()
    x.requires_grad_()
    with mode:
        big, small, _ = module(x)
    assert mode.ranges == {
        ("big", "forward", "mul"): Range(overflow=3, underflow=0),
        # 1e-8·x in fp16: the smallest number is 6e-8, and 3e-8 or less becomes 0
        ("small", "forward", "mul"): Range(overflow=0, underflow=4),
    }
    assert (big.isinf().sum(), (small == 0).sum()) == (4, 5)


def test_losses_of_the_backward_belong_to_the_module_of_the_forward():
    module = Losing()
    x = torch.tensor([[1.0, 0.5, 0.25]], requires_grad=True)
    with rounding("fp16", places=ModulePlaces(module)) as mode:
        big, small, _ = module(x)
        (big + small).backward(torch.tensor([[2.0, 1.0, 2.0]]))
    assert mode.ranges[("big", "backward", "mul")] == Range(overflow=2)
    assert mode.ranges[("small", "backward", "mul")] == Range(underflow=3)
    assert ("", "backward", "mul") not in mode.ranges


# Autocast


class Wide(nn.Module):
    """An op that autocast keeps in fp32 on a CPU."""

    def forward(self, x):
        return F.smooth_l1_loss(x, torch.zeros_like(x), reduction="none")


@both
def test_autocast_is_torchs_own(format):
    """Fails if an op is in low precision that torch's autocast keeps in fp32, or vice versa."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 8), Wide())
    x, dtypes = normal(5, 8), {}

    def run(kind, context):
        own = copy.deepcopy(module)
        for name, part in own.named_children():
            part.register_forward_hook(lambda m, i, o, name=name: dtypes.setdefault(name, {}).update({kind: o.dtype}))
        with context:
            y = own(x)
            torch.autograd.backward((y,), (normal(5, 8, seed=3).to(y.dtype),))
        return [y.detach(), *[p.grad for p in own.parameters()]]

    simulated = run("mode", rounding(format, "autocast"))
    right = run("torch", torch.autocast("cpu", format.dtype))
    assert all(seen["mode"] == seen["torch"] for seen in dtypes.values())
    assert {seen["mode"] for seen in dtypes.values()} == {format.dtype, torch.float32}
    exact = run("exact", nullcontext())
    for a, b, e in zip(simulated, right, exact, strict=True):
        assert a.dtype == b.dtype
        error = (a - e).double().norm()
        assert error > 0 and (a - b).double().norm() <= error


# Operands


class Operands(Rounding):
    """Records the operands that products receive, and the results of the other ops."""

    def _on_grid(self, packet, args):
        args = super()._on_grid(packet, args)
        self.got += [args[i] for i in OPERANDS.get(packet, ())]
        return args


def scaled(x, format):
    """Whether x fits the grid after scaling its largest entry to the format's largest number."""
    unit = x.double() * (format.largest / x.double().abs().max())
    return torch.allclose(nearest(unit, format), unit, rtol=1e-5, atol=format.smallest / 4)


@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e5m2", "tf32"])
def test_only_the_operands_of_products_are_in_fp8_or_tf32(name, monkeypatch):
    """Fails if a backward product is missed, or if anything else is rounded to the coarse grid."""
    format = format_named(name)
    monkeypatch.setattr(mode_module, "Rounding", Operands)
    module = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 8))
    outputs = []
    for part in module:
        part.register_forward_hook(lambda m, i, o: outputs.append(o.detach()))
    x = normal(32, 8).requires_grad_()
    mode = rounding(name)
    mode.got = []
    with mode:
        module(x).backward(normal(32, 8, seed=4))
    assert len(mode.got) == 2 * 2 * 3  # two layers: forward, and backward to weight and input
    for operand in mode.got:
        assert on_grid(operand, format) if name == "tf32" else scaled(operand, format)
    rest = format_named(format.rest)
    for y in [*outputs, x.grad, *[p.grad for p in module.parameters()]]:
        assert on_grid(y, rest) and not (on_grid(y, format) if name == "tf32" else scaled(y, format))


def test_tf32_holds_beside_narrow_types():
    """As diagnose runs it: fp32 products in a module that may also have bf16 products."""
    x, w = normal(5, 8), normal(8, 3, seed=1)
    with Rounding(NARROW, operands=format_named("tf32")):
        y, z = x @ w, x.to(torch.bfloat16) @ w.to(torch.bfloat16)
    tf32 = format_named("tf32")
    same(y, nearest(x, tf32) @ nearest(w, tf32))
    assert not torch.equal(y, x @ w) and z.dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e5m2"])
@pytest.mark.parametrize(
    "x", [torch.zeros(3, 4), normal(3, 4) * 1e-37, normal(3, 4) * 1e37, normal(0, 4), normal(3, 4) * 1e-44],
    ids=["zeros", "tiny", "huge", "empty", "subnormal"],
)  # fmt: skip
def test_operands_are_scaled_whatever_their_size(name, x):
    """Fails if a scale of ∞ or 0 gives NaN or loses all values."""
    eye = torch.eye(4)
    with rounding(name):
        y = x @ eye
    assert y.isfinite().all() and y.shape == x.shape
    if x.abs().max() > 1e-38 if x.numel() else False:
        assert ((y - x).abs() <= 2 * format_named(name).unit * x.abs() + x.abs().max() * 2e-3).all()


@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e5m2"])
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_operands_that_are_not_finite_stay_so(name, bad):
    x = normal(3, 4)
    x[1, 2] = bad
    with rounding(name):
        y = x @ torch.ones(4, 2)
    assert not y[1].isfinite().any() and y[0].isfinite().all() and y[2].isfinite().all()


def test_fp32_needs_fp64_tensors_and_rounds_them():
    module, x = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Tanh()).double(), normal(5, 8, dtype=torch.float64)
    x = x.requires_grad_()
    with rounding("fp32"):
        y = module(x)
        y.backward(normal(5, 8, seed=2, dtype=torch.float64))
    for z in (y.detach(), x.grad, *[p.grad for p in module.parameters()]):
        assert z.dtype == torch.float64 and on_grid(z, FP32)
    assert not torch.equal(y, module(x))


def test_fp64_does_nothing():
    module, x = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Tanh()).double(), normal(5, 8, dtype=torch.float64)
    with rounding("fp64"):
        y = module(x)
    same(y, module(x))


@pytest.mark.parametrize("pair", [(5, 2), (8, 4), (8, 15), (4, 3), (6, 9), (2, 1)])
def test_any_pair_of_bits(pair):
    x, format = normal(6, 8).requires_grad_(), format_named(pair)
    with rounding(pair):
        y = (x * 0.3).softmax(-1)
        y.backward(normal(6, 8, seed=1))
    assert on_grid(y, format) and on_grid(x.grad, format)
    assert not on_grid(y, format_named((max(2, pair[0] - 1), max(1, pair[1] - 1)))) or pair == (2, 1)


@pytest.mark.parametrize(("arguments", "words"), [
    (("bf16", "cats"), "cast or autocast"), (("bf16", "cast", "up"), "nearest or stochastic"),
    (("e8m4", "autocast"), "use policy='cast'"), (("bf17",), "unknown number format"),
])  # fmt: skip
def test_what_is_wrong_is_said(arguments, words):
    with pytest.raises(ValueError, match=words):
        rounding(*arguments)


# Stochastic


@both
@pytest.mark.parametrize("native", [False, True])
def test_stochastic_rounding_is_unbiased_through_an_op(format, native):
    """Fails on rounding to nearest, on one draw for all elements, or on a bias of a tenth of the unit."""
    x, y = nearest(normal(40), format), nearest(normal(40, seed=1), format)
    a, b = (x.to(format.dtype), y.to(format.dtype)) if native else (x, y)
    total, count = torch.zeros(40, dtype=torch.float64), 400
    for seed in range(count):
        with Rounding(NARROW, seed=seed) if native else rounding(format, mode="stochastic", seed=seed):
            z = a * b
        assert on_grid(z, format)
        total += z.double()
    exact = x.double() * y.double()
    gap = 2 * format.unit * exact.abs().clamp(min=format.smallest_normal)
    error = (total / count - exact) / gap
    assert error.abs().max() < 5 * 0.5 / math.sqrt(count) * 2
    assert error.mean().abs() < 5 * 0.5 * 2 / math.sqrt(count * 40)


def test_seeds():
    module, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), normal(5, 8)

    def run(seed):
        with rounding("bf16", mode="stochastic", seed=seed):
            return module(x).detach()

    same(run(3), run(3))
    assert not torch.equal(run(3), run(4))


@pytest.mark.parametrize("mode", ["nearest", "stochastic"])
@pytest.mark.parametrize("name", ["dropout", "alpha_dropout", "RReLU", "encoder_layer", "batch_norm", "in_place"])
def test_the_users_random_numbers_are_left_alone(name, mode):
    """Fails if rounding draws from torch's generator, or if an op that draws runs twice."""
    make, inputs = MODULES[name]
    module = make()

    def after(context):
        torch.manual_seed(5)
        with context:
            module(*inputs())
            return torch.rand(3), torch.get_rng_state()

    (a, state), (b, right) = after(rounding("bf16", mode=mode)), after(nullcontext())
    same(a, nearest(b, BF16) if mode == "nearest" else a)
    assert torch.equal(state, right)


def test_running_statistics_are_updated_once():
    """Fails if the run that finds the result's dtype also updates them."""
    x = nearest(normal(16, 4), BF16)
    rounded, right = nn.BatchNorm1d(4, momentum=0.5), nn.BatchNorm1d(4, momentum=0.5)
    with rounding("bf16"):
        rounded(x)
    right(x)
    same(rounded.running_mean, nearest(right.running_mean, BF16))
    same(rounded.running_var, nearest(right.running_var, BF16))
    assert int(rounded.num_batches_tracked) == 1
    mean, var = torch.zeros(4), torch.ones(4)  # fp32 with a low-precision input, as under autocast
    with Rounding(NARROW):
        F.batch_norm(x.bfloat16(), mean, var, training=True, momentum=0.5)
    assert torch.allclose(mean, right.running_mean) and torch.allclose(var, right.running_var)


# Side effects


def state():
    modules = torch.nn.modules.module
    return (
        torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack(), len(modules._global_forward_hooks),
        len(modules._global_forward_pre_hooks), torch.is_autocast_enabled("cpu"), torch.get_default_dtype(),
        torch.is_grad_enabled(), torch.get_rng_state().tolist(),
    )  # fmt: skip


@pytest.mark.parametrize("policy", ["cast", "autocast"])
@pytest.mark.parametrize("where", ["nowhere", "forward", "backward"])
def test_nothing_leaks(policy, where):
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            if where == "forward":
                raise KeyError("planted")
            return x * 1

        @staticmethod
        def backward(ctx, g):
            raise KeyError("planted")

    class Module(nn.Module):
        def forward(self, x):
            return x * 2 if where == "nowhere" else Failing.apply(x)

    module, x = nn.Sequential(nn.Linear(4, 4), Module()), normal(3, 4)
    before, mode = state(), rounding("bf16", policy, mode="stochastic", places=ModulePlaces(module))
    with pytest.raises(KeyError, match="planted") if where != "nowhere" else nullcontext(), mode:
        module(x).sum().backward()
    assert state() == before


def test_one_mode_can_be_used_again_but_not_inside_of_itself():
    x, mode = normal(50) * 3, rounding("bf16")
    with mode:
        y = x.mul_(1).clone()
    x.add_(0.001)  # outside: what enters now is rounded again
    with mode:
        z = x.clone()
        with pytest.raises(RuntimeError, match="do not nest"), mode:
            pass
        with pytest.raises(RuntimeError, match="do not nest"), rounding("fp16"):
            pass
        again = x.clone()
    same(z, nearest(x, BF16))
    same(again, z)
    assert on_grid(y, BF16)


@pytest.mark.parametrize("context", [nullcontext, torch.no_grad, torch.inference_mode])
def test_without_gradients_the_numbers_are_the_same(context):
    """In inference mode composite ops arrive undecomposed: fails if only their final result is rounded."""
    module = nn.Sequential(nn.Linear(8, 8), nn.RMSNorm(8), nn.GELU(), nn.Linear(8, 8), nn.Softmax(-1))
    x = normal(5, 8)

    def f(x):
        h = module(x)
        h = torch.einsum("ij,kj->ik", h, h).std(1) + F.cosine_similarity(x, h)
        return F.mse_loss(h, h * 0.3, reduction="none")

    with rounding("bf16"):
        right = f(x).detach()
    with rounding("bf16"), context():
        in_context = f(x).clone()
    same(in_context, right)


def test_backward_inside_and_outside():
    x = normal(5, 8).requires_grad_()
    with rounding("bf16"):
        y = (x * 0.3).tanh()
    y.backward(normal(5, 8, seed=1))
    assert on_grid(y, BF16) and not on_grid(x.grad, BF16)  # the mode had ended


def test_double_backward():
    x = normal(5, 8).requires_grad_()
    with rounding("bf16"):
        (g,) = torch.autograd.grad((x.tanh() * x).sum(), x, create_graph=True)
        (h,) = torch.autograd.grad(g, x, normal(5, 8, seed=1))
    assert on_grid(g.detach(), BF16) and on_grid(h, BF16)
    exact = torch.autograd.functional.vhp(
        lambda x: (x.tanh() * x).sum(), x.detach().double(), normal(5, 8, seed=1).double()
    )[1]
    assert 0 < (h - exact).norm() < 0.05 * exact.norm()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_change_nothing(reentrant):
    module = nn.Sequential(nn.Linear(8, 8), HandRMS(), nn.Dropout(0.5), nn.Linear(8, 8))
    grads = []
    for f in (module, lambda x: checkpoint(module, x, use_reentrant=reentrant)):
        torch.manual_seed(1)
        x = normal(5, 8).requires_grad_()
        with rounding("bf16"):
            f(x).backward(normal(5, 8, seed=2))
        grads.append(x.grad)
    same(*grads)


def test_custom_functions_see_the_same_dtypes_in_both_passes():
    """Fails if `y.backward()` disables what the forward saw: 1/3 would then be rounded inside the island."""
    seen = []

    class Third(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            seen.append(x.dtype)
            return (x.float() / 3).to(x.dtype)

        @staticmethod
        def backward(ctx, g):
            wide = g.float() / 3
            seen.extend([g.dtype, wide.dtype])
            return (wide * 3).to(g.dtype)

    for way in ("method", "function"):
        x, g = normal(20).requires_grad_(), nearest(normal(20, seed=1), BF16)
        with rounding("bf16"):
            y = Third.apply(x)
            y.backward(g) if way == "method" else torch.autograd.backward(y, g)
        same(x.grad, g)  # (g/3)·3 in fp32, rounded once
    assert seen == [torch.bfloat16, torch.bfloat16, torch.float32] * 2


def test_what_is_no_plain_tensor_passes():
    """Sparse, complex, quantised, or nested in a subclass: they run, and dense results are rounded."""
    from torch.testing._internal.two_tensor import TwoTensor

    dense, other = normal(4, 4), normal(4, 4, seed=1)
    with rounding("bf16"):
        a = torch.sparse.mm(dense.to_sparse(), dense)
        b = torch.view_as_real(torch.fft.fft(dense)).sum()
        c = torch.quantize_per_tensor(dense, 0.1, 0, torch.qint8).dequantize() / 3
        d = TwoTensor(dense, dense + 1) * 0.3
        e = (torch.arange(10) / 7) * 1
        sparse = dense.to_sparse().clone()
        assert other.add_(sparse) is other
        g = torch.empty(0).set_(dense)
        assert g.data_ptr() == dense.data_ptr()
    for z in (a, b, c, d.a, d.b, e):
        assert on_grid(z, BF16)
    same(d.b, nearest(nearest(nearest(dense, BF16) + 1, BF16) * 0.3, BF16))


# Memory


def shapes(f):
    return pytest.mark.parametrize("native", [False, True], ids=["carrier", "native"])(both(f))


@shapes
@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[:, 0].add_(0.3), lambda x: x.t().mul_(0.3), lambda x: x.view(-1).add_(0.7), lambda x: x.mul_(x),
        lambda x: x[::2].div_(3), lambda x: x.t_().mul_(0.3), lambda x: x[1:2, 1:].copy_(torch.tensor(0.3)),
        lambda x: x.__setitem__((0, 1), 0.1), lambda x: x.view(-1)[3:9].exp_(), lambda x: x.squeeze_().mul_(1.1),
        lambda x: torch.add(x, x, alpha=0.3, out=x),
        lambda x: x.index_put_((torch.tensor([0, 0]),), x[:1].clone(), True),
        lambda x: torch.mul(x[:1], 0.3, out=x[1:2]), lambda x: torch._foreach_mul_([x[0], x[2]], 0.3),
        lambda x: x.unsqueeze_(0).add_(x / 3), lambda x: x.diagonal().fill_(0.3), lambda x: x.masked_fill_(x > 0, 0.3),
    ],
)  # fmt: skip
def test_what_is_mutated_through_views_is_rounded_in_place(change, format, native):
    """Fails if a write goes to a copy, touches memory outside the view, or marks the rest as rounded."""
    dtype = format.dtype if native else torch.float32
    flat = normal(40).to(dtype)
    x = flat[2:38].view(6, 6)
    with Rounding(NARROW) if native else rounding(format):
        change(x)
        entered = flat * 1
    right = nearest(normal(40), format).double()
    change(right[2:38].view(6, 6))
    mutated = entered.double()
    assert on_grid(entered, format)
    assert ((mutated - right).abs() <= 8 * format.unit * right.abs() + 1e-7).all()
    untouched = mutated == nearest(normal(40), format).double()
    assert untouched[:2].all() and untouched[38:].all()


def test_memory_that_is_used_again_is_not_taken_for_rounded():
    """Fails if tensors are identified by an address that a later tensor from outside can reuse."""
    x = normal(64)
    with rounding("bf16"):
        for _ in range(50):
            made = x.mul(1)
            del made
            assert on_grid(torch.tensor([1 / 3] * 64) * 1, BF16)


@shapes
def test_out_is_resized_and_rounded(format, native):
    dtype = format.dtype if native else torch.float32
    x, out, values, index = normal(3, 5).to(dtype), *[torch.empty(0, dtype=d) for d in (dtype, dtype, torch.int64)]
    with Rounding(NARROW) if native else rounding(format):
        assert torch.mul(x, 0.3, out=out) is out
        torch.max(x * 0.3, 1, out=(values, index))
    assert out.shape == (3, 5) and on_grid(out, format)
    same(values, out.amax(1))
    assert torch.equal(index, out.argmax(1))


@shapes
def test_overlapping_memory_is_refused_as_ever(format, native):
    x = normal(1, 4).to(format.dtype if native else torch.float32).expand(3, 4)
    with pytest.raises(RuntimeError, match="memory location"), Rounding(NARROW) if native else rounding(format):
        x.add_(1)


@shapes
@given(shape=st.lists(st.integers(0, 4), max_size=3), seed=st.integers(0, 9))
def test_any_shape_and_stride(format, native, shape, seed):
    dtype = format.dtype if native else torch.float32
    x = normal(*shape, 2, seed=seed).to(dtype)[..., 0]
    x = x.mT if x.dim() > 1 else x
    with Rounding(NARROW) if native else rounding(format):
        y, z = x * 0.3, (x + 1).cumsum(-1) if x.dim() else x + 1
    right = nearest(nearest(x.detach().to(torch.float32), format) * 0.3, format)
    same(y, right.to(dtype))
    assert y.shape == x.shape and on_grid(z, format)


def test_steps_on_a_flat_buffer_with_views():
    flat = normal(24)
    views = [flat[:12].view(3, 4), flat[12:].view(4, 3)]
    with rounding("bf16"):
        for view in views[:1]:
            view.add_(normal(3, 4, seed=1), alpha=-0.1)
        product = views[0] @ views[1]
    assert on_grid(flat[:12], BF16) and not on_grid(flat[12:], BF16)  # it was never written
    same(product, nearest(flat[:12].view(3, 4) @ nearest(flat[12:], BF16).view(4, 3), BF16))


def test_kept_wide_is_fp32():
    """Norm statistics are not rounded to the format; under fp32 they are fp32."""
    x = normal(5, 8)
    with rounding("bf16"):
        y, mean, _ = torch.native_layer_norm(x, [8], None, None, 1e-5)
    assert on_grid(y, BF16) and not on_grid(mean, BF16)
    with rounding("fp32"):
        _, mean, _ = torch.native_layer_norm(x.double(), [8], None, None, 1e-5)
    assert on_grid(mean, FP32)
    with Rounding(NARROW):
        assert x.bfloat16().logsumexp(1).dtype == torch.bfloat16
