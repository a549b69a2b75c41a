"""The simulated error is that of the device: within a factor of 2, for what people train."""

import pytest
import torch
from torch import nn

from gradproof.diagnosis.diagnose import settled
from gradproof.diagnosis.measure import Laboratory
from gradproof.diagnosis.specimen import ModuleSpecimen
from gradproof.diagnosis.verdict import together
from gradproof.precision.formats import format_named

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")),
]


class Sparse(nn.Module):
    """Top-2 of 4 experts, the router in fp32 as usual."""

    def __init__(self, width=64, experts=4):
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 128), nn.LayerNorm(128), nn.GELU(), nn.Linear(128, width))
            for _ in range(experts)
        )

    def forward(self, x):
        p = torch.softmax(self.router(x).float(), -1)
        gate, index = p.topk(2, -1)
        y = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            row, slot = (index == e).nonzero(as_tuple=True)
            y = y.index_add(0, row, gate[row, slot, None].to(x.dtype) * expert(x[row]))
        return y


def dense():
    layers = [nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()) for _ in range(6)]
    return nn.Sequential(*layers, nn.Linear(64, 20)), (torch.randn(128, 64),)


def encoder():
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), (torch.randn(4, 32, 64),)


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=64, n_embd=64, n_layer=3, n_head=4)).eval()
    return model, {"input_ids": torch.randint(0, 64, (4, 32))}


CASES = {"moe": lambda: (Sparse(), (torch.randn(128, 64),)), "dense": dense, "encoder": encoder, "gpt2": gpt2}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("format", ["bf16", "fp16"])
@pytest.mark.parametrize("name", CASES)
def test_simulated_and_real_errors_agree(name, format, device):
    torch.manual_seed(0)
    with settled():
        specimen = ModuleSpecimen(*CASES[name](), name, 0, torch.device(device))
        try:
            measured = Laboratory(specimen, 0).measure(format_named(format), "cast", 2)
        finally:
            specimen.close()
    assert measured.real_replayed is not None, measured.unreal
    simulated, real = together(measured.replayed), together(measured.real_replayed)
    print(f"{name} {format} {device}: simulated {simulated:.2e}, real {real:.2e}, ratio {simulated / real:.2f}")
    assert 0.5 <= simulated / real <= 2


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("format", ["bf16", "fp16"])
@pytest.mark.parametrize("name", ["moe", "dense"])
def test_so_they_do_for_the_engines_own_models(name, format, device):
    from gradproof.models.families import family
    from gradproof.train.loss import Loss
    from gradproof.train.model_specimen import ModelSpecimen

    torch.manual_seed(0)
    kind = family(name)
    model = kind(kind.Config.matching(50_000, inputs=32, outputs=10), device=device)
    x, target = torch.randn(256, 32, device=device), torch.randint(0, 10, (256,), device=device)
    with settled():
        measured = Laboratory(ModelSpecimen(model, Loss("cross_entropy"), x, target, name=name), 0).measure(
            format_named(format), "cast", 2
        )
    simulated, real = together(measured.replayed), together(measured.real_replayed)
    print(f"engine {name} {format} {device}: simulated {simulated:.2e}, real {real:.2e}, ratio {simulated / real:.2f}")
    assert 0.5 <= simulated / real <= 2
