"""A family: a model with its router and its encoding of the inputs. Its name says all three: `moe-sheaf-padic`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gradproof.train.config import TrainConfig

MODELS = {"moe": "MoE", "dense": "Dense"}
ROUTERS, ENCODINGS = ("softmax", "sheaf"), ("onehot", "padic")
DEFAULT = ("moe", "moe-sheaf-padic", "dense")


@dataclass(frozen=True)
class Family:
    """`options` are fields of the model's config: experts, k, balance, …"""

    name: str
    model: str
    router: str = "softmax"
    encoding: str = "onehot"
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """As a person would say it."""
        extra = [{"sheaf": "sheaf router"}.get(self.router), {"padic": "p-adic inputs"}.get(self.encoding)]
        return ", ".join([MODELS[self.model], *filter(None, extra)])

    def train_options(self) -> dict[str, Any]:
        """What they are called among the options of `gradproof train`."""
        return {"model": self.model, "router": self.router, "encoding": self.encoding, "model_options": self.options}


def family(name: str, options: dict[str, Any] | None = None) -> Family:
    """The family of a name, model[-router][-encoding]; a sentence for one that is none."""
    model, *rest = name.split("-")
    routers, encodings = ([word for word in rest if word in words] for words in (ROUTERS, ENCODINGS))
    known = model in MODELS and len(routers) + len(encodings) == len(rest) and max(len(routers), len(encodings)) < 2
    if not known:
        raise ValueError(
            f"there is no family {name!r}; a family is moe or dense, with -sheaf and -padic where they apply: "
            f"{', '.join(DEFAULT)}, moe-padic, …"
        )
    router, encoding = (routers or ["softmax"])[0], (encodings or ["onehot"])[0]
    parsed = Family(name, model, router, encoding, dict(options or {}))
    TrainConfig(model=parsed.model, router=parsed.router, encoding=parsed.encoding)  # type: ignore[arg-type]
    return parsed
