"""The same mixture of experts in plain torch layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradproof.models import moe
from gradproof.ops import wide


class TorchMoE(nn.Module):
    """The mixture of experts in plain torch layers: nn.Linear, nn.LayerNorm, nn.GELU and autograd. The router is fp32
    under autocast too."""

    correction: Tensor | None

    def __init__(
        self,
        config: moe.MoEConfig,
        router: nn.Linear,
        experts: Sequence[nn.Sequential],
        correction: Tensor | None = None,
    ):
        super().__init__()
        self.config, self.router, self.experts = config, router, nn.ModuleList(experts)
        self.register_buffer("correction", None if correction is None else correction.detach().clone())

    def forward(self, x: Tensor, return_aux: bool = False) -> Any:
        """y in the dtype of x, or (y, aux)."""
        config, x_TI = self.config, x.reshape(-1, self.config.inputs)
        with torch.autocast(x.device.type, enabled=False):
            z_TE = nn.functional.linear(wide(x_TI), wide(self.router.weight), wide(self.router.bias))
            l_TE = z_TE if config.scores == "softmax" else nn.functional.logsigmoid(z_TE)
            q_TE, score_TE = l_TE.softmax(-1), z_TE.softmax(-1) if config.scores == "softmax" else z_TE.sigmoid()
            ranked_TE = score_TE if self.correction is None else score_TE + self.correction
            index_TK = ranked_TE.detach().sort(dim=-1, descending=True, stable=True).indices[:, : config.k]
            gate_TK = l_TE.gather(1, index_TK).softmax(-1) if config.renormalise else score_TE.gather(1, index_TK)
        y_TO = z_TE.new_zeros(len(x_TI), config.outputs)
        for e, expert in enumerate(self.experts):
            row_n, choice_n = (index_TK == e).nonzero(as_tuple=True)
            y_TO = y_TO.index_add(0, row_n, gate_TK[row_n, choice_n, None] * wide(expert(x_TI[row_n])))
        y = y_TO.view(*x.shape[:-1], -1).to(x.dtype)
        if not return_aux:
            return y
        share_E = torch.bincount(index_TK.flatten(), minlength=config.experts).to(q_TE) / index_TK.numel()
        balance = config.balance * config.experts * (share_E * q_TE.mean(0)).sum()
        return y, balance + config.z_loss * z_TE.logsumexp(-1).square().mean()
