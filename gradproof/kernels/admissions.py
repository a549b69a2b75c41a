"""Admissions: chooses how each op runs: a variant that its contract has admitted on the path of the call, or the
reference.

An admission holds for (op, kernel, path, dtype) under the machine's fingerprint, and is earned by the contract's claims
on examples that take that very path. Among admitted variants the order of the packages decides, or what `gradproof
bench --tune` measured. A refused variant is logged with the claim that failed, and never runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import torch

from gradproof import ops
from gradproof.contract import Contract, Evidence, Example
from gradproof.kernels import cache
from gradproof.kernels.paths import Path, path_of, shallow, smallest, widths
from gradproof.kernels.shapes import MIXTURES, STAYING, TOKEN_OPS, Shape
from gradproof.kernels.variants import REFERENCE, Kernels, Variant, offered
from gradproof.kernels.workspace import Workspace
from gradproof.ops.mixture import Mixture
from gradproof.ops.reading import Reader
from gradproof.ops.route import Routing
from gradproof.proof.admission import KernelTrial, admit
from gradproof.proof.examples import examples
from gradproof.proof.judge import worst_of_each

MOST_WORK = {"cpu": 1e10, "cuda": 1e13}  # multiply-adds of a call that is judged at its own size
HEAVY = {"cpu": 8_000_000, "cuda": 200_000_000}  # parameters, above which one call at the real widths must do
FEW_ROWS = (7, 33)  # of a contract's examples on a GPU, where every other width would have to be compiled for


@dataclass(frozen=True)
class Admission:
    """A variant on one path, judged. `reason` is the failed claim, or why it cannot run."""

    op: str
    kernel: str
    admitted: bool
    reason: str
    evidence: tuple[Evidence, ...] = ()


def _say(sentence: str) -> None:
    print(f"gradproof: {sentence}", file=sys.stderr, flush=True)


say: Callable[[str], None] = _say  # what is told while kernels are being proven; a command may put its own here
_judged: dict[str, Admission] = {}
_told: set[str] = set()  # what is missing on this machine and has been said


def choose(
    shape: Shape, workspace: Workspace | None = None, only: Mapping[str, str] | None = None, fused: bool = True
) -> Kernels:
    """The kernels for a shape; `only` asks for particular ones (a run that resumes), each still by admission."""
    if os.environ.get("GRADPROOF_KERNELS") == "reference":
        return REFERENCE
    wanted = {
        op: [v for v in variants(op, shape) if only is None or v.kernel == only.get(op)]
        for op in ((*shape.ops, *shape.fused) if fused else shape.ops)
    }
    _tell_missing(shape)
    new = announce([v for listed in wanted.values() for v in listed[:1]], shape)
    if new and shape.device == "cuda":
        _compile(new, shape)
    chosen = {op: next((v for v in listed if admission(v, shape).admitted), None) for op, listed in wanted.items()}
    # What reads nothing on the host can be captured in a graph.
    whole = shape.device == "cuda" and all(
        op in STAYING if v is None else not (v.host and shape.experts > 1)
        for op, v in ((op, chosen[op]) for op in shape.ops)
    )
    names = {op: v.kernel for op, v in chosen.items() if v is not None}
    return replace(Kernels.of(names, workspace, shape.ops), capturable=whole)


def announce(listed: list[Variant], shape: Shape) -> list[Variant]:
    """Says so where kernels must be proven first, and returns them: it takes up to a minute, once for a size."""
    new = [
        v for v in listed if (key := _key(path_of(v, shape))) not in _judged and cache.load("admissions", key) is None
    ]
    if new:
        counted = f"{len(new)} kernel{'s' * (len(new) > 1)}"
        say(f"proving {counted} for this machine and model size, once; this can take a minute")
    return new


def _tell_missing(shape: Shape) -> None:
    """Says once a process that a CPU runs without its compiled kernels: nothing else shows it but the time."""
    if shape.device != "cpu":
        return
    for op in shape.ops:
        for v in offered(op, shape):
            reason = v.missing() if v.kernel == "cpu" else None
            if reason is not None and reason not in _told:
                _told.add(reason)
                say(f"{reason} (PyTorch operations run instead, which are slower)")


def _compile(listed: list[Variant], shape: Shape) -> None:
    """All that the trials of these will launch, side by side; what cannot be is compiled when it is met."""
    from gradproof.kernels.triton.compiling import compiling

    with torch.inference_mode(False), torch.no_grad(), suppress(Exception), compiling():
        for v in listed:
            dtype = getattr(torch, shape.dtype_of(v.op))
            for example in (*of_contract(v, shape), *_not_heavy(v, shape)):
                with suppress(Exception):
                    KernelTrial(ops.load(v.op), v.module, example, dtype, shape.device, Workspace).every_way()


def _not_heavy(variant: Variant, shape: Shape) -> Iterator[Example]:
    heavy = variant.op == "experts" and shape.parameters > HEAVY[shape.device]
    return iter(()) if heavy else at_shape(variant, shape)


def survey(shape: Shape) -> list[dict[str, Any]]:
    """Every variant that is made for a shape, in the order in which they would be taken: admitted, refused with the
    claim that failed, or missing on this machine with the reason."""
    listed, named = [], (*shape.ops, *shape.fused)
    announce([v for op in named for v in offered(op, shape) if v.missing() is None and v.fits(shape)], shape)
    for op in named:
        for v in offered(op, shape):
            missing = v.missing()
            if missing is None and not v.fits(shape):
                continue
            judged = Admission(op, v.kernel, False, missing) if missing else admission(v, shape)
            status = "missing" if missing else "admitted" if judged.admitted else "refused"
            figures = {"claims": len(judged.evidence), "reason": judged.reason}
            evidence = [asdict(e) for e in judged.evidence]
            path = {} if missing else dict(path_of(v, shape).facts)
            about = {"op": op, "kernel": v.kernel, "dtype": shape.dtype_of(op), "status": status, "path": path}
            listed.append({**about, **figures, "evidence": evidence})
    return listed


def variants(op: str, shape: Shape) -> list[Variant]:
    """Those that could serve, best first."""
    able = [v for v in offered(op, shape) if v.missing() is None and v.fits(shape)]
    order = tuned(op, shape)
    slower = order[order.index("reference") :] if "reference" in order else []
    able = [v for v in able if v.kernel not in slower]
    return sorted(able, key=lambda v: order.index(v.kernel) if v.kernel in order else len(order))


def admission(variant: Variant, shape: Shape) -> Admission:
    """Judged once a process, and once for all where the cache can be written."""
    key = _key(path_of(variant, shape))
    if key not in _judged:
        _judged[key] = _remembered(key) or _judge(variant, shape, key)
        if not _judged[key].admitted:
            cache.LOG.warning("%s of %s does not run: %s", variant.kernel, variant.op, _judged[key].reason)
    return _judged[key]


def _key(path: Path) -> str:
    return cache.key_text({"path": asdict(path), **cache.fingerprint(path.device)})


def _remembered(key: str, kind: str = "admissions") -> Admission | None:
    record = cache.load(kind, key)
    try:
        evidence = [Evidence(**{**e, "shape": tuple(map(tuple, e["shape"]))}) for e in (record or {}).pop("evidence")]
        judged = Admission(**(record or {}), evidence=tuple(evidence))
        return judged if evidence or not judged.admitted else None
    except (TypeError, KeyError):
        return None


def _judge(variant: Variant, shape: Shape, key: str) -> Admission:
    """By the contract's own examples, which are the same for every path that has their options, and by calls that take
    this path."""
    missing = variant.missing()
    if missing is not None:
        return Admission(variant.op, variant.kernel, False, missing)
    path = path_of(variant, shape)
    if shape.device == "cuda":
        facts = {**widths(variant.op, shape), "rows": _rows_of_examples(variant, shape)}
        shared = replace(path, facts=tuple(sorted(facts.items())))
    elif options_in_contract(variant, shape):  # this shape's own options are among the examples
        shared = path
    else:
        shared = replace(path, facts=(("threads", shape.threads),))
    contract_key = cache.key_text({"contract": asdict(shared), **cache.fingerprint(shape.device)})
    judged = _remembered(contract_key, "contracts") or _tried(variant, shape, of_contract(variant, shape), contract_key)
    if judged.admitted:
        at_size = _tried(variant, shape, at_shape(variant, shape), "")
        judged = replace(at_size, evidence=tuple(worst_of_each([*judged.evidence, *at_size.evidence])))
    cache.keep("admissions", key, asdict(judged))
    return judged


def _tried(variant: Variant, shape: Shape, tried: Iterator[Example], key: str) -> Admission:
    """Judged on these examples, with the threads of the shape; kept under `key`, if there is one."""
    dtype = getattr(torch, shape.dtype_of(variant.op))
    how: dict[str, Any] = dict(dtype=dtype, device=shape.device, kernel=variant.kernel, workspace=Workspace)
    before = torch.get_num_threads()
    torch.set_num_threads(shape.threads)
    try:
        with torch.inference_mode(False), torch.no_grad():  # whatever the caller has switched on
            evidence = tuple(admit(ops.load(variant.op), variant.module, tried, **how))
    except Exception as error:
        return Admission(variant.op, variant.kernel, False, f"it stopped with {type(error).__name__}: {error}")
    finally:
        torch.set_num_threads(before)
    failed = next((e for e in evidence if e.status == "refuted"), None)
    reason = "" if failed is None else _sentence(failed)
    judged = Admission(variant.op, variant.kernel, failed is None, reason, tuple(worst_of_each(evidence)))
    if key:
        cache.keep("contracts", key, asdict(judged))
    return judged


def _sentence(e: Evidence) -> str:
    about = f" of {e.value}" if e.value else ""
    return f"{e.claim}{about} on {e.example} ({e.dtype}, {e.device}): {e.measured:.2g} is above {e.bound:.2g}"


def options_in_contract(variant: Variant, shape: Shape) -> bool:
    """Whether `of_contract` has this shape's options in its examples."""
    contract = ops.load(variant.op).CONTRACT
    some = any(not variant.serves(own.get("chain", shape.chain)) for own in contract.options)
    return variant.op == "route" or (contract.edges_at is not None and some)


def of_contract(variant: Variant, shape: Shape) -> Iterator[Example]:
    """The contract's own examples; where the variant is not made for all of their options, the same sizes and edges at
    this shape's."""
    op, contract = variant.op, ops.load(variant.op).CONTRACT
    options = options_at(op, shape)
    if shape.device == "cuda":
        contract = _compiled_for(variant, shape, contract)
    elif op == "route":  # every option is another kernel: this shape has one
        contract = replace(contract, options=options, sizes={**contract.sizes, "E": (shape.experts,)})
    elif contract.edges_at is not None and options_in_contract(variant, shape):
        options = options_at(op, shallow(shape))
        contract = replace(contract, options=options, edges=contract.edges_at(options[0]))
    yield from _settled(examples(op, contract, 0, most=1), contract)


def at_shape(variant: Variant, shape: Shape) -> Iterator[Example]:
    """Calls that take the path of this shape: with its own rows, or as few as take it where those are too much work;
    and a call with hardly any."""
    op, contract = variant.op, ops.load(variant.op).CONTRACT
    at = shape if _work(op, shape) <= MOST_WORK[shape.device] else smallest(variant, shape)
    options = options_at(op, at) or contract.options
    heavy = shape.parameters > HEAVY[shape.device]
    few = _rows_of_examples(variant, shape)[-1] if shape.device == "cuda" else 3
    for rows in dict.fromkeys((at.rows,) if heavy else (at.rows, min(at.rows, few))):
        sizes = {axis: (size,) for axis, size in sizes_at(replace(at, rows=rows)).items() if axis in contract.sizes}
        here = replace(contract, sizes=sizes, options=options, edges=())
        yield from _settled(examples(f"{op} {rows}", here, 1, device=shape.device), contract)


def _compiled_for(variant: Variant, shape: Shape, contract: Contract) -> Contract:
    """The contract at this shape's widths and options, on rows that take the same path where others would have to be
    compiled for; its edges with them, where they have as many experts."""
    op, at = variant.op, shape if variant.kernel == "triton" else shallow(shape)
    options, T = options_at(op, at), _rows_of_examples(variant, shape)
    own = {axis: (size,) for axis, size in sizes_at(at).items() if axis in contract.sizes and axis in "EKIOCVDF"}
    edges = contract.edges
    if contract.edges_at is not None:
        known = dict(T=T[-1], E=shape.experts, K=shape.k, O=shape.chain.widths[-1])
        edges = contract.edges_at((options or contract.options)[0], known)
    if op == "route":
        edges = tuple(_with_options(edge, options[0]) for edge in edges) if shape.experts == 4 else ()
    sizes = {**contract.sizes, **own, **({"T": T} if "T" in contract.sizes else {})}
    return replace(contract, sizes=sizes, options=options or contract.options, edges=edges)


def _rows_of_examples(variant: Variant, shape: Shape) -> tuple[int, ...]:
    if variant.kernel != "triton":
        return FEW_ROWS
    near, path = (shape.rows - 1, shape.rows // 2 + 1, *FEW_ROWS), path_of(variant, shape)
    same = [rows for rows in near if rows > 0 and path_of(variant, replace(shape, rows=rows)) == path]
    return tuple(dict.fromkeys(same[-2:])) or (shape.rows,)


def _with_options(edge: Callable[[Any], Example], options: Mapping[str, Any]) -> Callable[[Any], Example]:
    def example(generator: Any) -> Example:
        own = edge(generator)
        return replace(own, options={**own.options, **options})

    return example


def _settled(drawn: Iterator[Example], contract: Contract) -> Iterator[Example]:
    """No near-ties, unless an example is about ties."""
    for example in drawn:
        settle = contract.settled if example.smooth else None
        yield example if settle is None else replace(example, arguments=settle(example.arguments, example.options))


def options_at(op: str, shape: Shape) -> tuple[dict[str, Any], ...]:
    """The options that a call of this shape has."""
    chain, routing, block = shape.chain, shape.routing or Routing(shape.k), shape.block
    if op == "experts":
        return (dict(chain=chain),)
    if op == "route":
        return (dict(routing=routing),)
    if op in MIXTURES:
        return (dict(mixture=Mixture(shape.experts, chain, routing)),)
    if op == "attention" and block is not None:
        return tuple(dict(heads=block.heads, causal=causal) for causal in sorted({False, block.causal}))
    if op == "reading" and block is not None:
        widths = (block.vocabulary, block.width, block.heads, block.layers, block.inner, block.context)
        return (dict(reader=Reader(*widths, chain.widths[-1])),)
    return ()


def sizes_at(shape: Shape) -> dict[str, int]:
    """The size of each axis in a call of this shape."""
    inputs, outputs = shape.chain.widths[0], shape.chain.widths[-1]
    sizes = dict(T=shape.rows, E=shape.experts, K=shape.k, I=inputs, O=outputs, C=max(outputs, 2))
    sizes["P"] = shape.parameters - shape.parameters % 64
    if shape.block is not None:
        block = shape.block
        places = max(1, block.context)
        sizes |= dict(T=shape.tokens, V=block.vocabulary, D=block.width, F=block.inner, S=places, L=places)
        sizes["B"] = shape.rows
    return sizes


def _work(op: str, shape: Shape) -> float:
    """Multiply-adds of a forward, or numbers that are moved."""
    if op in ("adamw", "update"):
        return MOST_WORK[shape.device] * shape.parameters / 1e6
    if shape.block is not None and op in (*TOKEN_OPS[:4], "reading"):
        block = shape.block
        own = block.width * (4 * block.width + 2 * block.inner + 2 * block.context)
        return float(shape.tokens * own * max(1, block.layers if op == "reading" else 1))
    products = sum(a * b for a, b in pairwise(shape.chain.widths))
    return float(shape.rows * shape.k * products) if op in ("experts", *MIXTURES) else float(shape.rows * 1000)


def tuned(op: str, shape: Shape) -> list[str]:
    """The order that `gradproof bench --tune` measured for this shape here, or none."""
    kept = cache.load("orders", _order_key(op, shape))
    return list(kept["order"]) if kept else []


def tune(op: str, shape: Shape, order: list[str]) -> None:
    """Keeps a measured order, fastest first."""
    cache.keep("orders", _order_key(op, shape), {"order": order})


def _order_key(op: str, shape: Shape) -> str:
    return cache.key_text(
        {"op": op, "shape": asdict(replace(shape, ops=(), fused=())), **cache.fingerprint(shape.device)}
    )
