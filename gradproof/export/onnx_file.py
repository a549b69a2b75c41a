"""Writes the decision as an ONNX graph, node by node, for onnxruntime and other ONNX runtimes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from gradproof.export.decision import decide
from gradproof.export.frozen import Frozen

OPSET, IR = 17, 8  # of 2022: what reads ONNX today reads them
LARGEST = 2_000_000_000  # bytes that a protobuf file holds
DESCRIPTION = "gradproof"  # the key in the model's metadata


class Node:
    """A value of the graph: its name and its type. Python's operators add nodes; numbers become constants."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, graph: OnnxOps, name: str, dtype: str):
        self.graph, self.name, self.dtype = graph, name, dtype

    def _with(self, operator: str, other: Any, dtype: str = "") -> Node:
        return self.graph.node(operator, [self, other], dtype or self.dtype, like=self.dtype)

    def __add__(self, other: Any) -> Node:
        return self._with("Add", other)

    def __sub__(self, other: Any) -> Node:
        return self._with("Sub", other)

    def __mul__(self, other: Any) -> Node:
        return self._with("Mul", other)

    def __truediv__(self, other: Any) -> Node:
        return self._with("Div", other)

    def __matmul__(self, other: Any) -> Node:
        return self._with("MatMul", other)

    def __eq__(self, other: Any) -> Node:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._with("Equal", other, "bool")

    def __lt__(self, other: Any) -> Node:
        return self._with("Less", other, "bool")

    def __gt__(self, other: Any) -> Node:
        return self._with("Greater", other, "bool")


class OnnxOps:
    """The functions of a decision, as nodes of a graph that grows."""

    def __init__(self, constants: dict[str, np.ndarray]):
        self.nodes, self.initializers = [], []
        self.constants = {name: self.constant(array, name) for name, array in constants.items()}

    def constant(self, array: np.ndarray, name: str = "") -> Node:
        from onnx import numpy_helper

        name = name or f"constant_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return Node(self, name, str(array.dtype))

    def node(self, operator: str, inputs: list[Any], dtype: str, like: str = "", **attributes: Any) -> Node:
        """`like` is the type of inputs that are plain numbers."""
        from onnx import helper

        values = [x if isinstance(x, Node) else self.constant(np.array(x, like or dtype)) for x in inputs]
        name = f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, [value.name for value in values], [name], **attributes))
        return Node(self, name, dtype)

    def _of(self, operator: str, x: Node, **attributes: Any) -> Node:
        return self.node(operator, [x], x.dtype, **attributes)

    def _axes(self, axis: int) -> Node:
        return self.constant(np.array([axis], np.int64))

    def take(self, x: Node, index: Node) -> Node:
        return self.node("Gather", [x, index], x.dtype, axis=1)

    def look_up(self, table: Node, index: Node) -> Node:
        return self.node("Gather", [table, index], table.dtype, axis=0)

    def cast(self, x: Node, dtype: str) -> Node:
        from onnx import helper

        if x.dtype == dtype:
            return x
        return self.node("Cast", [x], dtype, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def join(self, parts: list[Node]) -> Node:
        return self.node("Concat", parts, parts[0].dtype, axis=1)

    def where(self, condition: Node, x: Any, y: Any) -> Node:
        dtype = next(value.dtype for value in (x, y) if isinstance(value, Node))
        return self.node("Where", [condition, x, y], dtype)

    def both(self, x: Node, y: Node) -> Node:
        return self.node("And", [x, y], "bool")

    def either(self, x: Node, y: Node) -> Node:
        return self.node("Or", [x, y], "bool")

    def is_nan(self, x: Node) -> Node:
        return self.node("IsNaN", [x], "bool")

    def clip(self, x: Node, low: float, high: float) -> Node:
        return self.node("Clip", [x, low, high], x.dtype)

    def round(self, x: Node) -> Node:
        return self._of("Round", x)

    def sign(self, x: Node) -> Node:
        return self._of("Sign", x)

    def absolute(self, x: Node) -> Node:
        return self._of("Abs", x)

    def remainder(self, x: Node, by: int) -> Node:
        return self.node("Mod", [x, by], x.dtype)

    def quotient(self, x: Node, by: int) -> Node:
        return self.node("Div", [x, by], x.dtype)

    def exp(self, x: Node) -> Node:
        return self._of("Exp", x)

    def log(self, x: Node) -> Node:
        return self._of("Log", x)

    def tanh(self, x: Node) -> Node:
        return self._of("Tanh", x)

    def sqrt(self, x: Node) -> Node:
        return self._of("Sqrt", x)

    def sigmoid(self, x: Node) -> Node:
        return self._of("Sigmoid", x)

    def log_sigmoid(self, x: Node) -> Node:
        return self._of("Neg", self._of("Softplus", self._of("Neg", x)))

    def softmax(self, x: Node) -> Node:
        return self._of("Softmax", x, axis=-1)

    def log_softmax(self, x: Node) -> Node:
        return self._of("LogSoftmax", x, axis=-1)

    def total(self, x: Node, axis: int, keep: bool = False) -> Node:
        return self.node("ReduceSum", [x, self._axes(axis)], x.dtype, keepdims=int(keep))

    def mean(self, x: Node, axis: int, keep: bool = False) -> Node:
        return self._of("ReduceMean", x, axes=[axis], keepdims=int(keep))

    def most(self, x: Node, axis: int) -> Node:
        return self._of("ReduceMax", x, axes=[axis], keepdims=1)

    def widen(self, x: Node, axis: int) -> Node:
        return self.node("Unsqueeze", [x, self._axes(axis)], x.dtype)

    def swap(self, x: Node) -> Node:
        return self._of("Transpose", x, perm=[0, 2, 1])

    def columns(self, x: Node, start: int, stop: int) -> Node:
        ends = [self._axes(place) for place in (start, stop, -1)]
        return self.node("Slice", [x, *ends], x.dtype)


def write_onnx(file: Path, frozen: Frozen, columns: tuple[int, int], description: dict[str, Any]) -> None:
    """`columns` are how many codes and numbers a row has."""
    import onnx
    from onnx import helper

    size = sum(array.nbytes for array in frozen.constants.values())
    if size > LARGEST:
        raise ValueError(f"{size / 1e9:.1f} GB of weights do not fit into an ONNX file; use --format torch")
    ops = OnnxOps(frozen.constants)
    inputs = [("codes", "int64", columns[0]), ("numbers", "float64", columns[1])]
    nodes = (Node(ops, name, dtype) for name, dtype, _ in inputs)
    results = decide(ops, ops.constants, frozen, *nodes)
    outputs = [("probabilities", results[0], frozen.classes)]
    if results[1] is not None:
        outputs.append(("metrics", results[1], frozen.chain.widths[-1] - frozen.classes))
    for name, node, _ in outputs:
        ops.nodes.append(helper.make_node("Identity", [node.name], [name]))
    taken = [_declared(*of) for of in inputs]
    given = [_declared(name, node.dtype, width) for name, node, width in outputs]
    graph = helper.make_graph(ops.nodes, "decision", taken, given, ops.initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="gradproof")
    model.ir_version = IR
    helper.set_model_props(model, {DESCRIPTION: json.dumps(description)})
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(file))


def _declared(name: str, dtype: str, width: int) -> Any:
    from onnx import helper

    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), ["rows", width])


def run_onnx(file: Path) -> Any:
    """The decision in the file, as a function of arrays, by onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])

    def run(codes_TC: np.ndarray, numbers_TN: np.ndarray) -> list[np.ndarray]:
        results: list[Any] = list(session.run(None, {"codes": codes_TC, "numbers": numbers_TN}))
        return results

    return run


def need_onnx() -> None:
    """A sentence where the extra is missing."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError:
        raise ValueError("--format onnx needs onnx and onnxruntime: pip install 'gradproof[export]'") from None
