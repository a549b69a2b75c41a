import math
from fractions import Fraction
from functools import lru_cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradproof.precision import formats
from gradproof.precision.formats import FORMATS, Format, format_named, nearest, stochastic

BF16, FP16, E4M3, E5M2 = (FORMATS[name] for name in ("bf16", "fp16", "fp8_e4m3", "fp8_e5m2"))
CAST = [BF16, FP16, E4M3, E5M2]
BITS = {torch.float32: torch.int32, torch.float64: torch.int64}
CARRIERS = list(BITS)
INF = math.inf


def named(values):
    return pytest.mark.parametrize("format", values, ids=lambda format: format.name)


carried = pytest.mark.parametrize("dtype", CARRIERS, ids=("float32", "float64"))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def same(ours, right):
    """The same bits, including signs of zero; all NaNs are equal."""
    assert (ours.shape, ours.dtype) == (right.shape, right.dtype)
    bits = BITS[ours.dtype]
    wrong = ~((ours.view(bits) == right.view(bits)) | (ours.isnan() & right.isnan()))
    assert not wrong.any(), f"{int(wrong.sum())} differ: {ours[wrong][:5]} for {right[wrong][:5]}"


def cast(x, format):
    """torch's own cast; NaN, as in torch 2.11, where torch 2.13 saturates."""
    right = x.to(format.dtype).to(x.dtype)
    return torch.where(x.abs() > 464, math.nan, right) if format.finite else right


@lru_cache
def values(format):
    """Every value ≥ 0 from the definition, in order, and the step above the largest."""
    bias, one = 2 ** (format.exponent - 1) - 1, 2**format.mantissa
    low = [k * 2.0 ** (1 - bias - format.mantissa) for k in range(one)]
    fields = range(1, 2**format.exponent - (0 if format.finite else 1))
    rows = low + [k * 2.0 ** (field - bias - format.mantissa) for field in fields for k in range(one, 2 * one)]
    return torch.tensor(rows if format.finite else [*rows, 2.0 ** (bias + 1)], dtype=torch.float64)


def around(x, dtype):
    """x, its two neighbours in the carrier, and their negatives."""
    x = x.to(dtype)
    x = torch.cat([x, x.nextafter(torch.tensor(INF, dtype=dtype)), x.nextafter(torch.tensor(-INF, dtype=dtype))])
    return torch.cat([x, -x])


def critical(format, dtype):
    """All values, all midpoints, their neighbours in the carrier, and infinities and NaN."""
    table = values(format)
    middle = (table[1:] + table[:-1]) / 2
    special = torch.tensor([0.0, -0.0, INF, -INF, math.nan, 1e38, -1e38, 1e-45, -1e-45], dtype=dtype)
    return torch.cat([around(table[table < 2.0**128], dtype), around(middle, dtype), special])


# Properties of the formats


@pytest.mark.parametrize("name", ["fp64", "fp32", "bf16", "fp16", "fp8_e4m3", "fp8_e5m2"])
def test_the_properties_are_those_torch_knows(name):
    format = FORMATS[name]
    assert format.dtype is not None
    info = torch.finfo(format.dtype)
    assert format.largest == info.max
    assert format.smallest_normal == info.smallest_normal
    assert format.unit == info.eps / 2
    assert format.smallest == info.smallest_normal * info.eps


@named(CAST)
def test_the_values_are_those_of_torchs_type(format):
    """Every bit pattern of the type, compared with the table that the other tests round to."""
    width = 8 * format.dtype.itemsize
    patterns = torch.arange(2 ** (width - 1)).to(torch.int16 if width == 16 else torch.uint8)
    right = patterns.view(format.dtype).double()
    right = right[right.isfinite()]
    assert torch.equal(values(format)[:-1] if not format.finite else values(format)[: len(right)], right)
    assert right.max() == format.largest


def test_only_operands_are_in_fp8_and_tf32():
    assert {name: format.rest for name, format in FORMATS.items() if format.operands} == dict(
        tf32="fp32", fp8_e4m3="bf16", fp8_e5m2="bf16"
    )


def test_names_and_pairs():
    assert format_named("bf16") is format_named((8, 7)) is format_named("e8m7") is format_named(BF16) is BF16
    assert format_named("e5m10") is FP16 and format_named((8, 23)) is FORMATS["fp32"]
    assert format_named((11, 52)) is FORMATS["fp64"]
    assert format_named("e5m7") == format_named((5, 7)) == Format("e5m7", 5, 7)
    # fp8 and tf32 are more than their bit counts: a pair is a storage format.
    assert format_named((4, 3)).largest == 240 and E4M3.largest == 448
    assert not format_named((8, 10)).operands and not format_named((5, 2)).operands


@pytest.mark.parametrize(
    "wrong", [(5, 0), (1, 3), (12, 3), (5, 53), (5.0, 3), (5, 3, 1), "e5m0", "e12m3", "e5", "bf17", "", "E5M7", 5, None]
)
def test_anything_else_is_refused_in_a_sentence(wrong):
    with pytest.raises(
        ValueError, match=r"unknown number format .*use fp64, .*fp8_e5m2, or e<2\.\.11>m<1\.\.52>"
    ) as why:
        format_named(wrong)
    assert "\n" not in str(why.value) and repr(wrong) in str(why.value)


# Nearest


@named(CAST)
@pytest.mark.parametrize("rounding", [nearest, formats._nearest], ids=["nearest", "general"])
def test_every_value_and_midpoint_rounds_as_torch_casts(format, rounding):
    """Other pairs of bits use the general path, and so does CUDA for e4m3."""
    x = critical(format, torch.float32)
    same(rounding(x, format), cast(x, format))
    inside = values(format)[values(format) <= format.largest].float()
    same(rounding(inside, format), inside)


@named([E4M3, E5M2])
@pytest.mark.parametrize("rounding", [nearest, formats._nearest], ids=["nearest", "general"])
def test_every_float16_rounds_to_fp8_as_torch_casts(format, rounding):
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.float16).float()
    same(rounding(x, format), cast(x, format))


def test_past_the_largest():
    edge = torch.tensor([448.0, 464.0, 464.00003, 480.0, 1e30, INF, -464.0, -465.0])
    same(nearest(edge, E4M3), torch.tensor([448.0, 448.0, *[math.nan] * 4, -448.0, math.nan]))
    edge = torch.tensor([65519.996, 65520.0, -65520.0])
    same(nearest(edge, FP16), torch.tensor([65504.0, INF, -INF]))
    same(nearest(edge.double(), FP16), torch.tensor([65504.0, INF, -INF], dtype=torch.float64))


@named([*CAST, FORMATS["tf32"], format_named((5, 7)), format_named((2, 1)), format_named((7, 4))])
@carried
def test_midpoints_go_to_even_and_the_rest_to_the_closer(format, dtype):
    """From the table alone, independent of torch's casts. In float64 the neighbours of a midpoint are so close that an
    intermediate float32 would be the midpoint, which is a double rounding.
    """
    table = values(format)
    middle = ((table[1:] + table[:-1]) / 2).to(dtype)
    past = math.nan if format.finite else INF
    low, high = table[:-1].clone(), table[1:].clone()
    low[low > format.largest], high[high > format.largest] = past, past
    low, high = low.to(dtype), high.to(dtype)
    even = torch.where(torch.arange(len(low)) % 2 == 0, low, high)
    up, down = torch.tensor(INF, dtype=dtype), torch.tensor(-INF, dtype=dtype)
    for sign in (1, -1):
        same(nearest(sign * middle, format), sign * even)
        same(nearest(sign * middle.nextafter(up), format), sign * high)
        same(nearest(sign * middle.nextafter(down), format), sign * low)


def test_a_float64_is_rounded_once():
    """Just above a tie of bf16: through float32 it would become the tie and round to even."""
    x = torch.tensor([1 + 2**-8 + 2**-40], dtype=torch.float64)
    assert x.float().to(torch.bfloat16).item() == 1
    assert nearest(x, BF16).item() == 1 + 2**-7
    x = torch.tensor([2**-25 + 2**-60, 1 + 2**-24 + 2**-50], dtype=torch.float64)
    assert nearest(x[:1], FP16).item() == 2**-24  # a subnormal
    assert nearest(x[1:], FORMATS["fp32"]).item() == 1 + 2**-23


def test_fp32_from_float64_is_torchs_cast():
    x = torch.randint(-(2**62), 2**62, (1 << 16,), generator=generator()).mul(2).view(torch.float64)
    x = torch.cat([x, torch.randn(1 << 16, generator=generator(), dtype=torch.float64) * 1e-40])
    same(nearest(x, FORMATS["fp32"]), x.float().double())
    same(formats._nearest(x, FORMATS["fp32"]), x.float().double())


def test_a_carrier_that_holds_nothing_else_is_returned_as_it_is():
    x, wide = torch.randn(5), torch.randn(5, dtype=torch.float64)
    for format in (FORMATS["fp32"], FORMATS["fp64"], format_named((9, 40))):
        same(nearest(x, format), x)
        same(stochastic(x, format, generator()), x)
    same(nearest(wide, FORMATS["fp64"]), wide)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int32])
def test_another_carrier_is_refused(dtype):
    for rounding in (nearest, lambda x, format: stochastic(x, format, generator())):
        with pytest.raises(ValueError, match="rounding needs float32 or float64"):
            rounding(torch.ones(3, dtype=dtype), BF16)


@pytest.mark.slow
def test_200_million_patterns_round_as_torch_casts():
    source, chunk = generator(1), 10_000_000
    for _ in range(20):
        x = torch.empty(chunk, dtype=torch.int32).random_(-(2**31), 2**31, generator=source).view(torch.float32)
        for format in CAST:
            right = cast(x, format)
            same(nearest(x, format), right)
            same(formats._nearest(x, format), right)


# Any pair of bits, against fractions


def neighbours(x, format):
    """The two values of the format around a Fraction ≥ 0, and the even one of them, ignoring the largest number."""
    e = x.numerator.bit_length() - x.denominator.bit_length()  # the denominator is a power of two: 2^e ≤ x < 2^(e+1)
    quantum = Fraction(2) ** (max(e, 2 - 2 ** (format.exponent - 1)) - format.mantissa)
    k = x // quantum
    low, high = k * quantum, (k + (x % quantum > 0)) * quantum
    return low, high, low if k % 2 == 0 else high


def as_float(x, format, negative, dtype):
    """The carrier's number for a Fraction ≥ 0, including values above the largest."""
    if x > Fraction(format.largest):
        size = math.nan if format.finite else INF
    else:
        size = INF if dtype == torch.float32 and x >= 2**128 else float(x)
    return -size if negative else size


@st.composite
def patterns(draw):
    """A format, a carrier, and values at the edges of the format."""
    dtype = draw(st.sampled_from(CARRIERS))
    exponent = draw(st.integers(2, 11))
    format = format_named((exponent, draw(st.one_of(st.integers(1, 52), st.sampled_from([1, 22, 23, 24, 51, 52])))))
    if draw(st.integers(0, 9)) == 0:
        format = E4M3
    width, size = (23, 8) if dtype == torch.float32 else (52, 11)
    emin, emax = 2 - 2 ** (format.exponent - 1), 2 ** (format.exponent - 1) - 1
    top = 2 ** (size - 1) - 1
    rows = []
    for _ in range(12):
        near = draw(st.sampled_from([emin - format.mantissa, emin, 0, emax, 1 - top, draw(st.integers(-top, top))]))
        field = min(max(near + draw(st.integers(-3, 3)) + top, 0), 2 * top)
        kept = draw(st.sampled_from([format.mantissa - 1, format.mantissa, format.mantissa + 1, width]))
        kept = min(max(kept, 0), width)
        significand = draw(st.one_of(st.integers(0, 2**kept - 1), st.just(2**kept - 1))) << width - kept
        significand = min(max(significand + draw(st.integers(-1, 1)), 0), 2**width - 1)
        rows.append((field << width | significand) - (draw(st.booleans()) << width + size))
    return format, torch.tensor(rows, dtype=BITS[dtype]).view(dtype)


@settings(max_examples=200)
@given(patterns())
def test_nearest_against_fractions(drawn):
    format, x = drawn
    right = []
    for value in x.tolist():
        size, negative = abs(Fraction(value)), math.copysign(1, value) < 0
        low, high, even = neighbours(size, format)
        closest = even if size - low == high - size else low if size - low < high - size else high
        right.append(as_float(closest, format, negative, x.dtype))
    same(nearest(x, format), torch.tensor(right, dtype=x.dtype))


@settings(max_examples=200)
@given(patterns(), st.integers(0, 1000))
def test_stochastic_is_one_of_the_two_neighbours_of_the_fraction(drawn, seed):
    format, x = drawn
    rounded = stochastic(x.expand(16, -1), format, generator(seed))
    for column, value in zip(rounded.t().tolist(), x.tolist(), strict=True):
        size, negative = abs(Fraction(value)), math.copysign(1, value) < 0
        right = [as_float(end, format, negative, x.dtype) for end in neighbours(size, format)[:2]]
        assert {end.hex() for end in column} <= {end.hex() for end in right}


# Stochastic


def points(format, dtype):
    """Normal numbers, both sides of a power of two, subnormals, the step between the two kinds, and the last step."""
    normal = [1 / 3, 1.1, math.pi / 4, 1 + format.unit / 5, 2 - format.unit / 5, 1 - format.unit * 0.4]
    smallest = [k * format.smallest for k in (0.01, 0.3, 0.9, 1.5, 2.71)]
    edge = [format.smallest_normal - 0.3 * format.smallest, format.smallest_normal + 0.3 * format.smallest]
    step = 2.0 ** (math.frexp(format.largest)[1] - 1 - format.mantissa)
    x = torch.tensor([*normal, *smallest, *edge, format.largest - 0.4 * step], dtype=torch.float64).to(dtype)
    return torch.cat([x, -x])


def ends(x, format):
    """Both neighbours of |x| from the table; the same one twice if x is in the table."""
    table, size = values(format), x.double().abs()
    high = table[torch.searchsorted(table, size)]
    return torch.where(high == size, high, table[torch.searchsorted(table, size) - 1]), high


def bias(rounding, format, dtype, draws):
    """By how many standard errors the mean of many draws deviates from x: the worst point, and all points together,
    which finds a small shared bias.
    """
    x = points(format, dtype)
    low, high = ends(x, format)
    p = (x.double().abs() - low) / (high - low)
    rounded = rounding(x.expand(draws, -1), format).double() * x.sign()
    assert ((rounded == low) | (rounded == high)).all()
    off = (rounded - x.double().abs()).mean(0) / (high - low)
    variance = p * (1 - p) / draws
    return float((off / variance.sqrt()).abs().max()), float(off.sum().abs() / variance.sum().sqrt())


MEANT = [*CAST, format_named((8, 10)), format_named((6, 5))]


@named(MEANT)
@carried
@pytest.mark.parametrize("draws", [4_000, 60_000])
def test_the_mean_is_x(format, dtype, draws):
    worst, together = bias(lambda x, format: stochastic(x, format, generator(3)), format, dtype, draws)
    assert worst < 5 and together < 5


def uniform(x, seed=4):
    return torch.rand(x.shape, generator=generator(seed), dtype=torch.float64)


def with_uniform(x, format, u):
    low, high = ends(x, format)
    return (torch.where((x.double().abs() - low) / (high - low) > u, high, low) * x.sign()).to(x.dtype)


def towards_zero(x, format):
    return (ends(x, format)[0] * x.sign()).to(x.dtype)


PLANTED = dict(
    nearest=nearest,
    truncated=towards_zero,
    even_odds=lambda x, format: with_uniform(x, format, (uniform(x) < 0.5).double()),
    narrow=lambda x, format: with_uniform(x, format, 0.98 * uniform(x)),
    shifted=lambda x, format: with_uniform(x, format, uniform(x) + 0.01),
    seven_bits=lambda x, format: with_uniform(x, format, (uniform(x) * 128).floor() / 128),
    three_uniforms=lambda x, format: with_uniform(x, format, (uniform(x) + uniform(x, 5) + uniform(x, 6)) / 3),
    wrong_below_zero=lambda x, format: with_uniform(x, format, torch.where(x < 0, 1 - uniform(x) ** 2, uniform(x))),
)


@named([BF16, FP16, E4M3])
@pytest.mark.parametrize("plant", PLANTED)
def test_a_planted_bias_is_found(plant, format):
    assert max(bias(PLANTED[plant], format, torch.float32, 60_000)) > 5


@named([BF16, FP16, E4M3])
def test_an_unbiased_other_way_is_not_called_biased(format):
    assert max(bias(lambda x, format: with_uniform(x, format, uniform(x)), format, torch.float32, 60_000)) < 5


@named(MEANT)
@carried
@pytest.mark.parametrize("rest", ["zeros", "ones"])
def test_the_odds_are_exact(format, dtype, rest, monkeypatch):
    """Each 12-bit noise value once: the upper neighbour must come exactly (x − lower)/(upper − lower)·4096 times. The
    mean would not show an error of one, as from < for ≤ or from noise that reaches 2^width.
    """

    def every(x, width, generator):
        low = (1 << width - 12) - 1 if rest == "ones" else 0
        noise = (torch.arange(4096).to(BITS[x.dtype]) << width - 12) + low
        return noise[:, None].expand(x.shape).clone()

    monkeypatch.setattr(formats, "_noise", every)
    table = values(format)
    table = torch.cat([table[:3], table[2**format.mantissa - 1 :][:2], table[len(table) // 2 :][:3], table[-3:-1]])
    low, high = ends(table.nextafter(torch.tensor(INF, dtype=torch.float64)), format)
    inside = high <= format.largest
    low, high = low[inside], high[inside]
    for part in (0, 1, 2, 3, 1000, 2048, 4094, 4095):
        x = (low + (high - low) * (part / 4096)).to(dtype)
        for sign in (1, -1):
            rounded = stochastic((sign * x).expand(4096, -1), format, generator()).double() * sign
            assert ((rounded == low) | (rounded == high)).all()
            assert ((rounded == high).sum(0) == part).all()


@pytest.mark.parametrize(
    "dtype, width", [*((dtype, width) for dtype in CARRIERS for width in (1, 13, 16, 17, 31)), (torch.float64, 63)]
)
def test_noise_is_uniform_and_independent(dtype, width):
    """Draws that are shared between neighbours, or that repeat, still have the right mean everywhere."""
    count = 100_001
    noise = formats._noise(torch.empty(count, dtype=dtype), width, generator(7))
    assert noise.dtype == BITS[dtype] and noise.min() >= 0 and noise.max() <= (1 << width) - 1
    bits = (noise[:, None] >> torch.arange(width)).bitwise_and(1).double() * 2 - 1
    assert bits.mean(0).abs().max() < 5 / math.sqrt(count)
    for lag in range(1, 9):
        assert (bits[lag:] * bits[:-lag]).mean(0).abs().max() < 5 / math.sqrt(count - lag)
    if width > 1:
        assert (bits[:, 1:] * bits[:, :-1]).mean(0).abs().max() < 5 / math.sqrt(count)


@named(MEANT)
@carried
def test_what_the_format_holds_stays(format, dtype):
    inside = values(format)[values(format) <= format.largest].to(dtype)
    inside = torch.cat([inside, -inside, torch.tensor([math.nan, *[INF, -INF] * (not format.finite)], dtype=dtype)])
    for seed in range(5):
        same(stochastic(inside, format, generator(seed)), inside)


@carried
def test_every_nan_stays_nan(dtype):
    """A carry out of an all-ones NaN is −0."""
    nan = torch.tensor([-1, torch.iinfo(BITS[dtype]).max], dtype=BITS[dtype]).view(dtype)
    nan = torch.cat([nan, torch.tensor([math.nan], dtype=dtype)]).repeat(100)
    for format in (*MEANT, format_named((11, 5)), format_named((5, 52))):
        assert stochastic(nan, format, generator()).isnan().all()
        assert nearest(nan, format).isnan().all() and formats._nearest(nan, format).isnan().all()


@named(MEANT)
@carried
def test_past_the_largest_it_is_the_largest_or_out(format, dtype):
    step = values(format)[-1] - format.largest
    x = (format.largest + step * 0.25).to(dtype)
    p = float((x.double() - format.largest) / step)
    out = stochastic(x.expand(40_000), format, generator())
    gone = out.isnan() if format.finite else out == INF
    assert (gone | (out == format.largest)).all()
    assert abs(float(gone.double().mean()) - p) < 5 * math.sqrt(p * (1 - p) / 40_000)
    if format.exponent < 8 or dtype == torch.float64:
        far = torch.tensor([values(format)[-1], 1e38, INF, 2.0**127, torch.finfo(dtype).max], dtype=dtype)
        far = torch.cat([far[far > format.largest], -far[far > format.largest]])
        past = torch.full_like(far, math.nan) if format.finite else far.sign() * INF
        same(stochastic(far, format, generator()), past)
        same(nearest(far, format), past)


@named(MEANT)
@carried
def test_random_values_land_on_a_neighbour(format, dtype):
    """Any pattern of the carrier, half of them in or near the format's range."""
    x = torch.empty(200_000, dtype=BITS[dtype]).random_(generator=generator(1)).view(dtype)
    spread = torch.empty(200_000, dtype=dtype).uniform_(
        math.log2(format.smallest) - 3, math.log2(format.largest), generator=generator(2)
    )
    x = torch.cat([x[x.abs() <= format.largest], spread.exp2()])
    x = torch.cat([x[x <= format.largest], -x[x <= format.largest]])
    low, high = ends(x, format)
    past = math.nan if format.finite else INF
    low, high = (torch.where(end > format.largest, past, end).copysign(x).to(dtype) for end in (low, high))
    rounded = stochastic(x, format, generator(5))
    bits = BITS[dtype]
    fits = (
        (rounded.view(bits) == low.view(bits))
        | (rounded.view(bits) == high.view(bits))
        | (rounded.isnan() & high.isnan())
    )
    assert fits.all()


# Both roundings


ROUNDINGS = dict(nearest=nearest, stochastic=lambda x, format: stochastic(x, format, generator(11)))
LAID_OUT = [BF16, FP16, E4M3, format_named((8, 10)), format_named((8, 2)), format_named((5, 30)), format_named((11, 5))]


@named(LAID_OUT)
@carried
@pytest.mark.parametrize("rounding", ROUNDINGS.values(), ids=ROUNDINGS)
def test_strides_do_not_matter_and_x_is_left_alone(format, dtype, rounding):
    x = torch.randn(12, 10, generator=generator(), dtype=dtype)
    x[0, :3] = torch.tensor([math.nan, INF, -0.0], dtype=dtype)
    for view in (x, x.t(), x[::2, 1::3], x[0].expand(4, 10), x[0, 1], x[:0], x[None].transpose(0, 2), x.flatten()[3:]):
        before = view.clone()
        rounded = rounding(view, format)
        same(view, before)
        same(rounded, rounding(view.contiguous(), format))
    assert not rounding(x.clone().requires_grad_(), format).requires_grad


@named(LAID_OUT)
@carried
def test_a_seed_gives_its_bits_and_nothing_else_is_drawn_from(format, dtype):
    x = torch.randn(1003, generator=generator(), dtype=dtype)
    state = torch.get_rng_state()
    first, again, other = (stochastic(x, format, generator(seed)) for seed in (1, 1, 2))
    same(first, again)
    source = generator(1)
    same(stochastic(x, format, source), first)
    later = stochastic(x, format, source)
    assert torch.equal(torch.get_rng_state(), state)
    if format.mantissa < 23:
        assert not torch.equal(first, other) and not torch.equal(first, later)
