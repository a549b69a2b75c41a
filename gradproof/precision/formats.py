"""Number formats, and rounding of a float32 or float64 carrier to them.

A format of E exponent and M mantissa bits holds ±k·2^(max(e, emin) − M) with 2^e ≤ |x| < 2^(e+1), emin = 2 − 2^(E−1).
nearest:     x → the closest representable value, ties to even k
stochastic:  x → the upper neighbour with probability (x − lower)/(upper − lower), else the lower, so that E[result] = x
The result is detached from the graph of x. It is x itself if the format holds every value of the carrier.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Format:
    """IEEE-like, with subnormals and, unless `finite`, infinities."""

    name: str
    exponent: int
    mantissa: int  # without the hidden bit
    dtype: torch.dtype | None = None  # the torch dtype with exactly these values
    finite: bool = False  # no infinities: the top exponent holds numbers too, and the topmost pattern is NaN
    operands: bool = False  # applies only to the operands of products
    rest: str = ""  # the format of everything else

    @property
    def unit(self) -> float:
        """u = 2^−(M+1), the largest relative error of `nearest` for normal numbers."""
        return math.ldexp(1.0, -self.mantissa - 1)

    @property
    def largest(self) -> float:
        return math.ldexp(2.0 - math.ldexp(1.0, self.finite - self.mantissa), self._emax)

    @property
    def smallest_normal(self) -> float:
        return math.ldexp(1.0, 2 - 2 ** (self.exponent - 1))

    @property
    def smallest(self) -> float:
        """The smallest subnormal, and the distance between subnormals."""
        return math.ldexp(self.smallest_normal, -self.mantissa)

    @property
    def _emax(self) -> int:
        return 2 ** (self.exponent - 1) - 1 + self.finite


FORMATS = {
    format.name: format
    for format in (
        Format("fp64", 11, 52, torch.float64),
        Format("fp32", 8, 23, torch.float32),
        Format("tf32", 8, 10, operands=True, rest="fp32"),
        Format("bf16", 8, 7, torch.bfloat16),
        Format("fp16", 5, 10, torch.float16),
        Format("fp8_e4m3", 4, 3, torch.float8_e4m3fn, finite=True, operands=True, rest="bf16"),
        Format("fp8_e5m2", 5, 2, torch.float8_e5m2, operands=True, rest="bf16"),
    )
}
_STORED = {(format.exponent, format.mantissa): format for format in FORMATS.values() if not format.operands}


def format_named(name: str | Format | tuple[int, int]) -> Format:
    """A known format, or the IEEE-like one with (exponent, mantissa) bits, also written "e5m7"."""
    if isinstance(name, Format):
        return name
    if isinstance(name, str) and name in FORMATS:
        return FORMATS[name]
    if isinstance(name, str) and (matched := re.fullmatch(r"e([0-9]{1,2})m([0-9]{1,2})", name)):
        pair = int(matched[1]), int(matched[2])
    else:
        pair = name
    match pair:
        case (int(exponent), int(mantissa)) if 2 <= exponent <= 11 and 1 <= mantissa <= 52:
            return _STORED.get((exponent, mantissa)) or Format(f"e{exponent}m{mantissa}", exponent, mantissa)
    raise ValueError(
        f"unknown number format {name!r}; use {', '.join(FORMATS)}, or e<2..11>m<1..52> for exponent and mantissa bits"
    )


def nearest(x: Tensor, format: Format) -> Tensor:
    """x rounded to nearest even, in its own dtype.

    From half a quantum above the largest number the result is ±inf. A finite format gives NaN above that, as torch's
    cast did up to 2.11 (2.13 saturates, which would hide the overflow).
    """
    x, carrier = x.detach(), _carrier(x)
    if carrier.within(format):
        return x
    # A single rounding: torch casts double to the narrower types through float, which would round twice.
    if format.dtype and not format.finite and (x.dtype == torch.float32 or format.dtype == torch.float32):
        return x.to(format.dtype).to(x.dtype)
    return _nearest(x, format)


def stochastic(x: Tensor, format: Format, generator: torch.Generator) -> Tensor:
    """x rounded without bias to one of its two neighbours, in its own dtype; representable values stay.

    Above the largest number, the upper neighbour is the next step of the grid, and rounding to it gives ±inf (NaN in a
    finite format). The probability is exact for normal numbers, and has 31 bits (63 in float64) for subnormal ones.
    """
    x, carrier = x.detach(), _carrier(x)
    if carrier.within(format):
        return x
    if carrier.lacks(format):
        return stochastic(x.double(), format, generator).to(x.dtype)
    if format.exponent == carrier.exponent:
        # Bit patterns are ordered like magnitudes: a carry moves to the next binade, and beyond the last one to inf.
        shift = carrier.mantissa - format.mantissa
        bits = _noise(x, shift, generator).add_(x.view(carrier.bits)).bitwise_and_(-1 << shift)
        return _keep_nan(bits.view(x.dtype), x)
    quantum = _power(x, format).mul_(2.0**-format.mantissa)
    steps = x.abs().div_(quantum)
    below = steps.floor()
    width = carrier.exponent + carrier.mantissa  # every bit but the sign, which then tells whether noise < chance
    chance = steps.sub_(below).mul_(2.0**width).to(carrier.bits)  # arbitrary for inf and NaN: `below` stays unchanged
    # As the bit pattern of 1.0 or 0.0: adding a mask to floats costs as much as the draw.
    up = _noise(x, width, generator).sub_(chance).bitwise_right_shift_(width).bitwise_and_(carrier.one)
    return _signed(below.add_(up.view(x.dtype)).mul_(quantum).neg_(), x, format)


class _Carrier(NamedTuple):
    bits: torch.dtype
    exponent: int
    mantissa: int

    @property
    def one(self) -> int:
        return ((1 << self.exponent - 1) - 1) << self.mantissa

    def within(self, format: Format) -> bool:
        return format.exponent >= self.exponent and format.mantissa >= self.mantissa

    def lacks(self, format: Format) -> bool:
        """float32 lacks bits for a format with more bits of one kind and fewer of the other; float64 has enough."""
        return self.exponent == 8 and (format.exponent > 8 or format.mantissa >= 23)


_CARRIERS = {torch.float32: _Carrier(torch.int32, 8, 23), torch.float64: _Carrier(torch.int64, 11, 52)}


def _carrier(x: Tensor) -> _Carrier:
    if x.dtype not in _CARRIERS:
        raise ValueError(f"rounding needs float32 or float64, got {str(x.dtype).removeprefix('torch.')}")
    return _CARRIERS[x.dtype]


def _nearest(x: Tensor, format: Format) -> Tensor:
    """`nearest` for any numbers of bits, without torch's casts."""
    carrier = _carrier(x)
    if carrier.lacks(format):
        return _nearest(x.double(), format).to(x.dtype)
    shift = carrier.mantissa - format.mantissa
    if format.exponent == carrier.exponent:
        # Just under half a quantum, plus the quantum's own bit: this carries above half, and on a tie if odd.
        bits = x.view(carrier.bits) >> shift
        bits.bitwise_and_(1).add_(x.view(carrier.bits)).add_((1 << shift - 1) - 1).bitwise_and_(-1 << shift)
        return _keep_nan(bits.view(x.dtype), x)
    # −|x| − c + c, with c so large that its last bit in the carrier is the format's last bit at x.
    c = _power(x, format).mul_(2.0**shift)
    if shift == 0:  # normal numbers are exact
        c.masked_fill_(x.abs() >= format.smallest_normal, 0)
    return _signed(x.abs().neg_().sub_(c).add_(c), x, format)


def _power(x: Tensor, format: Format) -> Tensor:
    """2^max(e, emin), at most 2^(emax+1), which is already out of range."""
    carrier = _carrier(x)
    mask = ((1 << carrier.exponent) - 1) << carrier.mantissa
    power = x.view(carrier.bits).bitwise_and(mask).view(x.dtype)
    return power.clamp_(format.smallest_normal, 2.0 ** (format._emax + 1))


def _signed(minus: Tensor, x: Tensor, format: Format) -> Tensor:
    """−|rounded| with the sign of x; out-of-range values as the format has them. `threshold` keeps NaN."""
    step = math.ldexp(1.0, format._emax - format.mantissa)
    torch.threshold_(minus, -(format.largest + step), math.nan if format.finite else -math.inf)
    return minus.copysign_(x)


def _keep_nan(rounded: Tensor, x: Tensor) -> Tensor:
    """Restores NaN, since a carry may have changed its bit pattern."""
    return rounded.masked_fill_(x.isnan(), math.nan)


def _noise(x: Tensor, width: int, generator: torch.Generator) -> Tensor:
    """Uniform integers below 2^width, in the shape and order of x, independent of its strides."""
    dtype = _carrier(x).bits
    # Draws dominate the time, so 64 bits are split into two or four numbers if that is enough.
    lane = torch.int16 if width <= 16 else dtype
    drawn = torch.empty(-(-x.numel() * lane.itemsize // 8), dtype=torch.int64, device=x.device)
    drawn.random_(-(1 << 63), None, generator=generator)
    return drawn.view(lane)[: x.numel()].view(x.shape).to(dtype).bitwise_and_((1 << width) - 1)
