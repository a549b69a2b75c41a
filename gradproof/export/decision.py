"""Decision: maps codes and numbers of rows to probabilities and metrics, defined once for every format.

    x = one-hot | (v − mean)/std or place | pieces | p-adic | flags | levels as data/encoders.py
    gates on the K largest scores, y_m = Σ_e gate_e·f_e(x)                   as models/moe.py; every expert is computed
    y = log mean_m softmax(y_m),  p = softmax(y/temperature)                 as ops/vote.py

`ops` are the functions of a format, `c` its constants; values have Python's operators. Experts are chosen by counting
those before them, not by sorting: so on a tie the lower index wins in every format.

T rows; the other letters as in frozen.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from gradproof.data.encoders import FAR
from gradproof.export.frozen import AT_ONCE, BASE, Frozen
from gradproof.ops.gelu import CUBIC, SCALE
from gradproof.ops.layernorm import EPS
from gradproof.ops.route import Routing

Computed = Any
OFF = -1e30  # a logit whose softmax is exactly 0


class Ops(Protocol):
    """What a format must be able to do beside + − · / @ and the comparisons. Softmax is over the last axis."""

    def take(self, x: Computed, index: Computed, /) -> Computed: ...  # columns of a matrix
    def look_up(self, table: Computed, index: Computed, /) -> Computed: ...
    def cast(self, x: Computed, dtype: str, /) -> Computed: ...
    def join(self, parts: list[Computed], /) -> Computed: ...  # columns side by side
    def where(self, condition: Computed, x: Computed, y: Computed, /) -> Computed: ...
    def both(self, x: Computed, y: Computed, /) -> Computed: ...
    def either(self, x: Computed, y: Computed, /) -> Computed: ...
    def is_nan(self, x: Computed, /) -> Computed: ...
    def clip(self, x: Computed, low: float, high: float, /) -> Computed: ...
    def round(self, x: Computed, /) -> Computed: ...  # halves to even
    def sign(self, x: Computed, /) -> Computed: ...
    def absolute(self, x: Computed, /) -> Computed: ...
    def remainder(self, x: Computed, by: int, /) -> Computed: ...  # of integers that are not negative
    def quotient(self, x: Computed, by: int, /) -> Computed: ...
    def exp(self, x: Computed, /) -> Computed: ...
    def log(self, x: Computed, /) -> Computed: ...
    def tanh(self, x: Computed, /) -> Computed: ...
    def sqrt(self, x: Computed, /) -> Computed: ...
    def sigmoid(self, x: Computed, /) -> Computed: ...
    def log_sigmoid(self, x: Computed, /) -> Computed: ...
    def softmax(self, x: Computed, /) -> Computed: ...
    def log_softmax(self, x: Computed, /) -> Computed: ...
    def total(self, x: Computed, axis: int, /, keep: bool = False) -> Computed: ...
    def mean(self, x: Computed, axis: int, /, keep: bool = False) -> Computed: ...
    def most(self, x: Computed, axis: int, /) -> Computed: ...  # keeps the axis
    def widen(self, x: Computed, axis: int, /) -> Computed: ...  # one more axis, of length 1
    def swap(self, x: Computed, /) -> Computed: ...  # the last two axes
    def columns(self, x: Computed, start: int, stop: int, /) -> Computed: ...  # of the last axis


def decide(
    ops: Ops, c: Mapping[str, Computed], frozen: Frozen, codes_TC: Computed, numbers_TN: Computed
) -> tuple[Computed, Computed | None]:
    """probability_TC, and metrics_TM in their own units where there are metrics."""
    x_TI = _inputs(ops, c, codes_TC, numbers_TN)
    f_METO = _chain(ops, c, frozen, x_TI)
    if frozen.routing is None:
        y_MTO = ops.total(f_METO, 1)
    else:
        gates_MTE = _gates(ops, c, frozen.routing, _router(ops, c, frozen, x_TI))
        y_MTO = ops.total(ops.widen(ops.swap(gates_MTE), 3) * f_METO, 1)
    l_MTC = ops.log_softmax(ops.columns(y_MTO, 0, frozen.classes))
    # The mean over members, in logarithms; how many they are changes no softmax.
    most_1TC = ops.most(l_MTC, 0)
    y_TC = ops.log(ops.total(ops.exp(l_MTC - most_1TC), 0)) + ops.total(most_1TC, 0)
    probability_TC = ops.softmax(y_TC / c["temperature"])
    if "low" not in c:
        return probability_TC, None
    metrics_TM = ops.mean(ops.columns(y_MTO, frozen.classes, frozen.chain.widths[-1]), 0)
    return probability_TC, ops.cast(metrics_TM, "float64") * c["span"] + c["low"]


def _inputs(ops: Ops, c: Mapping[str, Computed], codes_TC: Computed, v_TN: Computed) -> Computed:
    parts = []
    if "hot_slot" in c:
        parts.append(ops.take(codes_TC, c["hot_column"]) == c["hot_slot"])
    if "mean" in c:
        parts.append(ops.clip(_known(ops, (v_TN - c["mean"]) / c["std"]), -FAR, FAR))
    if "piece_number" in c:
        u_TP = (ops.take(v_TN, c["piece_number"]) - c["piece_start"]) / c["piece_width"]
        u_TP = ops.clip(_known(ops, u_TP), 0.0, 1.0)
        if "place" in c:
            place_TN = ops.where(ops.is_nan(v_TN), 0.0, u_TP @ c["place_step"] + c["place_first"])
            parts[-1] = ops.where(c["place"], place_TN, parts[-1])
        parts.append(u_TP * c["piece_loud"])
    if "digit_number" in c:
        parts += _digits(ops, c, ops.take(v_TN, c["digit_number"]))
    if "flag_number" in c:
        flag_TF = ops.is_nan(ops.take(v_TN, c["flag_number"]))
        parts.append(ops.where(flag_TF, c["flag_loud"], 0.0))
    if "level" in c:
        parts.append(ops.where(ops.take(v_TN, c["level_number"]) == c["level"], c["level_loud"], 0.0))
    return ops.join([ops.cast(part, "float32") for part in parts])


def _known(ops: Ops, x: Computed) -> Computed:
    """0 where there is no number."""
    return ops.where(ops.is_nan(x), 0.0, x)


def _digits(ops: Ops, c: Mapping[str, Computed], v_TD: Computed) -> list[Computed]:
    """The p-adic columns: see ops/padic.py."""
    n_TD = ops.round(v_TD * c["digit_unit"])
    n_TD = ops.where(ops.absolute(n_TD) < 2.0**63, n_TD, 0.0)
    rest_TD, size, columns = ops.cast(ops.absolute(n_TD), "int64"), BASE**AT_ONCE, []
    for _ in range(2):
        turned_TD = 0.0
        for _ in range(2):
            turned_TD = ops.cast(ops.look_up(c["turned"], ops.remainder(rest_TD, size)), "float64") + turned_TD * size
            rest_TD = ops.quotient(rest_TD, size)
        columns.append(ops.sign(n_TD) * turned_TD / float(size * size))
    if "digit_long" not in c:
        return columns[:1]
    return [columns[0], ops.take(columns[1], c["digit_long"])]


def _chain(ops: Ops, c: Mapping[str, Computed], frozen: Frozen, x: Computed) -> Computed:
    """f_METO: every expert on every row."""
    for i, active in enumerate(frozen.chain.active):
        x = x @ c[f"w{i}"] + c[f"b{i}"]
        x = x - ops.mean(x, -1, keep=True)
        x = x / ops.sqrt(ops.mean(x * x, -1, keep=True) + EPS) * c[f"g{i}"] + c[f"h{i}"]
        if active:
            x = x * 0.5 * (ops.tanh((x + x * x * x * CUBIC) * SCALE) + 1.0)
    last = frozen.chain.layers
    return x @ c[f"w{last}"] + c[f"b{last}"]


def _router(ops: Ops, c: Mapping[str, Computed], frozen: Frozen, x_TI: Computed) -> Computed:
    """z_MTE."""
    z_MTX = x_TI @ c["router_w"] + c["router_b"]
    if not frozen.glued:
        return z_MTX
    if "disagree" in c:
        found_MTY = z_MTX @ c["disagree"]
        a_MTU = ops.softmax((found_MTY * found_MTY) @ c["edge_share"] * -1.0)
        z_MTX = (a_MTU @ c["patch_spread"]) * (z_MTX @ c["diffuse"])
    return z_MTX @ c["patch_sum"]


def _gates(ops: Ops, c: Mapping[str, Computed], routing: Routing, z_MTE: Computed) -> Computed:
    softmax = routing.scores == "softmax"
    score_MTE = ops.softmax(z_MTE) if softmax else ops.sigmoid(z_MTE)
    chosen_MTE = _rank(ops, c, score_MTE + c["correction"] if "correction" in c else score_MTE) < routing.k - 0.5
    if not routing.renormalise:
        return ops.where(chosen_MTE, score_MTE, 0.0)
    l_MTE = z_MTE if softmax else ops.log_sigmoid(z_MTE)
    return ops.softmax(ops.where(chosen_MTE, l_MTE, OFF))


def _rank(ops: Ops, c: Mapping[str, Computed], score_MTE: Computed) -> Computed:
    """How many experts come before each one: those that score higher, and on a tie those of a lower index."""
    own, other = ops.widen(score_MTE, 3), ops.widen(score_MTE, 2)
    before = ops.either(other > own, ops.both(other == own, c["lower"]))
    return ops.total(ops.cast(before, "float32"), 3)
