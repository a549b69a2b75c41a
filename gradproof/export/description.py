"""Description: how a table's values become the inputs of an exported model, and what its outputs are."""

from __future__ import annotations

from typing import Any

from gradproof.data.schema import Category, Number, Schema

PARTS = {"": "days since 1970-01-01, UTC", "weekday": "1 (Monday) to 7", "time": "hours since midnight"}


def describe(schema: Schema) -> dict[str, Any]:
    """Plain data, which stands in the exported file."""
    return {
        "codes": [_codes(category) for category in schema.categories],
        "numbers": [_number(number) for number in schema.numbers],
        "classes": list(schema.classes),
        "metrics": [metric.name for metric in schema.metrics],
        "target": schema.target,
    }


def _codes(category: Category) -> dict[str, Any]:
    """−1 is the code of what has no slot."""
    return {
        "column": category.name,
        "codes": {value: code for code, value in enumerate(category.values)},
        "other": category.unseen,
        "missing": category.slots().get(None, -1),
    }


def _number(number: Number) -> dict[str, Any]:
    means = PARTS.get(number.part, number.part) if number.date else "a number"
    return {"column": number.name, "means": means, "format": number.format.example if number.format else None}


def onnx_lesson(file: str, schema: Schema) -> str:
    """How to call it."""
    outputs = "probabilities, metrics" if schema.metrics else "(probabilities,)"
    return f"""\
import json, numpy as np, onnxruntime
session = onnxruntime.InferenceSession({file!r})
about = json.loads(session.get_modelmeta().custom_metadata_map["gradproof"])
# codes: int64 [rows, {len(schema.categories)}], about["codes"][i]["codes"][name], else its "other" or "missing"
# numbers: float64 [rows, {len(schema.numbers)}], in the order of about["numbers"]; NaN is missing
{outputs} = session.run(None, {{"codes": codes, "numbers": numbers}})
decision = [about["classes"][i] for i in probabilities.argmax(1)]"""


def torch_lesson(file: str, schema: Schema) -> str:
    """How to call it."""
    outputs = "probabilities, metrics" if schema.metrics else "probabilities"
    return f"""\
import json, torch
extra = {{"schema.json": ""}}
decide = torch.export.load({file!r}, extra_files=extra).module()
about = json.loads(extra["schema.json"])
# codes: int64 [rows, {len(schema.categories)}], about["codes"][i]["codes"][name], else its "other" or "missing"
# numbers: float64 [rows, {len(schema.numbers)}], in the order of about["numbers"]; NaN is missing
{outputs} = decide(codes, numbers)
decision = [about["classes"][i] for i in probabilities.argmax(1).tolist()]"""
