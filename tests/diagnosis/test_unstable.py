"""Parts that must not be computed in the format: found and named, and not seen in a stable twin, or in mere noise."""

import json
import math

import pytest
import torch
from torch import nn

import gradproof
from gradproof.precision.mode import PRODUCTS, rounding


def diagnosed(module, *inputs, precisions=("bf16",), **options):
    return gradproof.diagnose(module, inputs, precisions=precisions, replicas=6, **options)


class Angles(nn.Module):
    """Features turned by the angles of late positions, in the working type unless `stable`."""

    def __init__(self, stable):
        super().__init__()
        self.stable, self.inp, self.out = stable, nn.Linear(16, 16), nn.Linear(16, 8)

    def forward(self, x):
        kind = torch.float32 if self.stable and x.dtype.itemsize == 2 else x.dtype
        angle = torch.arange(2000, 2000 + x.shape[1], dtype=kind)[:, None] * torch.linspace(0.01, 1, 16, dtype=kind)
        return self.out(torch.tanh(self.inp(x)) * angle.cos().to(x.dtype))


class Rotated(nn.Module):
    """The same with frequencies in a buffer, which `module.to(dtype)` rounds, inside of a larger module."""

    def __init__(self):
        super().__init__()
        self.body, self.turn = nn.Linear(16, 16), Turn()

    def forward(self, x):
        return self.turn(torch.tanh(self.body(x)))


class Turn(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("rate", torch.linspace(0.01, 1, 16))

    def forward(self, x):
        angle = torch.arange(2000, 2000 + x.shape[1])[:, None].float() * self.rate.float()
        return x * angle.cos().to(x.dtype)


class Total(nn.Module):
    """A long sum below a softmax, rounded at every step unless `stable`."""

    def __init__(self, stable):
        super().__init__()
        self.stable, self.score, self.value = stable, nn.Linear(8, 1, bias=False), nn.Linear(8, 6)
        nn.init.normal_(self.score.weight, std=0.05)

    def forward(self, x):
        term = self.score(x).squeeze(-1) - 4
        total = torch.zeros_like(
            term[..., 0], dtype=torch.float32 if self.stable and x.dtype.itemsize == 2 else x.dtype
        )
        for part in term.unbind(-1):
            total = total + part
        return (total.softmax(-1).to(x.dtype)[..., None] * torch.tanh(self.value(6 * x.mean(2)))).sum(1)


class Spread(nn.Module):
    """Rows over their standard deviation, as the root of E[x²] − E[x]² unless `stable`."""

    def __init__(self, stable):
        super().__init__()
        self.stable, self.inp, self.out = stable, nn.Linear(24, 64), nn.Linear(64, 8)
        nn.init.constant_(self.inp.bias, 7.0)

    def forward(self, x):
        h = self.inp(x)
        mean = h.mean(-1, keepdim=True)
        square = (h - mean).square() if self.stable else h.square()
        spread = square.mean(-1, keepdim=True) - (0 if self.stable else mean.square())
        return self.out(torch.tanh(h - 7) * (spread + 0.1).rsqrt())


class Window(nn.Module):
    """Attention to the last nine ticks of a clock, which is in the working type unless `stable`."""

    def __init__(self, stable):
        super().__init__()
        self.stable, self.qkv, self.out = stable, nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x, gaps):
        clock = gaps.cumsum(1).to(torch.float32 if self.stable else x.dtype)
        seen = (clock[:, :, None] - clock[:, None]).abs() <= 9
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = (q / 4) @ k.transpose(1, 2)
        return self.out(scores.masked_fill(~seen, -math.inf).softmax(-1) @ v)


class Kernel(nn.Module):
    """exp(−d²) of points far from the origin; d² as |x|² + |c|² − 2 x·c unless `stable`."""

    def __init__(self, stable):
        super().__init__()
        self.stable, self.centre = stable, nn.Parameter(12 + 0.5 * torch.randn(10, 6))
        self.height = nn.Parameter(torch.randn(10))

    def forward(self, x):
        if self.stable:
            squared = (x[:, None] - self.centre).square().sum(-1)
        else:
            squared = x.square().sum(-1, keepdim=True) + self.centre.square().sum(-1) - 2 * x @ self.centre.T
        return torch.exp(-0.4 * squared) * self.height


class Kept(nn.Module):
    """1 − p of probabilities near 1, which are kept in `kind`; as σ(−z) where there is none."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.scale = kind, nn.Parameter(0.3 + 0.1 * torch.rand(12))
        self.level, self.height = nn.Parameter(5.5 + 0.1 * torch.randn(12)), nn.Parameter(torch.randn(12))

    def forward(self, x):
        z = self.level + self.scale * x
        tail = torch.sigmoid(-z) if self.kind is None else 1 - torch.sigmoid(z).to(self.kind)
        return tail.to(x.dtype) * self.height


CASES = {
    "angles": (Angles, lambda: (torch.randn(4, 24, 16),), "linspace"),
    "total": (Total, lambda: (torch.randn(16, 6, 36, 8),), "add"),
    "spread": (Spread, lambda: (torch.randn(48, 24),), "mean"),
}


@pytest.mark.parametrize(("make", "inputs", "op"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("format", ["bf16", "fp16"])
def test_an_unstable_part_is_a_bug_and_is_named(make, inputs, op, format):
    torch.manual_seed(0)
    diagnosis = diagnosed(make(False), *inputs(), precisions=(format,))
    assert diagnosis.verdict == "bug" and diagnosis.verification.status == "proven"
    assert f"{op} (forward) loses too much in {format}" in diagnosis.summary and "in fp32" in diagnosis.summary
    part = diagnosis.precisions[0].unstable
    assert part["noise"] > 5 * part["products"] and part["noise"] > 20 * part["entry"]
    assert diagnosis.to_dict()["first_divergence"]["op"] == op


@pytest.mark.parametrize(("make", "inputs", "op"), CASES.values(), ids=CASES)
def test_its_stable_twin_is_noise(make, inputs, op):
    torch.manual_seed(0)
    diagnosis = diagnosed(make(True), *inputs(), precisions=("bf16", "fp16"))
    assert diagnosis.verdict in ("noise", "clean"), diagnosis.summary
    assert all(p.unstable is None for p in diagnosis.precisions)


@pytest.mark.parametrize("format", ["bf16", "fp16"])
def test_products_that_cancel_are_a_bug(format):
    torch.manual_seed(0)
    module, twin, x = Kernel(False), Kernel(True), 12 + 0.5 * torch.randn(32, 6)
    diagnosis = diagnosed(module, x, precisions=(format,))
    assert diagnosis.verdict == "bug"
    assert f"mm (forward) is large and cancels, leaving mostly rounding error in {format}" in diagnosis.summary
    part = diagnosis.precisions[0].unstable
    assert part["op"] == "mm" and part["noise"] < 5 * part["products"] and part["noise"] > 6.5 * part["entry"]
    assert diagnosed(twin, x, precisions=(format,)).verdict in ("noise", "clean")


@pytest.mark.parametrize(("format", "kind"), [("fp16", torch.bfloat16), ("bf16", torch.bfloat16)])
def test_what_the_code_itself_casts_to_a_narrow_type_is_no_excuse(format, kind):
    """Replicas round it too, so that it would be noise of the format's."""
    torch.manual_seed(0)
    x = torch.randn(40, 12)
    diagnosis = diagnosed(Kept(kind), x, precisions=(format,))
    assert diagnosis.verdict == "bug" and diagnosis.precisions[0].unstable["op"] == "sigmoid", diagnosis.summary
    assert diagnosed(Kept(None), x, precisions=(format,)).verdict in ("noise", "clean")


def test_values_that_the_format_cannot_tell_apart_are_routing_where_they_are_compared():
    torch.manual_seed(0)
    inputs = 2 * torch.randn(2, 120, 16), torch.randint(3, 10, (2, 120))
    diagnosis = diagnosed(Window(False), *inputs, precisions=("bf16", "fp16", "fp8_e4m3"))
    verdicts = {p.format: p.verdict for p in diagnosis.precisions}
    assert verdicts["bf16"] == verdicts["fp8_e4m3"] == "routing" and verdicts["fp16"] in ("noise", "clean")
    assert "comparisons change, most of them at le (forward)" in diagnosis.summary
    part = diagnosis.precisions[0].unstable
    assert 0 < part["flips"] < part["comparisons"] == 2 * 120 * 120
    twin = diagnosed(Window(True), *inputs)
    assert twin.verdict in ("noise", "clean"), twin.summary


def test_a_buffer_that_must_not_be_rounded_is_named_with_its_module():
    torch.manual_seed(0)
    diagnosis = diagnosed(Rotated(), torch.randn(4, 24, 16))
    assert (
        diagnosis.verdict == "bug"
        and "a buffer or constant in turn (forward) loses too much in bf16" in diagnosis.summary
    )


def test_a_format_of_operands_has_what_its_rest_has_and_the_record_is_plain():
    torch.manual_seed(0)
    diagnosis = diagnosed(Total(False), torch.randn(16, 6, 36, 8), precisions=("fp8_e4m3",))
    assert diagnosis.verdict == "bug" and "as in bf16" in diagnosis.summary
    assert json.loads(diagnosis.to_json())["precisions"][0]["unstable"]["op"] == "add"


class Difference(nn.Module):
    """What a small step changes in a network's output: noise of 15 units, and none of it of one part's making."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 4))

    def forward(self, x):
        return self.net(x + 0.02) - self.net(x)


class Saturated(nn.Module):
    """1 − tanh² of a saturated unit cancels in the backward of every such network; its output is right."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(12, 16)

    def forward(self, x):
        return torch.tanh(self.net(x) + 4)


def deep():
    return nn.Sequential(*[layer for _ in range(20) for layer in (nn.Linear(12, 12), nn.Tanh())])


@pytest.mark.parametrize("make", [Difference, Saturated, deep])
def test_mere_noise_stays_noise_however_large(make):
    torch.manual_seed(0)
    diagnosis = diagnosed(make(), torch.randn(24, 12))
    assert diagnosis.verdict in ("noise", "clean"), diagnosis.summary
    if make is not deep:
        assert diagnosis.precisions[0].noise > 20 * 2**-8, "what is tested here is large noise"


def test_only_the_ops_that_are_asked_for_round():
    torch.manual_seed(0)
    x, w = torch.randn(5, 7), torch.randn(7, 3)
    with rounding("bf16", rounds=lambda key: False):
        assert torch.equal(torch.tanh(x @ w), torch.tanh(x @ w.clone()))
        free = torch.tanh(x @ w)
    with rounding("bf16", rounds=lambda key: key[2] in PRODUCTS):
        product = x @ w
        some = torch.tanh(product)
    assert torch.equal(free, torch.tanh(x @ w))
    assert torch.equal(product, (x.bfloat16().float() @ w.bfloat16().float()).bfloat16().float())
    assert torch.equal(some, torch.tanh(product)) and not torch.equal(some, some.bfloat16().float())


def test_a_constant_that_is_made_fp32_is_an_island():
    def turned(x):
        return x * torch.arange(2001, 2006, dtype=torch.float32).cos().to(x.dtype)

    x = torch.randn(3, 5).bfloat16().float()
    with rounding("bf16"):
        rounded = turned(x)
    assert torch.equal(rounded, turned(x.bfloat16()).float())
