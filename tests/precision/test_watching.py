import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from gradproof.precision import rounding
from gradproof.precision.formats import format_named, nearest
from gradproof.precision.mode import NARROW, Rounding
from gradproof.precision.watching import SAMPLE, ModulePlaces, Place, Unrepeatable, Watching

BF16 = format_named("bf16")


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


# Random draws

DRAWS = {
    "functional": lambda x: F.dropout(x, 0.4),
    "module": nn.Dropout(0.3),
    "alpha": lambda x: F.alpha_dropout(x, 0.4, training=True),
    "feature": lambda x: F.dropout2d(x[None, :, :, None], 0.5)[0, :, :, 0],
    "native": lambda x: torch.native_dropout(x, 0.4, True)[0],
    "in place": lambda x: F.dropout(x * 1, 0.4, inplace=True),
    "rand_like": lambda x: x * torch.rand_like(x),
    "randn": lambda x: x * torch.randn(4, 6, dtype=x.dtype),
    "rand": lambda x: x + torch.rand(6, dtype=x.dtype),
    "normal_": lambda x: x + torch.empty_like(x).normal_(),
    "uniform_": lambda x: x + x.new_empty(6).uniform_(-1, 1),
    "bernoulli": lambda x: x * torch.bernoulli(torch.full_like(x, 0.5)),
    "multinomial": lambda x: x[:, torch.multinomial(x.softmax(-1)[0], 3)],
    "randperm": lambda x: x[:, torch.randperm(6)],
    "randint": lambda x: x[torch.randint(0, 4, (7,))],
    "gumbel": lambda x: F.gumbel_softmax(x, hard=False),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.4)[0],
}


@pytest.mark.parametrize("form", ["carrier", "native", "autocast", "stochastic"])
@pytest.mark.parametrize("name", DRAWS)
def test_the_draws_of_the_reference_are_made_again(name, form):
    """Fails if bf16 draws its own numbers: even from the same seed they differ, and the results are far apart."""
    f, x = DRAWS[name], normal(4, 6)
    torch.manual_seed(0)
    with Watching() as like:
        right = f(x.double())
    assert like.draws
    torch.manual_seed(1)
    if form == "native":
        mode, x = Rounding(NARROW, like=like), x.bfloat16()
    elif form == "autocast":
        mode = rounding("bf16", "autocast", like=like)
    else:
        mode = rounding("bf16", mode="stochastic" if form == "stochastic" else "nearest", like=like)
    with mode:
        rounded = f(x)
    assert (rounded.double() - right).norm() <= 0.04 * right.norm() + 0.02
    assert len(mode.draws) == len(like.draws)
    with Watching():  # and the results do depend on them
        other = f(x)
    assert (other.double() - right).norm() > 0.1 * right.norm()


def test_draws_are_rounded_as_any_result():
    with rounding("bf16") as mode:
        x = torch.randn(100)
        y = torch.empty(100).mul(0).normal_()
        z = mode.draws[0] * 1
    for drawn in (x, y, z):
        assert torch.equal(drawn, nearest(drawn, BF16))
    torch.manual_seed(0)
    with Rounding(NARROW):
        a = torch.rand(50, dtype=torch.bfloat16)
    torch.manual_seed(0)
    assert torch.equal(a, torch.rand(50, dtype=torch.bfloat16))


@pytest.mark.parametrize("other", [
    lambda x: (F.dropout(x), F.dropout(x)), lambda x: F.dropout(x[:2]), lambda x: torch.rand(3),
    lambda x: F.rrelu(x[0], training=True),
])  # fmt: skip
def test_other_draws_diverge(other):
    x = normal(4, 6)
    with Watching() as like:
        F.dropout(x)
    with pytest.raises(Unrepeatable, match="draws different random numbers"), rounding("bf16", like=like):
        other(x)


@pytest.mark.parametrize(("p", "train"), [(0.0, True), (1.0, True), (1.0, False), (0.5, False), (0.5, True)])
def test_native_dropout_scales_as_torchs(p, train):
    x = normal(8, 8)
    torch.manual_seed(0)
    with Watching():
        watched, mask = torch.native_dropout(x, p, train)
    torch.manual_seed(0)
    right, kept = torch.native_dropout(x, p, train)
    assert torch.equal(watched, right) and torch.equal(mask, kept)


# Leaving torch


class Numpy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(x.detach().numpy() * 2)

    @staticmethod
    def backward(ctx, g):
        return g * 2


class NumpyBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return torch.as_tensor(g.numpy() * 2)


@torch.library.custom_op("gradproof_test::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


twice.register_autograd(lambda ctx, g: g * 2)


class Pointing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        assert x.data_ptr()
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


@pytest.mark.parametrize("mode", ["watching", "carrier", "autocast"])
@pytest.mark.parametrize(("f", "name"), [
    (Numpy.apply, "Tensor.numpy()"), (NumpyBackward.apply, "Tensor.numpy()"), (Pointing.apply, "Tensor.data_ptr()"),
    (twice, "gradproof_test.twice"), (lambda x: x * 2, ""),
    (lambda x: x[torch.from_numpy(torch.arange(3).numpy())], ""),
])  # fmt: skip
def test_what_leaves_aten_is_named(f, name, mode):
    """Fails if a backward that leaves torch is missed, or if integers that leave count."""
    x = normal(4, 3).requires_grad_()
    watch = Watching() if mode == "watching" else rounding("bf16", "cast" if mode == "carrier" else mode)
    with watch:
        f(x).sum().backward()
    assert (name in " ".join(watch.left)) if name else not watch.left, watch.left


# Places


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4, bias=False)

    def forward(self, x):
        x.argmax()  # creates no node: it must not take that of the op before
        return self.linear(x).tanh()


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Inner(), Inner()

    def forward(self, x):
        x = x.exp()
        x = self.second(self.first(x).sin())
        return nn.Sigmoid()(self.first(x))  # called twice, and a module without a parent


OPS = {"exp": "", "mm": "first.linear", "tanh": "first", "sin": "", "sigmoid": ""}


def places_of(watch, phase):
    return {(p.op, p.path, p.call) for p in watch.samples if p.phase == phase}


@pytest.mark.parametrize("mode", ["watching", "rounding", "checkpoint"])
def test_ops_are_placed_by_module_and_phase(mode):
    """Fails if a backward op is attributed to the module that ran last, or if a module called twice is found once."""
    module, x = Outer(), normal(3, 4).requires_grad_()
    options = dict(places=ModulePlaces(module), trace=True)
    watch = rounding("bf16", **options) if mode == "rounding" else Watching(**options)
    with watch:
        y = checkpoint(module, x, use_reentrant=False) if mode == "checkpoint" else module(x)
        y.backward(normal(3, 4, seed=1))
    forward = places_of(watch, "forward")
    calls = 2 if mode == "checkpoint" else 1
    for i in range(calls):
        assert {("exp", "", i), ("sin", "", i), ("sigmoid", "", i)} <= forward
    for i in range(2 * calls):
        assert {("mm", "first.linear", i), ("tanh", "first", i)} <= forward
    assert ("mm", "second.linear", calls - 1) in forward and ("mm", "second.linear", calls) not in forward
    backward = places_of(watch, "backward")
    assert {("tanh_backward", "first", 0), ("tanh_backward", "first", 1), ("tanh_backward", "second", 0)} <= backward
    assert ("tanh_backward", "second", 1) not in backward
    # two products per call: to the weight and to the input
    assert {("mm", "first.linear", 3), ("mm", "second.linear", 1), ("cos", "", 0)} <= backward
    assert ("mm", "first.linear", 4) not in backward and ("mm", "second.linear", 2) not in backward
    assert not any(op == "mm" and path in ("", "first", "second") for op, path, _ in forward | backward)


def test_an_exception_does_not_leave_a_module_running():
    class Failing(nn.Module):
        def forward(self, x):
            raise KeyError("planted")

    class Trying(nn.Module):
        def __init__(self):
            super().__init__()
            self.fails, self.works = Failing(), nn.Tanh()

        def forward(self, x):
            try:
                self.fails(x)
            except KeyError:
                x = x.sin()
            return self.works(x)

    module = Trying()
    with Watching(places=ModulePlaces(module), trace=True) as watch:
        module(torch.ones(3)).exp()
    assert [(p.op, p.path) for p in watch.samples] == [("sin", ""), ("tanh", "works"), ("exp", "")]


def test_samples_are_spread_over_the_result():
    x = torch.arange(10 * SAMPLE, dtype=torch.float64)
    with Watching(trace=True) as watch:
        x + 0
        x[:5] * 2
        (x > 3).sum()
    assert torch.equal(watch.samples[Place("", "", "add", 0)], x[::10])
    assert torch.equal(watch.samples[Place("", "", "mul", 0)], x[:5] * 2)
    assert len(watch.samples) == 2


def test_a_context_that_cannot_be_entered_leaves_nothing_on():
    class Broken:
        def __enter__(self):
            raise KeyError("planted")

        def __exit__(self, *failure):
            pass

    before = torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()
    module = nn.Linear(2, 2)
    with pytest.raises(KeyError), Watching(places=ModulePlaces(module), within=(Broken(),)):
        pass
    assert (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()) == before
    assert not torch.nn.modules.module._global_forward_hooks


@pytest.mark.parametrize("mode", ["watching", "rounding"])
def test_compiled_modules_run_uncompiled(mode):
    """Fails if the compiled graph runs instead of the ops, or if the mode itself is compiled."""
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    torch._dynamo.reset()
    module, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), normal(3, 4).requires_grad_()
    watch = rounding("bf16", trace=True) if mode == "rounding" else Watching(trace=True)
    with watch:
        torch.compile(module, backend=backend)(x).backward(normal(3, 4, seed=1))
    assert not compiled
    assert {"addmm", "tanh", "tanh_backward", "mm"} <= {place.op for place in watch.samples}
