"""The same models as PyTorch users write them, as ordinary modules with autograd.

    loop         a Python loop over the experts, each on the rows that chose it
    dense-all    every expert on every row, batched products, weighed by gates that are mostly zero
    grouped_mm   rows sorted by expert, torch._grouped_mm with offsets that stay on the device
    eager        the dense model, an nn.Sequential; or the transformer, with fused attention

A name may go on with how it is run: `-compiled`, `-reduce-overhead` and `-max-autotune` are torch.compile, `-captured`
is the whole step in one torch.cuda.graph. Letters: N = T·K routed rows, n those of one expert.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradproof.bench.transformer import Eager
from gradproof.ops.layernorm import EPS
from gradproof.train.loss import Target
from gradproof.train.step import DTYPES

RATE, DECAY = 3e-4, 0.01
SETTLING = 3  # steps before the figures of a peer mean anything; as many as a capture asks for
Compiled = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]


class OurModel(Protocol):
    """What is needed of one of our models: its shape and its parameters by name."""

    config: Any

    @property
    def params(self) -> Mapping[str, Tensor]: ...


class Loop(nn.Module):
    """A loop over the experts."""

    def __init__(self, config: Any, device: str, dtype: torch.dtype):
        super().__init__()
        self.k, self.outputs = config.k, config.outputs
        self.router = nn.Linear(config.inputs, config.experts, device=device)
        widths, active = expert_widths(config), [True] * (1 + config.depth)
        self.experts = nn.ModuleList(sequential(widths, active, device) for _ in range(config.experts))

    def forward(self, x_TI: Tensor) -> Tensor:
        gate_TK, index_TK = F.softmax(self.router(x_TI), -1, dtype=torch.float32).topk(self.k)
        y_TO = torch.zeros(x_TI.shape[0], self.outputs, device=x_TI.device)
        for e, expert in enumerate(self.experts):
            row_n, slot_n = torch.where(index_TK == e)
            out_nO = expert(x_TI.index_select(0, row_n)) * gate_TK[row_n, slot_n, None]
            y_TO.index_add_(0, row_n, out_nO)
        return y_TO


class Stacked(nn.Module):
    """The parameters of all experts side by side: `weights[i]` is [E, out, in]."""

    def __init__(self, config: Any, device: str, dtype: torch.dtype):
        super().__init__()
        self.k, self.outputs, E = config.k, config.outputs, config.experts
        self.dtype = dtype
        self.router = nn.Linear(config.inputs, E, device=device)
        widths = expert_widths(config)
        widths[-1] = self.stored_outputs()
        self.weights = nn.ParameterList(torch.zeros(E, o, i, device=device) for i, o in pairwise(widths))
        self.biases = nn.ParameterList(torch.zeros(E, width, device=device) for width in widths[1:])
        self.gammas = nn.ParameterList(torch.ones(E, width, device=device) for width in widths[1:-1])
        self.betas = nn.ParameterList(torch.zeros(E, width, device=device) for width in widths[1:-1])

    def stored_outputs(self) -> int:
        """The outputs, with padding where the products ask for it."""
        return self.outputs

    def route(self, x_TI: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(p_TE, gate_TK, index_TK)."""
        p_TE = F.softmax(self.router(x_TI), -1, dtype=torch.float32)
        gate_TK, index_TK = p_TE.topk(self.k)
        return p_TE, gate_TK, index_TK


class DenseAll(Stacked):
    """Every expert on every row."""

    def forward(self, x_TI: Tensor) -> Tensor:
        p_TE, gate_TK, index_TK = self.route(x_TI)
        gates_TE = torch.zeros_like(p_TE).scatter(1, index_TK, gate_TK)
        h_ETH = x_TI.expand(gates_TE.shape[1], -1, -1)
        for i in range(len(self.gammas)):
            h_ETH = self.product(h_ETH, i)
            n_ETH = F.layer_norm(h_ETH, h_ETH.shape[-1:], eps=EPS)
            n_ETH = torch.addcmul(self.betas[i][:, None], n_ETH, self.gammas[i][:, None])
            h_ETH = F.gelu(n_ETH, approximate="tanh")
        return (self.product(h_ETH, len(self.gammas)) * gates_TE.T[:, :, None]).sum(0)

    def product(self, h_ETI: Tensor, i: int) -> Tensor:
        return torch.baddbmm(self.biases[i][:, None], h_ETI, self.weights[i].transpose(1, 2))


class Grouped(Stacked):
    """Only routed rows, sorted by expert, in one ragged product a layer. Autocast does not know that product, so the
    casts are written out, and LayerNorm takes and gives the narrow type."""

    def stored_outputs(self) -> int:
        # Rows must be whole multiples of 16 bytes; a user rounds up to a tile.
        return self.outputs if self.dtype == torch.float32 else -(-self.outputs // 32) * 32

    def forward(self, x_TI: Tensor) -> Tensor:
        p_TE, gate_TK, index_TK = self.route(x_TI)
        chosen_N, order_N = index_TK.flatten().sort(stable=True)
        row_N = order_N // self.k
        load_E = (index_TK.flatten()[:, None] == torch.arange(p_TE.shape[1], device=x_TI.device)).sum(0)
        ends_E = load_E.cumsum(0).to(torch.int32)
        # A product, whose backward is one too: that of indexing adds rows up one by one, and is up to a quarter slower.
        chosen_NE = F.one_hot(chosen_N, p_TE.shape[1]).to(self.dtype)
        h_NH = x_TI.to(self.dtype).index_select(0, row_N)
        for i in range(len(self.gammas)):
            h_NH = self.product(h_NH, i, ends_E, chosen_NE)
            gamma_NH, beta_NH = (chosen_NE @ p[i].to(self.dtype) for p in (self.gammas, self.betas))
            n_NH = torch.addcmul(beta_NH, F.layer_norm(h_NH, h_NH.shape[-1:], eps=EPS), gamma_NH)
            h_NH = F.gelu(n_NH, approximate="tanh")
        out_NO = self.product(h_NH, len(self.gammas), ends_E, chosen_NE)[:, : self.outputs]
        weighed_NO = out_NO * gate_TK.flatten().index_select(0, order_N)[:, None]
        y_TO = torch.zeros(x_TI.shape[0], self.outputs, device=x_TI.device)
        return y_TO.index_add(0, row_N, weighed_NO)

    def product(self, h_NI: Tensor, i: int, ends_E: Tensor, chosen_NE: Tensor) -> Tensor:
        w_EIH = self.weights[i].to(self.dtype).transpose(1, 2)
        y_NH = torch._grouped_mm(h_NI, w_EIH, offs=ends_E)  # pyright: ignore[reportPrivateImportUsage]
        return y_NH + chosen_NE @ self.biases[i].to(self.dtype)


class Sequential(nn.Module):
    """The dense model."""

    def __init__(self, config: Any, device: str, dtype: torch.dtype):
        super().__init__()
        self.layers = sequential(dense_widths(config), [False, *[True] * (2 * config.blocks)], device)

    def forward(self, x_TI: Tensor) -> Tensor:
        return self.layers(x_TI)


def expert_widths(config: Any) -> list[int]:
    """The widths through one expert."""
    return [config.inputs, *[config.hidden] * (1 + config.depth), config.outputs]


def dense_widths(config: Any) -> list[int]:
    """The widths through the dense model."""
    return [config.inputs, config.hidden, *[config.feedforward, config.hidden] * config.blocks, config.outputs]


def sequential(widths: list[int], active: list[bool], device: str) -> nn.Sequential:
    """Linear → LayerNorm → GELU where active, and a last Linear."""
    layers: list[nn.Module] = []
    for (inputs, outputs), activate in zip(pairwise(widths[:-1]), active, strict=True):
        layers += [nn.Linear(inputs, outputs, device=device), nn.LayerNorm(outputs, eps=EPS, device=device)]
        layers += [nn.GELU(approximate="tanh")] if activate else []
    return nn.Sequential(*layers, nn.Linear(widths[-2], widths[-1], device=device))


class Way(NamedTuple):
    """How a peer is run."""

    module: type[nn.Module]
    compiled: Compiled | None = None
    captured: bool = False

    @property
    def captures_parts(self) -> bool:
        """Whether torch.compile itself puts parts of a step into CUDA graphs, where there is a GPU."""
        return self.compiled in ("reduce-overhead", "max-autotune")


# In the order in which they are measured: likely winners first, and last what takes long to compile.
MOE: Mapping[str, Way] = {
    "dense-all-compiled-captured": Way(DenseAll, "default", captured=True),
    "grouped_mm-compiled-captured": Way(Grouped, "default", captured=True),
    "grouped_mm-compiled": Way(Grouped, "default"),
    "dense-all-compiled": Way(DenseAll, "default"),
    "loop-compiled": Way(Loop, "default"),
    "grouped_mm-captured": Way(Grouped, captured=True),
    "dense-all-captured": Way(DenseAll, captured=True),
    "grouped_mm-reduce-overhead": Way(Grouped, "reduce-overhead"),
    "dense-all-reduce-overhead": Way(DenseAll, "reduce-overhead"),
    "loop": Way(Loop),
    "dense-all": Way(DenseAll),
    "grouped_mm": Way(Grouped),
    "loop-reduce-overhead": Way(Loop, "reduce-overhead"),
    "grouped_mm-max-autotune-captured": Way(Grouped, "max-autotune-no-cudagraphs", captured=True),
    "dense-all-max-autotune-captured": Way(DenseAll, "max-autotune-no-cudagraphs", captured=True),
    "grouped_mm-max-autotune": Way(Grouped, "max-autotune"),
    "dense-all-max-autotune": Way(DenseAll, "max-autotune"),
    "loop-max-autotune": Way(Loop, "max-autotune"),
}
DENSE: Mapping[str, Way] = {
    "compiled-captured": Way(Sequential, "default", captured=True),
    "compiled": Way(Sequential, "default"),
    "captured": Way(Sequential, captured=True),
    "eager": Way(Sequential),
    "reduce-overhead": Way(Sequential, "reduce-overhead"),
    "max-autotune-captured": Way(Sequential, "max-autotune-no-cudagraphs", captured=True),
    "max-autotune": Way(Sequential, "max-autotune"),
}
TRANSFORMER: Mapping[str, Way] = {name: way._replace(module=Eager) for name, way in DENSE.items()}
FAMILIES: Mapping[str, Mapping[str, Way]] = {"moe": MOE, "dense": DENSE, "transformer": TRANSFORMER}
NAMES = (*MOE, *DENSE)


def peers_of(family: str, device: str) -> dict[str, Way]:
    """The peers of a model that can be run on this kind of device: graphs need a GPU."""
    return {name: way for name, way in FAMILIES[family].items() if device == "cuda" or not way.captured}


class Peer:
    """A module, its loss and its optimizer: calling it is one training step, the loss is returned.

    fp32 parameters; bf16 and fp16 by autocast, fp16 with a GradScaler, as users do it."""

    def __init__(self, way: Way, model: OurModel, device: str, precision: str):
        self.way, self.device, self.dtype = way, device, DTYPES[precision]
        self.module = way.module(model.config, device, self.dtype)
        copy_parameters(model, self.module)
        self.optimizer = torch.optim.AdamW(
            self.module.parameters(), lr=RATE, weight_decay=DECAY, fused=True, capturable=way.captured
        )
        self.scaler = torch.amp.GradScaler(device, enabled=precision == "fp16")  # pyright: ignore[reportPrivateImportUsage]
        self.objective = self._compiled(True) if way.compiled else self.loss
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        # A stream of its own, so that no captured peer finds the workspace that another one has paid for.
        self.stream = torch.cuda.Stream() if way.captured else None

    @property
    def settling(self) -> int:
        """Calls before memory is measured. The graphs that torch.compile records after the first call must be counted;
        what compiling needs must not."""
        return 1 if self.graphs == "parts" else SETTLING

    @property
    def graphs(self) -> Literal["none", "parts", "whole"]:
        """What of a step is replayed from a CUDA graph."""
        if self.way.captured:
            return "whole"
        return "parts" if self.way.captures_parts and self.device == "cuda" else "none"

    def __call__(self, x_TI: Tensor, target_T: Target) -> Tensor:
        self.calls += 1
        if self.calls == 1 and self.way.compiled and self.way.module is Loop:
            try:
                return self._step_beside(x_TI, target_T)
            except Exception:  # once more, in pieces
                self.objective = self._compiled(False)
        if self.graph is not None:
            for own, given in zip(self.given, (x_TI, *tensors(target_T)), strict=True):
                own.copy_(given)
            self.graph.replay()
            return self.captured_loss
        if self.stream is not None and self.calls > SETTLING:
            return self.capture(self.stream, x_TI, target_T)
        return self._step_beside(x_TI, target_T)

    def _step_beside(self, x_TI: Tensor, target_T: Target) -> Tensor:
        """A step on the stream that is captured later; on the usual one where none is."""
        if self.stream is None:
            return self.step(x_TI, target_T)
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            loss = self.step(x_TI, target_T)
        torch.cuda.current_stream().wait_stream(self.stream)
        return loss

    def _compiled(self, whole: bool) -> Any:
        """Compiled; `whole` also where the rows of an expert are found, which otherwise breaks the loop into pieces
        (on a CPU, nano with 32 rows takes a quarter longer in pieces)."""
        from torch import _dynamo
        from torch._inductor import config as inductor

        _dynamo.reset()
        inductor.autotune_num_choices_displayed = 0  # max-autotune would print a table for each product
        _dynamo.config.capture_dynamic_output_shape_ops = whole
        return torch.compile(self.loss, mode=self.way.compiled)

    def step(self, x_TI: Tensor, target_T: Target) -> Tensor:
        """Forward, backward, update."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.objective(x_TI, target_T)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach()

    def loss(self, x_TI: Tensor, target_T: Target) -> Tensor:
        with self.autocast():
            logits_TO = self.module(x_TI)
        if isinstance(target_T, tuple):  # labels and weights of a binary decision
            label_T, weight_T = target_T
            return F.binary_cross_entropy_with_logits(logits_TO[:, 0].float(), label_T, weight_T)
        return F.cross_entropy(logits_TO.float(), target_T.flatten())

    def autocast(self) -> AbstractContextManager[Any]:
        if self.dtype == torch.float32 or self.way.module is Grouped:
            return nullcontext()
        return torch.autocast(self.device, self.dtype, cache_enabled=not self.way.captured)

    def capture(self, stream: torch.cuda.Stream, x_TI: Tensor, target_T: Target) -> Tensor:
        """Records one step, gradients included, and replays it."""
        self.given = [tensor.clone() for tensor in (x_TI, *tensors(target_T))]
        own = tuple(self.given[1:]) if isinstance(target_T, tuple) else self.given[1]
        self.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            self.captured_loss = self.step(self.given[0], own)
        self.graph = graph
        graph.replay()
        return self.captured_loss

    def held_bytes(self) -> int:
        """What stays between two steps: parameters and moments. Frees the gradients, which the next step makes anew."""
        self.optimizer.zero_grad(set_to_none=True)
        moments = [t for state in self.optimizer.state.values() for t in state.values() if isinstance(t, Tensor)]
        return sum(t.nbytes for t in (*self.module.parameters(), *moments))


def tensors(target: Target) -> tuple[Tensor, ...]:
    return target if isinstance(target, tuple) else (target,)


def copy_parameters(model: OurModel, module: nn.Module) -> None:
    """Gives a peer the values of our model's parameters."""
    with torch.no_grad():
        for name, own in named(module).items():
            own.copy_(model.params[name])


def named(module: nn.Module, grads: bool = False) -> dict[str, Tensor]:
    """A peer's parameters, or its gradients, under the names that our models give them."""

    def part(parameter: Tensor) -> Tensor:
        if grads and parameter.grad is None:
            return torch.zeros_like(parameter)
        return parameter.grad if grads and parameter.grad is not None else parameter.detach()

    if isinstance(module, Eager):
        return {name: part(parameter) for name, parameter in module.named_parameters()}
    if isinstance(module, Sequential):
        return dict(_chain("", module.layers, part))
    assert isinstance(module, (Loop, Stacked))
    parts = {"router.weight": part(module.router.weight), "router.bias": part(module.router.bias)}
    if isinstance(module, Loop):
        for e, expert in enumerate(module.experts):
            parts |= dict(_chain(f"experts.{e}.", expert, part))
        return parts
    last = len(module.gammas)
    kinds = {"linear.{}.weight": module.weights, "linear.{}.bias": module.biases}
    kinds |= {"norm.{}.weight": module.gammas, "norm.{}.bias": module.betas}
    for pattern, layers in kinds.items():
        for i, stacked in enumerate(layers):
            for e, tensor in enumerate(part(stacked)):
                used = tensor[: module.outputs] if i == last else tensor
                parts[f"experts.{e}.{pattern.format(i)}"] = used
    return parts


def _chain(prefix: str, layers: nn.Module, part: Any) -> Iterable[tuple[str, Tensor]]:
    counts = {nn.Linear: 0, nn.LayerNorm: 0}
    for layer in layers.children():
        kind = type(layer)
        if kind in counts:
            name = f"{prefix}{'linear' if kind is nn.Linear else 'norm'}.{counts[kind]}"
            counts[kind] += 1
            yield f"{name}.weight", part(layer.weight)
            yield f"{name}.bias", part(layer.bias)
