"""Which way each op is run: a variant that its contract has admitted, or the reference.

A variant is admitted for (op, device, dtype, shape class) by running the op's contract there, at the widths that it
will meet. Among admitted ones the order of `VARIANTS` decides, or what `gradproof bench --tune` measured. Admissions
are kept in the user's cache; a refused variant is logged with the claim that failed, and never runs.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from gradproof import ops
from gradproof.contract import Evidence, Example
from gradproof.files import write_atomically
from gradproof.kernels.workspace import Workspace
from gradproof.ops.experts import Chain
from gradproof.ops.mixture import Mixture, MixtureOps
from gradproof.ops.reading import Reader
from gradproof.ops.route import Routing
from gradproof.proof.admission import admit
from gradproof.proof.examples import examples
from gradproof.proof.judge import worst_of_each
from gradproof.proof.verdict import environment, versions

ROW_OPS = ("route", "dispatch", "experts", "combine", "cross_entropy", "adamw")  # of a model that reads records
TOKEN_OPS = ("embedding", "layernorm", "attention", "ffn", "cross_entropy", "adamw")  # of one that reads tokens
OPS = tuple(dict.fromkeys(ROW_OPS + TOKEN_OPS))
STAYING = TOKEN_OPS[:4]  # whose reference reads nothing on the host
ROW_FUSED = ("mixture", "update", "lesson")
FUSED = (*ROW_FUSED, "reading")  # several ops as one; where none is admitted, their parts run by their own
MIXTURES = ("mixture", "lesson")  # those that a mixture's shape is an option of
LOG = logging.getLogger("gradproof.kernels")
NARROW = ("bfloat16", "float16")
NARROW_OPS = (
    "experts",
    "mixture",
    "lesson",
    "reading",
    "attention",
    "ffn",
)  # whose operands are narrow where a step is
MOST_ROWS = 1031  # that an admission runs; prime, so that no tile divides it
MOST_LAYERS = 2  # of a deep chain: the others are repetitions


@dataclass(frozen=True)
class Variant:
    """A way to run an op: `gradproof.kernels.{kernel}.{op}`. `host` says that it reads the row counts of several
    experts on the host, so it cannot be captured in a graph."""

    op: str
    kernel: str
    device: str
    dtypes: tuple[str, ...] = ("float32",)
    host: bool = False
    most: float = math.inf  # multiply-adds of the largest product, beyond which the next one is faster

    @property
    def module(self) -> ModuleType:
        return import_module(f"gradproof.kernels.{self.kernel}.{self.op}")

    def serves(self, chain: Chain) -> bool:
        """Some variants of `experts` are made for some chains only."""
        return self.op != "experts" or getattr(self.module, "serves", lambda chain: True)(chain)

    def fits(self, shape: Shape) -> bool:
        """Whether it is made for this shape."""
        work = shape.rows * shape.k * max(a * b for a, b in pairwise(shape.chain.widths))
        routed = self.op not in MIXTURES or shape.routing is not None
        return routed and self.serves(shape.chain) and work <= self.most

    def missing(self) -> str | None:
        """Why it cannot run on this machine, or None."""
        return import_module(f"gradproof.kernels.{self.kernel}").missing()


# The first admitted one of an op is taken; after them all comes the reference.
VARIANTS = (
    *(Variant(op, "cpu", "cpu") for op in (*ROW_OPS, "ffn", "update", "reading")),
    # Of larger batches the calls between the parts are nothing.
    *(Variant(op, "cpu", "cpu", most=3e8) for op in MIXTURES),
    *(Variant(op, "triton", "cuda") for op in ROW_OPS if op != "experts"),
    Variant("experts", "triton", "cuda", NARROW),
    Variant("experts", "grouped", "cuda", ("bfloat16",), most=2e11),
    Variant("experts", "cublas", "cuda", ("float32", *NARROW), host=True),
    *(Variant(op, "aten", "cpu", ("float32", "bfloat16")) for op in TOKEN_OPS[:4]),
    *(Variant(op, "aten", "cuda", ("float32", *NARROW)) for op in TOKEN_OPS[:4]),
)


@dataclass(frozen=True)
class Block:
    """The widths of a transformer, as far as its ops see them; `causal` where some attention is."""

    vocabulary: int = 0
    width: int = 0
    heads: int = 1
    inner: int = 0
    context: int = 0
    causal: bool = False

    def of(self, op: str) -> Block:
        """What `op` sees of them."""
        seen = {"embedding": ("vocabulary", "width"), "layernorm": ("width",), "ffn": ("width", "inner")}
        seen["attention"] = ("width", "heads", "context", "causal")
        seen["reading"] = ("vocabulary", "width", "heads", "inner", "context")
        return Block(**{name: getattr(self, name) for name in seen.get(op, ())})


@dataclass(frozen=True)
class Shape:
    """What a model asks of its kernels. Rows count by powers of four."""

    device: str
    dtype: str
    rows: int
    experts: int
    k: int
    chain: Chain
    routing: Routing | None = None
    block: Block | None = None
    ops: tuple[str, ...] = ROW_OPS
    fused: tuple[str, ...] = ROW_FUSED

    @property
    def tokens(self) -> int:
        """The rows that its products see: those of all places, where a row is a sequence."""
        return self.rows * (self.block.context if self.block else 1)

    def of(self, op: str) -> Shape:
        """The class that an admission of `op` holds for: what the op does not see, or repeats, is left out."""
        widths, active = self.chain.widths, self.chain.active
        if len(active) > MOST_LAYERS:
            widths = (*widths[: MOST_LAYERS + 1], widths[-1])
            active = active[:MOST_LAYERS]
        if op not in ("experts", *MIXTURES):
            widths, active = (widths[0], widths[-1]), ()
        return replace(
            self,
            dtype="float32" if self.dtype in NARROW and op not in NARROW_OPS else self.dtype,
            rows=4 ** max(1, (self.rows - 1).bit_length() + 1 >> 1),
            chain=Chain(widths, active),
            routing=self.routing if op in ("route", *MIXTURES) else None,
            block=self.block.of(op) if self.block else None,
            ops=(),
            fused=(),
        )


@dataclass(frozen=True)
class Kernels:
    """The modules that a model runs its ops with, and their names. A fused op that is None runs part by part."""

    route: ModuleType
    dispatch: ModuleType
    experts: ModuleType
    combine: ModuleType
    cross_entropy: ModuleType
    adamw: ModuleType
    embedding: ModuleType
    layernorm: ModuleType
    attention: ModuleType
    ffn: ModuleType
    chosen: Mapping[str, str]
    mixture: ModuleType | None = None
    update: ModuleType | None = None
    lesson: ModuleType | None = None
    reading: ModuleType | None = None
    workspace: Workspace | None = None
    capturable: bool = False

    @classmethod
    def of(
        cls, chosen: Mapping[str, str], workspace: Workspace | None = None, ops: tuple[str, ...] = ROW_OPS
    ) -> Kernels:
        """Kernels by name; what is not named is the reference, or its parts. `ops` are those that a model has."""
        named = {op: chosen.get(op, "reference") for op in OPS}
        named |= {op: chosen[op] for op in FUSED if chosen.get(op, "reference") != "reference"}
        modules: dict[str, Any] = {op: _module(op, kernel) for op, kernel in named.items()}
        own = {op: kernel for op, kernel in named.items() if op in (*ops, *FUSED)}
        return cls(**modules, chosen=own, workspace=workspace)

    def loss(self, name: str, op: ModuleType) -> ModuleType:
        """What runs a loss: of the named ones cross-entropy has kernels; the others run as they are."""
        return self.cross_entropy if name == "cross_entropy" else op

    @property
    def parts(self) -> MixtureOps:
        """What runs a mixture part by part."""
        return MixtureOps(self.route, self.dispatch, self.experts, self.combine)


def _module(op: str, kernel: str) -> ModuleType:
    return import_module(f"gradproof.ops.{op}" if kernel == "reference" else f"gradproof.kernels.{kernel}.{op}")


REFERENCE = Kernels.of({})


def choose(
    shape: Shape, workspace: Workspace | None = None, only: Mapping[str, str] | None = None, fused: bool = True
) -> Kernels:
    """The kernels for a shape; `only` asks for particular ones (a run that resumes), each still by admission."""
    if os.environ.get("GRADPROOF_KERNELS") == "reference":
        return REFERENCE
    chosen = {}
    for op in (*shape.ops, *shape.fused) if fused else shape.ops:
        wanted = [v for v in variants(op, shape) if only is None or v.kernel == only.get(op)]
        chosen[op] = next((v for v in wanted if admission(v, shape).admitted), None)
    # What reads nothing on the host can be captured in a graph.
    whole = shape.device == "cuda" and all(
        op in STAYING if v is None else not (v.host and shape.experts > 1)
        for op, v in ((op, chosen[op]) for op in shape.ops)
    )
    names = {op: v.kernel for op, v in chosen.items() if v is not None}
    return replace(Kernels.of(names, workspace, shape.ops), capturable=whole)


def survey(shape: Shape) -> list[dict[str, Any]]:
    """Every variant that is made for a shape, in the order in which they would be taken: admitted, refused with the
    claim that failed, or missing on this machine with the reason."""
    surveyed = []
    for op in (*shape.ops, *shape.fused):
        dtype = shape.of(op).dtype
        for v in VARIANTS:
            if (v.op, v.device) != (op, shape.device) or dtype not in v.dtypes:
                continue
            missing = v.missing()
            if missing is None and not v.fits(shape):
                continue
            judged = Admission(op, v.kernel, False, missing) if missing else admission(v, shape)
            status = "missing" if missing else "admitted" if judged.admitted else "refused"
            figures = {"claims": len(judged.evidence), "reason": judged.reason}
            evidence = [asdict(e) for e in judged.evidence]
            surveyed.append(
                {"op": op, "kernel": v.kernel, "dtype": dtype, "status": status, **figures, "evidence": evidence}
            )
    return surveyed


def variants(op: str, shape: Shape) -> list[Variant]:
    """Those that could serve, best first."""
    dtype = shape.of(op).dtype
    fitting = [v for v in VARIANTS if v.op == op and v.device == shape.device and dtype in v.dtypes]
    fitting = [v for v in fitting if v.missing() is None and v.fits(shape)]
    order = _tuned().get(_key_text(op, "", shape), [])
    slower = order[order.index("reference") :] if "reference" in order else []
    fitting = [v for v in fitting if v.kernel not in slower]
    return sorted(fitting, key=lambda v: order.index(v.kernel) if v.kernel in order else len(order))


@dataclass(frozen=True)
class Admission:
    """A variant in one shape class, judged. `reason` is the failed claim, or why it cannot run."""

    op: str
    kernel: str
    admitted: bool
    reason: str
    evidence: tuple[Evidence, ...] = ()


_judged: dict[str, Admission] = {}


def admission(variant: Variant, shape: Shape) -> Admission:
    """Judged once a process, and once for all where the cache can be written."""
    key = _key_text(variant.op, variant.kernel, shape)
    if key not in _judged:
        _judged[key] = _cached(key) or _judge(variant, shape, key)
        if not _judged[key].admitted:
            LOG.warning("%s of %s does not run: %s", variant.kernel, variant.op, _judged[key].reason)
    return _judged[key]


def _judge(variant: Variant, shape: Shape, key: str) -> Admission:
    missing = variant.missing()
    if missing is not None:
        return Admission(variant.op, variant.kernel, False, missing)
    of = shape.of(variant.op)
    tried = [e for e in _tried(variant.op, of, shape.tokens) if variant.serves(e.options.get("chain", of.chain))]
    try:
        evidence = tuple(
            admit(
                ops.load(variant.op),
                variant.module,
                tried,
                dtype=getattr(torch, of.dtype),
                device=shape.device,
                kernel=variant.kernel,
            )
        )
    except Exception as error:
        return Admission(variant.op, variant.kernel, False, f"it stopped with {type(error).__name__}: {error}")
    failed = next((e for e in evidence if e.status == "refuted"), None)
    reason = "" if failed is None else _sentence(failed)
    judged = Admission(variant.op, variant.kernel, failed is None, reason, tuple(worst_of_each(evidence)))
    _keep(key, judged)
    return judged


def _sentence(e: Evidence) -> str:
    about = f" of {e.value}" if e.value else ""
    return f"{e.claim}{about} on {e.example} ({e.dtype}, {e.device}): {e.measured:.2g} is above {e.bound:.2g}"


def _tried(op: str, shape: Shape, rows: int) -> Iterator[Example]:
    """The contract's own examples, and calls at the widths of this class: as many rows as asked for, and few."""
    contract = ops.load(op).CONTRACT
    chain, E, K = shape.chain, shape.experts, shape.k
    sizes = dict(T=rows, E=E, K=K, I=chain.widths[0], O=chain.widths[-1], C=max(chain.widths[-1], 2), P=64 * 129)
    routing = shape.routing or Routing(K)
    options: dict[str, Any] = dict(experts=(dict(chain=chain),), route=(dict(routing=routing),))
    options |= {op: (dict(mixture=Mixture(E, chain, routing)),) for op in MIXTURES}
    if shape.block is not None and op in (*TOKEN_OPS[:4], "reading"):
        block, places = shape.block, min(max(1, shape.block.context), MOST_ROWS)
        sizes |= dict(V=block.vocabulary, D=block.width, F=block.inner, S=places, L=places)
        kinds = {False, block.causal}
        options["attention"] = tuple(dict(heads=block.heads, causal=causal) for causal in sorted(kinds))
        widths = (block.vocabulary, block.width, block.heads, MOST_LAYERS, block.inner, block.context)
        options["reading"] = (dict(reader=Reader(*widths, chain.widths[-1])),)
    if op == "route":  # every option is another kernel: this class has one
        contract = replace(contract, options=options[op], sizes={**contract.sizes, "E": (E,)})
    yield from examples(op, contract, 0)
    options = options.get(op, contract.options)
    for count in {min(rows, MOST_ROWS), min(rows, 3)}:
        batch = max(1, min(count, MOST_ROWS // sizes.get("S", 1)))
        of_width = {axis: (dict(sizes, T=count, B=batch)[axis],) for axis in contract.sizes}
        yield from examples(f"{op} {count}", replace(contract, sizes=of_width, options=options, edges=()), 1)


def folder() -> Path:
    """Where admissions are kept: GRADPROOF_CACHE, or `gradproof` in the user's cache directory."""
    own = os.environ.get("GRADPROOF_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(own) if own else Path(base) / "gradproof"


def _key_text(op: str, kernel: str, shape: Shape) -> str:
    """Everything that an admission depends on."""
    facts = {
        "op": op,
        "kernel": kernel,
        "shape": asdict(shape.of(op)),
        "device": environment(shape.device).get("device", shape.device),
        "versions": versions(),
        "source": _source(),
    }
    return json.dumps(facts, sort_keys=True, default=str)


@cache
def _source() -> str:
    """A digest of the code that is judged and of what judges it. All ops and kernels: one may call another."""
    package = Path(__file__).parent.parent
    files = [package / "proof" / "admission.py"]
    files += sorted(path for part in ("ops", "kernels") for path in (package / part).rglob("*.*"))
    code = (path for path in files if path.suffix in (".py", ".h", ".cpp"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in code)).hexdigest()


def _file(key: str) -> Path:
    return folder() / "admissions" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def _cached(key: str) -> Admission | None:
    """What was judged before; anything unreadable counts as nothing."""
    try:
        record = json.loads(_file(key).read_text())
        if record.pop("key") != key:
            return None
        evidence = tuple(Evidence(**{**e, "shape": tuple(map(tuple, e["shape"]))}) for e in record.pop("evidence"))
        return Admission(**record, evidence=evidence)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _keep(key: str, judged: Admission) -> None:
    try:
        _file(key).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(_file(key), json.dumps({"key": key, **asdict(judged)}))
    except OSError:
        LOG.info("the admission of %s is not kept: %s cannot be written", judged.op, folder())


@cache
def _tuned() -> dict[str, Any]:
    """The orders that `gradproof bench --tune` measured."""
    try:
        orders = json.loads((folder() / "tuned.json").read_text())
        return orders if isinstance(orders, dict) else {}
    except (OSError, ValueError):
        return {}


def tune(op: str, shape: Shape, order: list[str]) -> None:
    """Keeps a measured order, fastest first."""
    kept = {**_tuned(), _key_text(op, "", shape): order}
    folder().mkdir(parents=True, exist_ok=True)
    write_atomically(folder() / "tuned.json", json.dumps(kept))
    _tuned.cache_clear()
