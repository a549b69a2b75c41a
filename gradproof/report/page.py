"""Renders a record (the same plain data as in the JSON) with a template; plots are inline SVG."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from gradproof.report import plots


def render(template: str, record: dict[str, Any]) -> str:
    """The page as one string, without external references."""
    environment = Environment(
        loader=PackageLoader("gradproof.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["figure"] = figure
    return environment.get_template(template).render(record=record, plots=plots)


def figure(number: float | None) -> str:
    """Two digits and an exponent; "" for None."""
    return "" if number is None else "0" if number == 0 else f"{number:.1e}"
