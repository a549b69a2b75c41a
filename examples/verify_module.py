"""Check the backward pass of your own module.

    gradproof verify examples/verify_module.py:case      # on the command line: refuted, exit code 1
    python examples/verify_module.py                     # in Python

`Scale` has a hand-written backward with a bug: the gradient of its weight is 1% too large. The network still learns, so
nothing else shows it. `verify` names the parameter.
"""

import torch
from torch import nn

import gradproof


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, (g * x).sum(0) * 1.01  # 1% too large


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 16), nn.Linear(16, 3)
        self.gain = nn.Parameter(torch.ones(16))

    def forward(self, x):
        return self.b(torch.tanh(Scale.apply(self.a(x), self.gain)))


def case():
    torch.manual_seed(0)
    return Net(), (torch.randn(8, 6),)


if __name__ == "__main__":
    report = gradproof.verify(*case())
    print(f"{report.status}: {report.summary}")
    assert not report  # a report is true only when every gradient is proven
