"""One training step on one batch as a function: mixture, cross-entropy, their backward, and the optimizer update.

    y, gates, aux = mixture(x);   L = cross_entropy(y, target) + aux;   g = scale·∂L/∂p
    p, m, v, count, skips by ops/update.py;   entropy = −Σ q log q/T, of the router's distribution q

Each part is an op with its own proven backward; this one defines their composition.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import Parameter, signature
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradproof.contract import Contract, Example
from gradproof.ops import adamw, cross_entropy, update
from gradproof.ops import mixture as mixtures
from gradproof.ops.adamw import BETAS, DECAY, EPS
from gradproof.ops.mixture import Mixed, Mixture


class Learnt(NamedTuple):
    """What a step reports."""

    loss: Tensor  # including the auxiliary terms
    gates_TE: Tensor
    norm: Tensor  # before clipping
    load_E: Tensor
    entropy: Tensor
    skipped: Tensor


class Lesson(NamedTuple):
    """What a step changes, and what it reports."""

    p_P: Tensor
    g_P: Tensor  # times `scale`
    m_P: Tensor
    v_P: Tensor
    count: Tensor  # pyright: ignore[reportIncompatibleMethodOverride]
    skips: Tensor
    loss: Tensor
    gates_TE: Tensor
    norm: Tensor
    load_E: Tensor
    entropy: Tensor
    skipped: Tensor


def forward(
    p_P: Tensor,
    m_P: Tensor,
    v_P: Tensor,
    decayed_B: Tensor,
    count: Tensor,
    skips: Tensor,
    rate: Tensor,
    scale: Tensor,
    x_TI: Tensor,
    target_T: Tensor,
    c_E: Tensor | None,
    mixture: Mixture,
    clip: float | None = None,
    betas: tuple[float, float] = BETAS,
    eps: float = EPS,
    weight_decay: float = DECAY,
) -> tuple[Lesson, None]:
    """Runs the parts in order."""
    (y_TO, gates_TE, aux), saved = mixtures.forward(x_TI, p_P, c_E, mixture)
    loss, kept = cross_entropy.forward(y_TO, target_T)
    dy = Mixed(cross_entropy.backward(scale, kept, y_TO, target_T), None, scale)  # pyright: ignore[reportArgumentType]
    _, g_P = mixtures.backward(dy, saved, x_TI, p_P, mixture, want_dx=False)
    scalars, how = (count, skips, rate, scale, loss + aux), (clip, betas, eps, weight_decay)
    ended, _ = update.forward(p_P, g_P, m_P, v_P, decayed_B, *scalars, *how)
    entropy = torch.special.entr(saved.q_TE).sum() / x_TI.shape[0]
    learnt = Learnt(loss + aux, gates_TE, ended.norm, saved.load_E, entropy, ended.skipped)
    return Lesson(ended.p_P, g_P, ended.m_P, ended.v_P, ended.count, ended.skips, *learnt), None


def out_of_place(step: Callable[..., Learnt]) -> Callable[..., tuple[Lesson, None]]:
    """Turns a kernel's step into a function like `forward`. The kernel also takes a buffer `g_P` to write to, and
    updates the others in place.
    """

    @wraps(forward)
    def called(*args: Any, workspace: Any = None, **given: Any) -> tuple[Lesson, None]:
        bound, own = update.with_copies(forward, args, given)
        own["g_P"] = torch.zeros_like(own["p_P"])
        learnt = step(**bound, **own, workspace=workspace)
        return Lesson(**own, **learnt._asdict()), None

    own_signature = signature(forward)
    more = Parameter("workspace", Parameter.KEYWORD_ONLY, default=None)
    called.__signature__ = own_signature.replace(parameters=[*own_signature.parameters.values(), more])  # pyright: ignore
    return called


def _state(mixture: Mixture, rows: int, generator: torch.Generator) -> dict[str, Any]:
    """Moments and counters of a training run in progress, and targets."""
    sizes, classes = dict(P=mixture.offsets[-1]), mixture.chain.widths[-1]
    drawn = adamw.CONTRACT.draw(sizes, generator, {})  # pyright: ignore[reportOptionalCall]
    kept = {name: drawn[name] for name in ("m", "v", "decayed", "count", "rate")}
    scalars = {name: torch.tensor(value, dtype=torch.float64) for name, value in (("skips", 2.0), ("scale", 1.0))}
    return {**kept, **scalars, "target": torch.randint(classes, (rows,), generator=generator)}


def _draw(sizes: Any, generator: torch.Generator, options: Any) -> dict[str, Any]:
    mixture: Mixture = options["mixture"]
    given = mixtures.CONTRACT.draw(sizes, generator, options)  # pyright: ignore[reportOptionalCall]
    return {**_state(mixture, sizes["T"], generator), "p": given["theta"], "x": given["x"], "c": given["c"]}


def _at(edge: Callable[[torch.Generator], Example], **more: Any) -> Callable[[torch.Generator], Example]:
    """A training step on an edge case of the mixture."""

    def example(generator: torch.Generator) -> Example:
        given = edge(generator)
        state = _state(given.options["mixture"], given.arguments["x"].shape[0], generator)
        own = {"p": given.arguments["theta"], "x": given.arguments["x"], "c": given.arguments["c"]}
        return Example(given.label, {**state, **own}, {**given.options, **more}, given.smooth)

    return example


def _scaled(generator: torch.Generator) -> Example:
    """A loss scale, removed before the gradient is clipped."""
    example = _at(mixtures.EDGES[1], clip=0.05)(generator)
    scale = torch.tensor(1024.0, dtype=torch.float64)
    return Example("scaled", {**example.arguments, "scale": scale}, example.options)


def _settled(arguments: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    x_TI = mixtures.settled({**arguments, "theta": arguments["p"]}, options)["x"]
    return {**arguments, "x": x_TI}


def _by_name(theta_P: Tensor, options: Any) -> dict[str, Tensor]:
    return options["mixture"].by_name(theta_P)


CONTRACT = Contract(
    shapes="p[P] m[P] v[P] decayed count skips rate scale x[T,I] target[T] c[E] -> p[P] g[P] m[P] v[P] count[] skips[]"
    " loss[] gates[T,E] norm[] load[E] entropy[] skipped[]",
    sizes=dict(T=(1, 33)),
    grads=(),
    draw=_draw,
    options=(
        *(options for options in mixtures.CONTRACT.options if options["mixture"].chain.widths[-1] > 1),
        {**mixtures.CONTRACT.options[0], "clip": 0.1, "weight_decay": 0.3, "betas": (0.5, 0.9), "eps": 1e-3},
    ),
    claims=(),
    edges=(*(_at(edge) for edge in mixtures.EDGES), _scaled),
    parts={f"output {i}": _by_name for i in range(4)},
    settled=_settled,
)
