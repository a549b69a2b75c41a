"""RowTrial in narrow formats, where a whole chain is judged by its output: no kernel of the CPU runs those."""

import pytest
import torch
from torch.nn import functional as F

from gradproof.kernels.settled import settled
from gradproof.ops import dispatch, experts
from gradproof.ops.experts import Chain
from gradproof.proof.row_trial import RowTrial


def other_kernel(x_NI, theta_EP, plan, chain, narrow_EP):
    """The same by torch's own layers: products of narrow operands in float32, rounded once."""
    outputs, bounds = [], plan.bounds()
    for e in range(len(theta_EP)):
        vectors, matrices = chain.views(theta_EP[e]), chain.views(narrow_EP[e])
        x_nI = x_NI[bounds[e] : bounds[e + 1]].to(narrow_EP.dtype)
        for i in range(chain.layers):
            h_nH = (x_nI.float() @ matrices[f"linear.{i}.weight"].float().T).to(narrow_EP.dtype)
            gamma_H, beta_H = vectors[f"norm.{i}.weight"], vectors[f"norm.{i}.bias"]
            n_nH = F.layer_norm(h_nH.float() + vectors[f"linear.{i}.bias"], gamma_H.shape, gamma_H, beta_H)
            x_nI = (F.gelu(n_nH, approximate="tanh") if chain.active[i] else n_nH).to(narrow_EP.dtype)
        last = f"linear.{chain.layers}"
        outputs.append(x_nI.float() @ matrices[f"{last}.weight"].float().T + vectors[f"{last}.bias"])
    return torch.cat(outputs)


@pytest.mark.parametrize("narrow", (torch.bfloat16, torch.float16))
@pytest.mark.parametrize("chain", (Chain((9, 32, 5), (True,)), Chain((33, 64, 64, 64, 20), (False, True, True))))
def test_a_narrow_chain(chain, narrow):
    generator = torch.Generator().manual_seed(0)
    plan = dispatch.draw_plan(dict(T=300, E=4, K=2), generator, None)["plan"]
    theta_EP = experts.draw_theta(chain, 4, generator).float()
    x_NI = torch.randn(600, chain.widths[0], generator=generator)
    given = dict(x=x_NI, theta=theta_EP, plan=plan, chain=chain, narrow=theta_EP.to(narrow))
    y_NO = other_kernel(x_NI, theta_EP, plan, chain, given["narrow"])
    with settled("cpu"):
        trial = RowTrial(experts, given)
        assert trial.off((y_NO, None))["output 0"] < 0.5
        y_NO[333] *= 1.1
        assert trial.off((y_NO, None))["output 0"] > 1.0
        y_NO[333, 0] = torch.nan
        assert trial.off((y_NO, None))["output 0"] > 1.0
        assert trial.off((y_NO[1:], None)) == {"shape": float("inf")}
