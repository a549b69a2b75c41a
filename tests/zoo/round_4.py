"""Round 4 of the zoo, written without sight of the tool's code and of the rounds before.

A wrong module has a right twin: its builder takes ``right=True``. The truth was measured with plain torch over seeds
0 to 4: gradient bugs against the twin in float64 (and the twin against central differences), precision faults by
running module and twin in the format itself.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint
from zoo.entry import FORMATS, Entry, always

Made = tuple[nn.Module, tuple[Any, ...]]
LOW = (torch.bfloat16, torch.float16)
MAY_ROUTE = {name: frozenset({"routing"}) for name in FORMATS}
MAY_UNDERFLOW = {"fp16": frozenset({"underflow"})}
BF16 = ("bf16", "fp8_e4m3")  # what goes wrong in bf16 alone also goes wrong where fp8's other arithmetic is bf16


def island(x: Tensor) -> Tensor:
    """float32 for a narrow tensor; float32 and float64 stay what they are."""
    return x.float() if x.dtype in LOW else x


def heads_of(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merged(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


# ---------------------------------------------------------------------------------------------------- correct modules


class GroupedQueryRope(nn.Module):
    def __init__(self, dim: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, dim // heads
        self.q = nn.Linear(dim, dim, bias=False)
        self.k = nn.Linear(dim, kv_heads * self.size, bias=False)
        self.v = nn.Linear(dim, kv_heads * self.size, bias=False)
        self.out = nn.Linear(dim, dim)

    def rotate(self, x: Tensor) -> Tensor:
        wide = island(x)
        time = torch.arange(x.shape[-2], device=x.device, dtype=wide.dtype)
        rate = 1000.0 ** (-torch.arange(0, self.size, 2, device=x.device, dtype=wide.dtype) / self.size)
        angle = time[:, None] * rate
        a, b = wide.chunk(2, -1)
        return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1).to(x.dtype)

    def forward(self, x: Tensor) -> Tensor:
        q, k = self.rotate(heads_of(self.q(x), self.heads)), self.rotate(heads_of(self.k(x), self.kv_heads))
        v = heads_of(self.v(x), self.kv_heads)
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, 1) for t in (k, v))
        score = q @ k.mT / math.sqrt(self.size)
        blocked = torch.ones(score.shape[-2:], device=x.device, dtype=torch.bool).triu(1)
        weight = island(score).masked_fill(blocked, -math.inf).softmax(-1).to(x.dtype)
        return self.out(merged(weight @ v))


def make_gqa_rope() -> Made:
    return GroupedQueryRope(32, 4, 2), (2.0 * torch.randn(4, 16, 32),)


class WindowAttention(nn.Module):
    index: Tensor

    def __init__(self, dim: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)
        self.table = nn.Parameter(0.5 * torch.randn(2 * window - 1, heads))
        step = torch.arange(window)
        self.register_buffer("index", step[:, None] - step[None] + window - 1)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, dim = x.shape
        q, k, v = (heads_of(t, self.heads) for t in self.qkv(x.reshape(-1, self.window, dim)).chunk(3, -1))
        score = q @ k.mT / math.sqrt(q.shape[-1]) + self.table[self.index].permute(2, 0, 1)
        return self.out(merged(score.softmax(-1) @ v)).reshape(batch, time, dim)


def make_window_attention() -> Made:
    return WindowAttention(32, 4, 8), (2.0 * torch.randn(4, 32, 32),)


class LinearAttention(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k = F.elu(self.q(x)) + 1, F.elu(self.k(x)) + 1
        state = torch.einsum("btd,bte->bde", k, self.v(x)) / x.shape[1]
        norm = torch.einsum("btd,bd->bt", q, k.mean(1))
        return torch.einsum("btd,bde->bte", q, state) / norm[..., None]


def make_linear_attention() -> Made:
    return LinearAttention(24), (torch.randn(8, 20, 24),)


class TopTwoExperts(nn.Module):
    """Routing in float32, weights renormalised over the chosen two."""

    def __init__(self, dim: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(dim, experts, bias=False)
        nn.init.normal_(self.router.weight, std=1.0)
        self.up = nn.Parameter(torch.randn(experts, dim, 2 * dim) / math.sqrt(dim))
        self.down = nn.Parameter(torch.randn(experts, 2 * dim, dim) / math.sqrt(2 * dim))

    def forward(self, x: Tensor) -> Tensor:
        logits = F.linear(island(x), island(self.router.weight))
        best, chosen = logits.topk(2, -1)
        gate = torch.zeros_like(logits).scatter(1, chosen, best.softmax(-1)).to(x.dtype)
        each = torch.einsum("eth,ehd->etd", F.silu(torch.einsum("td,edh->eth", x, self.up)), self.down)
        return torch.einsum("te,etd->td", gate, each)


def make_top_two_experts() -> Made:
    return TopTwoExperts(16, 6), (torch.randn(64, 16),)


class ExpertChoice(nn.Module):
    def __init__(self, dim: int, experts: int, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.router = nn.Linear(dim, experts, bias=False)
        nn.init.normal_(self.router.weight, std=0.7)
        self.weight = nn.Parameter(torch.randn(experts, dim, dim) / math.sqrt(dim))

    def forward(self, x: Tensor) -> Tensor:
        affinity = F.linear(island(x), island(self.router.weight)).softmax(-1).T
        gate, token = affinity.topk(self.capacity, -1)
        done = torch.bmm(x[token], self.weight) * gate[..., None].to(x.dtype)
        return x.index_add(0, token.flatten(), done.flatten(0, 1))


def make_expert_choice() -> Made:
    return ExpertChoice(16, 4, 20), (torch.randn(48, 16),)


class UNet1d(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter = nn.Conv1d(3, width, 5, padding=2)
        self.down = nn.Conv1d(width, 2 * width, 4, stride=2, padding=1)
        self.mid = nn.Sequential(nn.GroupNorm(4, 2 * width), nn.SiLU(), nn.Conv1d(2 * width, 2 * width, 3, padding=1))
        self.up = nn.ConvTranspose1d(2 * width, width, 4, stride=2, padding=1)
        self.leave = nn.Sequential(nn.GroupNorm(4, 2 * width), nn.SiLU(), nn.Conv1d(2 * width, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        skip = self.enter(x)
        low = self.down(skip)
        return self.leave(torch.cat((skip, self.up(low + self.mid(low))), 1))


def make_unet1d() -> Made:
    return UNet1d(16), (torch.randn(8, 3, 32),)


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depth = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.point = nn.Conv2d(channels, channels, 1)
        self.squeeze, self.excite = nn.Linear(channels, 6), nn.Linear(6, channels)

    def forward(self, x: Tensor) -> Tensor:
        h = F.hardswish(self.point(F.gelu(self.depth(x))))
        gate = torch.sigmoid(self.excite(F.relu(self.squeeze(h.mean((2, 3))))))
        return x + h * gate[..., None, None]


def make_squeeze_excite() -> Made:
    return SqueezeExcite(24), (torch.randn(8, 24, 6, 6),)


class LayerNormLstm(nn.Module):
    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.inp, self.rec = nn.Linear(size, 4 * hidden), nn.Linear(hidden, 4 * hidden, bias=False)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(x.shape[0], self.hidden)
        out = []
        for drive in self.inp(x).unbind(1):
            i, f, g, o = (drive + self.rec(h)).chunk(4, -1)
            c = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(self.norm(c))
            out.append(h)
        return torch.stack(out, 1)


def make_layernorm_lstm() -> Made:
    return LayerNormLstm(8, 24), (torch.randn(8, 14, 8),)


class GruCells(nn.Module):
    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.first, self.second = nn.GRUCell(size, hidden), nn.GRUCell(hidden, hidden)
        self.head = nn.Linear(hidden, 5)

    def forward(self, x: Tensor) -> Tensor:
        a = b = x.new_zeros(x.shape[0], self.first.hidden_size)
        for step in x.unbind(1):
            a = self.first(step, a)
            b = b + self.second(a, b)
        return self.head(b)


def make_gru_cells() -> Made:
    return GruCells(6, 20), (torch.randn(16, 10, 6),)


class SelectiveScan(nn.Module):
    """The state is kept in float32 and its decay in the logarithm."""

    def __init__(self, dim: int, state: int) -> None:
        super().__init__()
        self.log_rate = nn.Parameter(torch.rand(dim, state) - 1.5)
        self.step, self.drive, self.read = nn.Linear(dim, dim), nn.Linear(dim, state), nn.Linear(dim, state)
        self.skip = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        step, drive, read = island(F.softplus(self.step(x))), island(self.drive(x)), island(self.read(x))
        decay = torch.exp(-step[..., None] * torch.exp(island(self.log_rate)))
        push = (step * island(x))[..., None] * drive[:, :, None]
        h, out = torch.zeros_like(push[:, 0]), []
        for t in range(x.shape[1]):
            h = decay[:, t] * h + push[:, t]
            out.append((h * read[:, t, None]).sum(-1))
        return torch.stack(out, 1).to(x.dtype) + self.skip * x


def make_selective_scan() -> Made:
    return SelectiveScan(16, 8), (torch.randn(4, 20, 16),)


class NarrowResidual(nn.Module):
    def __init__(self, dim: int, depth: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
            for _ in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + 0.5 * block(x)
        return x


def make_deep_narrow() -> Made:
    return NarrowResidual(10, 20), (torch.randn(32, 10),)


class SquaredReluWide(nn.Module):
    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(dim, width), nn.Linear(width, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.relu(self.up(x)).square())


def make_wide_squared_relu() -> Made:
    return SquaredReluWide(24, 2048), (torch.randn(16, 24),)


class SaturatedGates(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.value, self.gate, self.head = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(4 * self.value(x)) * torch.sigmoid(6 * self.gate(x)))


def make_saturated_gates() -> Made:
    return SaturatedGates(24), (1.5 * torch.randn(64, 24),)


class TinyOutput(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return 1e-12 * self.head(F.silu(self.body(x)))


def make_tiny_output() -> Made:
    return TinyOutput(20), (torch.randn(32, 20),)


class BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, bias)
        return F.gelu(x + bias)

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor, Tensor]:
        x, bias = ctx.saved_tensors
        z = island(x + bias)
        slope = 0.5 * (1 + torch.erf(z / math.sqrt(2))) + z * torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        wide = island(g) * slope
        return wide.to(g.dtype), wide.flatten(0, -2).sum(0).to(g.dtype)


class FusedFeedForward(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(4 * dim, dim)
        self.bias = nn.Parameter(0.3 * torch.randn(4 * dim))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(BiasGelu.apply(self.up(x), self.bias))


def make_fused_bias_gelu() -> Made:
    return FusedFeedForward(24), (torch.randn(4, 12, 24),)


class FusedRms(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor) -> Tensor:
        wide = island(x)
        inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        ctx.save_for_backward(x, weight, inverse)
        return (wide * inverse * island(weight)).to(x.dtype)

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, inverse = ctx.saved_tensors
        unit, g_wide = island(x) * inverse, island(g)
        g_unit = g_wide * island(weight)
        gx = inverse * (g_unit - unit * (g_unit * unit).mean(-1, keepdim=True))
        return gx.to(x.dtype), (g_wide * unit).flatten(0, -2).sum(0).to(weight.dtype)


class RmsStack(nn.Module):
    def __init__(self, dim: int, depth: int) -> None:
        super().__init__()
        self.scales = nn.ParameterList(nn.Parameter(1 + 0.2 * torch.randn(dim)) for _ in range(depth))
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for scale, layer in zip(self.scales, self.layers, strict=True):
            x = x + torch.tanh(layer(FusedRms.apply(x, scale)))
        return x


def make_fused_rms() -> Made:
    return RmsStack(20, 4), (torch.randn(6, 8, 20),)


class Checkpointed(nn.Module):
    def __init__(self, dim: int, depth: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


def make_checkpointed_encoder() -> Made:
    return Checkpointed(24, 2), (torch.randn(4, 10, 24),)


class Field(nn.Module):
    """One tensor of a model's structured output."""

    def __init__(self, model: nn.Module, name: str, argument: str) -> None:
        super().__init__()
        self.model, self.name, self.argument = model, name, argument

    def forward(self, x: Tensor) -> Tensor:
        return getattr(self.model(**{self.argument: x}), self.name)


def make_hf_gpt2() -> Made:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=60,
        n_positions=16,
        n_embd=32,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    config._attn_implementation = "eager"
    return Field(GPT2LMHeadModel(config), "logits", "input_ids"), (torch.randint(0, 60, (4, 12)),)


def make_hf_llama() -> Made:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=60,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        initializer_range=0.1,
        use_cache=False,
    )
    config._attn_implementation = "eager"
    return Field(LlamaForCausalLM(config), "logits", "input_ids"), (torch.randint(0, 60, (4, 12)),)


def make_hf_vit() -> Made:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=16,
        patch_size=4,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.1,
        qkv_bias=False,  # a key's bias would have no gradient
    )
    config._attn_implementation = "eager"
    model = ViTModel(config, add_pooling_layer=False)
    return Field(model, "last_hidden_state", "pixel_values"), (torch.randn(4, 3, 16, 16),)


class TiedAutoencoder(nn.Module):
    def __init__(self, dim: int, code: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(code, dim) / math.sqrt(dim))
        self.encode_bias, self.decode_bias = nn.Parameter(torch.zeros(code)), nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.softplus(F.linear(x, self.weight, self.encode_bias)), self.weight.T, self.decode_bias) - x


def make_tied_autoencoder() -> Made:
    return TiedAutoencoder(40, 12), (torch.randn(32, 40),)


class TiedLanguageModel(nn.Module):
    def __init__(self, words: int, dim: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, dim)
        self.mix = nn.Conv1d(dim, dim, 3)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, token: Tensor) -> Tensor:
        h = self.embed(token)
        h = h + F.gelu(self.mix(F.pad(h.mT, (2, 0)))).mT
        return island(self.head(self.norm(h)) / 4).log_softmax(-1).to(h.dtype)


def make_tied_language_model() -> Made:
    return TiedLanguageModel(50, 24), (torch.randint(0, 50, (6, 12)),)


class Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).mT


def make_parametrized_mlp() -> Made:
    middle = nn.Linear(24, 24)
    parametrize.register_parametrization(middle, "weight", Symmetric())
    net = nn.Sequential(weight_norm(nn.Linear(12, 24)), nn.Tanh(), middle, nn.Tanh(), weight_norm(nn.Linear(24, 6)))
    return net, (torch.randn(48, 12),)


class MixtureDensity(nn.Module):
    def __init__(self, size: int, parts: int) -> None:
        super().__init__()
        self.parts = parts
        self.body, self.head = nn.Linear(size, 32), nn.Linear(32, 3 * parts)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        logit, mean, log_width = island(self.head(torch.tanh(self.body(x)))).chunk(3, -1)
        z = (island(target)[:, None] - mean) * torch.exp(-log_width)
        return (logit.log_softmax(-1) - 0.5 * z * z - log_width).logsumexp(-1).to(x.dtype)


def make_mixture_density() -> Made:
    return MixtureDensity(6, 5), (torch.randn(64, 6), torch.randn(64))


class InPlace(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.shift = nn.Parameter(torch.randn(dim))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h.add_(self.shift).relu_()
        out = torch.zeros_like(h)
        out[:, ::2] = self.second(h)[:, ::2]
        out[:, 1::2] = torch.sigmoid_(self.third(h))[:, 1::2]
        return out.mul_(2.0).sub_(x)


def make_in_place() -> Made:
    return InPlace(24), (torch.randn(40, 24),)


class Contrastive(nn.Module):
    def __init__(self, left: int, right: int, dim: int) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(left, dim), nn.Linear(right, dim)
        self.log_scale = nn.Parameter(torch.tensor(math.log(8.0)))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        u, v = F.normalize(island(self.left(a)), dim=-1), F.normalize(island(self.right(b)), dim=-1)
        score = island(self.log_scale).exp() * u @ v.T
        return (score.logsumexp(1) + score.logsumexp(0) - 2 * score.diagonal()).to(a.dtype)


def make_contrastive() -> Made:
    return Contrastive(20, 12, 16), (torch.randn(24, 20), torch.randn(24, 12))


class GraphMean(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.own, self.near, self.head = nn.Linear(dim, dim), nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        total = torch.zeros_like(x).index_add(0, target, self.near(x)[source])
        count = torch.zeros_like(x[:, 0]).index_add(0, target, torch.ones_like(x[source, 0])).clamp(min=1)
        return self.head(F.elu(self.own(x) + total / count[:, None]))


def make_graph_mean() -> Made:
    return GraphMean(20), (torch.randn(30, 20), torch.randint(0, 30, (120,)), torch.randint(0, 30, (120,)))


class FourierMixer(nn.Module):
    def __init__(self, time: int, dim: int) -> None:
        super().__init__()
        self.real = nn.Parameter(torch.randn(time // 2 + 1, dim))
        self.imag = nn.Parameter(torch.randn(time // 2 + 1, dim))
        self.head = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(island(x), dim=1, norm="ortho")
        mixed = spectrum * torch.complex(island(self.real), island(self.imag))
        return self.head(F.gelu(torch.fft.irfft(mixed, n=x.shape[1], dim=1, norm="ortho").to(x.dtype)))


def make_fourier_mixer() -> Made:
    return FourierMixer(16, 24), (torch.randn(6, 16, 24),)


class RungeKutta(nn.Module):
    def __init__(self, dim: int, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.up, self.down = nn.Linear(dim, 3 * dim), nn.Linear(3 * dim, dim)

    def slope(self, x: Tensor) -> Tensor:
        return self.down(torch.tanh(self.up(x)))

    def forward(self, x: Tensor) -> Tensor:
        step = 1.0 / self.steps
        for _ in range(self.steps):
            a = self.slope(x)
            b = self.slope(x + 0.5 * step * a)
            c = self.slope(x + 0.5 * step * b)
            x = x + step / 6 * (a + 2 * b + 2 * c + self.slope(x + step * c))
        return x


def make_runge_kutta() -> Made:
    return RungeKutta(12, 6), (torch.randn(32, 12),)


class Sinkhorn(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        plan = island(torch.tanh(self.left(a)) @ torch.tanh(self.right(b)).mT) / 2
        for _ in range(6):
            plan = plan - plan.logsumexp(-1, keepdim=True)
            plan = plan - plan.logsumexp(-2, keepdim=True)
        return plan.exp().to(a.dtype) @ b


def make_sinkhorn() -> Made:
    return Sinkhorn(16), (torch.randn(6, 10, 16), torch.randn(6, 10, 16))


class Pinball(torch.autograd.Function):
    """A smoothed quantile loss: quadratic within the unit band, linear outside with slopes of its own."""

    @staticmethod
    def forward(ctx, error: Tensor, tilt: Tensor) -> Tensor:
        ctx.save_for_backward(error, tilt)
        side = torch.where(error > 0, tilt, 1 - tilt)
        return side * torch.where(error.abs() < 1, 0.5 * error * error, error.abs() - 0.5)

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor, Tensor]:
        error, tilt = ctx.saved_tensors
        side = torch.where(error > 0, tilt, 1 - tilt)
        bend = torch.where(error.abs() < 1, 0.5 * error * error, error.abs() - 0.5)
        return g * side * error.clamp(-1, 1), (g * bend * error.sign()).sum(0)


class QuantileHead(nn.Module):
    def __init__(self, dim: int, levels: int) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(dim, 32), nn.Linear(32, levels)
        self.tilt = nn.Parameter(torch.linspace(0.1, 0.9, levels))

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return Pinball.apply(target[:, None] - self.head(F.gelu(self.body(x))), self.tilt)


def make_quantile_head() -> Made:
    return QuantileHead(10, 7), (torch.randn(64, 10), 1.5 * torch.randn(64))


class Standardised(nn.Module):
    mean: Tensor
    width: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.randn(size))
        self.register_buffer("width", 0.5 + torch.rand(size))
        self.net = nn.Sequential(nn.Linear(size, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.net((x - self.mean) / self.width)


def make_standardised_inputs() -> Made:
    module = Standardised(10).eval()
    return module, (torch.randn(48, 10),)


class FactorisedSum(nn.Module):
    """A factorisation machine: half the squared sum less the sum of squares, in a well-conditioned range."""

    def __init__(self, fields: int, rank: int) -> None:
        super().__init__()
        self.linear = nn.Linear(fields, 1)
        self.factor = nn.Parameter(0.5 * torch.randn(fields, rank))

    def forward(self, x: Tensor) -> Tensor:
        pair = (x @ self.factor).square() - x.square() @ self.factor.square()
        return self.linear(x).squeeze(-1) + 0.5 * pair.sum(-1)


def make_factorisation_machine() -> Made:
    return FactorisedSum(24, 8), (torch.randn(64, 24),)


class LatentReader(nn.Module):
    def __init__(self, dim: int, latents: int) -> None:
        super().__init__()
        self.latent = nn.Parameter(torch.randn(latents, dim))
        self.norm = nn.RMSNorm(dim)
        self.read = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.mix = nn.Bilinear(dim, dim, 8)

    def forward(self, x: Tensor) -> Tensor:
        latent = self.latent.expand(x.shape[0], -1, -1)
        got = self.read(latent, x, self.norm(x), need_weights=False)[0]
        return self.mix(latent + got, got)


def make_latent_reader() -> Made:
    return LatentReader(24, 5), (torch.randn(8, 14, 24),)


CORRECT: dict[str, Entry] = {
    "gqa_rope": Entry(make_gqa_rope, why="angles and softmax in float32"),
    "window_attention": Entry(make_window_attention, why="a gathered table of relative biases"),
    "linear_attention": Entry(make_linear_attention, why="a quotient of positive sums"),
    "top_two_experts": Entry(make_top_two_experts, may=MAY_ROUTE, why="a token near a tie may change expert"),
    "expert_choice": Entry(make_expert_choice, may=MAY_ROUTE, why="a token at the capacity's edge may drop out"),
    "unet1d": Entry(make_unet1d, why="strided, transposed and concatenated convolutions"),
    "squeeze_excite": Entry(make_squeeze_excite, why="depthwise convolution and a gate"),
    "layernorm_lstm": Entry(make_layernorm_lstm, why="a recurrent cell by hand"),
    "gru_cells": Entry(make_gru_cells, why="two stacked cells with a residual state"),
    "selective_scan": Entry(make_selective_scan, why="a float32 state in a narrow module"),
    "deep_narrow": Entry(make_deep_narrow, why="twenty residual blocks of width ten"),
    "wide_squared_relu": Entry(make_wide_squared_relu, why="a wide layer with a quadratic activation"),
    "saturated_gates": Entry(make_saturated_gates, why="most gates are shut or open"),
    "tiny_output": Entry(make_tiny_output, may=MAY_UNDERFLOW, why="gradients of 1e-13, which bf16 holds"),
    "fused_bias_gelu": Entry(make_fused_bias_gelu, why="an own backward, which is right"),
    "fused_rms": Entry(make_fused_rms, why="an own backward in float32, which is right"),
    "checkpointed_encoder": Entry(make_checkpointed_encoder, why="recomputed activations"),
    "hf_gpt2": Entry(make_hf_gpt2, why="a Hugging Face model"),
    "hf_llama": Entry(make_hf_llama, why="a Hugging Face model with float32 islands"),
    "hf_vit": Entry(make_hf_vit, why="a Hugging Face model"),
    "tied_autoencoder": Entry(make_tied_autoencoder, why="one weight, used both ways"),
    "tied_language_model": Entry(make_tied_language_model, why="embedding and head are one parameter"),
    "parametrized_mlp": Entry(make_parametrized_mlp, why="weight norm and a symmetric weight"),
    "mixture_density": Entry(make_mixture_density, why="log-sum-exp in float32"),
    "in_place": Entry(make_in_place, why="in-place operations, all legal"),
    "contrastive": Entry(make_contrastive, why="a learned temperature in a float32 island"),
    "graph_mean": Entry(make_graph_mean, why="scattered sums over neighbours"),
    "fourier_mixer": Entry(make_fourier_mixer, why="a transform in float32"),
    "runge_kutta": Entry(make_runge_kutta, why="one layer used 24 times"),
    "sinkhorn": Entry(make_sinkhorn, why="iterated normalisation in the logarithm"),
    "quantile_head": Entry(make_quantile_head, why="an own backward with branches, which is right"),
    "standardised_inputs": Entry(make_standardised_inputs, why="buffers, batch norm in evaluation"),
    "factorisation_machine": Entry(make_factorisation_machine, why="a difference of like-sized sums"),
    "latent_reader": Entry(make_latent_reader, why="expanded queries and a bilinear head"),
}


# ------------------------------------------------------------------------------------------------------ gradient bugs


class LoraFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, a: Tensor, b: Tensor, scale: float, right: bool) -> Tensor:
        ctx.save_for_backward(x, weight, a, b)
        ctx.scale, ctx.right = scale, right
        return x @ weight.T + scale * (x @ a.T) @ b.T

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, a, b = ctx.saved_tensors
        low = g @ b
        gx = g @ weight + ctx.scale * low @ a
        ga = (ctx.scale if ctx.right else 1.0) * low.T @ x
        return gx, g.T @ x, ga, ctx.scale * g.T @ (x @ a.T), None, None


class LoraLinear(nn.Module):
    def __init__(self, dim: int, rank: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.inp = nn.Linear(dim, dim)
        self.weight = nn.Parameter(torch.randn(dim, dim) / math.sqrt(dim))
        self.a = nn.Parameter(torch.randn(rank, dim) / math.sqrt(dim))
        self.b = nn.Parameter(torch.randn(dim, rank) / math.sqrt(rank))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(LoraFunction.apply(F.relu(self.inp(x)), self.weight, self.a, self.b, 0.5, self.right))


def make_lora_scale(right: bool = False) -> Made:
    return LoraLinear(24, 4, right), (torch.randn(48, 24),)


class UnbiasedNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor, right: bool) -> Tensor:
        wide = island(x)
        mean, width = wide.mean(-1, keepdim=True), wide.std(-1, keepdim=True)
        ctx.save_for_backward(wide, mean, width, weight)
        ctx.right = right
        return ((wide - mean) / width * island(weight) + island(bias)).to(x.dtype)

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor | None, ...]:
        wide, mean, width, weight = ctx.saved_tensors
        unit, g_wide = (wide - mean) / width, island(g)
        gu = g_wide * island(weight)
        gx = gu - gu.mean(-1, keepdim=True) - unit * (gu * unit).sum(-1, keepdim=True) / (unit.shape[-1] - 1)
        if not ctx.right:
            unit = (wide - mean) / wide.std(-1, keepdim=True, correction=0)
        return (gx / width).to(g.dtype), (g_wide * unit).sum(0).to(g.dtype), g_wide.sum(0).to(g.dtype), None


class NormedMlp(nn.Module):
    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.inp, self.out = nn.Linear(12, dim), nn.Linear(dim, 12)
        self.weight, self.bias = nn.Parameter(1 + 0.2 * torch.randn(dim)), nn.Parameter(0.2 * torch.randn(dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.gelu(UnbiasedNorm.apply(self.inp(x), self.weight, self.bias, self.right)))


def make_norm_recomputed_biased(right: bool = False) -> Made:
    return NormedMlp(8, right), (torch.randn(48, 12),)


class BilinearFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, y: Tensor, right: bool) -> Tensor:
        ctx.save_for_backward(x, weight, y)
        ctx.right = right
        return x @ weight @ y.mT

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, y = ctx.saved_tensors
        gw = (x.mT @ g @ y).sum(0)
        return g @ y @ weight.T, gw if ctx.right else gw.T, g.mT @ x @ weight, None


class Biaffine(nn.Module):
    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.head, self.dependent = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.weight = nn.Parameter(torch.randn(dim, dim) / math.sqrt(dim))

    def forward(self, x: Tensor) -> Tensor:
        h, d = F.gelu(self.head(x)), F.gelu(self.dependent(x))
        return BilinearFunction.apply(h, self.weight, d, self.right)


def make_biaffine_transposed(right: bool = False) -> Made:
    return Biaffine(20, right), (torch.randn(6, 12, 20),)


class ScaleShift(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, scale: Tensor, shift: Tensor, right: bool) -> Tensor:
        ctx.save_for_backward(x, scale)
        ctx.right = right
        return x * scale + shift

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor | None, ...]:
        x, scale = ctx.saved_tensors
        gs = g.sum(0, True)
        return (
            g * scale,
            (g * x).sum((0, 2, 3), True),
            gs.sum((2, 3), True) if ctx.right else gs.mean((2, 3), True),
            None,
        )


class Affine2d(nn.Module):
    def __init__(self, channels: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.conv, self.out = nn.Conv2d(3, channels, 3), nn.Conv2d(channels, 4, 3)
        self.scale = nn.Parameter(1 + 0.2 * torch.randn(1, channels, 1, 1))
        self.shift = nn.Parameter(0.2 * torch.randn(1, channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.silu(ScaleShift.apply(self.conv(x), self.scale, self.shift, self.right)))


def make_shift_not_summed(right: bool = False) -> Made:
    return Affine2d(12, right), (torch.randn(6, 3, 10, 10),)


class CentredHook(nn.Module):
    """A hook left over from an experiment takes the batch mean off the gradient of the embedding branch."""

    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.branch, self.trunk, self.head = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.branch(y)
        if h.requires_grad and not self.right:
            h.register_hook(lambda g: g - g.mean(0, keepdim=True))
        return self.head(F.gelu(self.trunk(x) + h))


def make_centring_hook(right: bool = False) -> Made:
    return CentredHook(20, right), (torch.randn(8, 20), torch.randn(8, 20))


class UnitKeys(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, right: bool) -> Tensor:
        length = island(x).norm(dim=-1, keepdim=True)
        unit = island(x) / length
        ctx.save_for_backward(unit, length)
        ctx.right = right
        return unit.to(x.dtype)

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor | None, ...]:
        unit, length = ctx.saved_tensors
        gx = island(g)
        if ctx.right:
            gx = gx - unit * (gx * unit).sum(-1, keepdim=True)
        return (gx / length).to(g.dtype), None


class CosineAttention(nn.Module):
    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.q, self.k, self.v = (nn.Linear(dim, dim, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k = F.normalize(self.q(x), dim=-1), UnitKeys.apply(self.k(x), self.right)
        return (6 * q @ k.mT).softmax(-1) @ self.v(x)


def make_cosine_keys(right: bool = False) -> Made:
    return CosineAttention(8, right), (torch.randn(8, 12, 8),)


class Coupling(torch.autograd.Function):
    """y1 = x1 + tanh(x2 F), y2 = x2 + tanh(y1 G); the backward reconstructs the inputs from the outputs."""

    @staticmethod
    def forward(ctx, x1: Tensor, x2: Tensor, f: Tensor, g: Tensor, right: bool) -> tuple[Tensor, Tensor]:
        y1 = x1 + torch.tanh(x2 @ f)
        y2 = x2 + torch.tanh(y1 @ g)
        ctx.save_for_backward(y1, y2, f, g)
        ctx.right = right
        return y1, y2

    @staticmethod
    def backward(ctx, g1: Tensor, g2: Tensor) -> tuple[Tensor | None, ...]:
        y1, y2, f, g = ctx.saved_tensors
        tg = torch.tanh(y1 @ g)
        x2 = y2 - tg if ctx.right else y2
        d = g2 * (1 - tg * tg)
        gg, g1 = y1.T @ d, g1 + d @ g.T
        tf = torch.tanh(x2 @ f)
        d = g1 * (1 - tf * tf)
        return g1, g2 + d @ f.T, x2.T @ d, gg, None


class Reversible(nn.Module):
    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.inp, self.out = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.f = nn.Parameter(torch.randn(dim, dim) / math.sqrt(dim))
        self.g = nn.Parameter(torch.randn(dim, dim) / math.sqrt(dim))

    def forward(self, x: Tensor) -> Tensor:
        x1, x2 = self.inp(x).chunk(2, -1)
        return self.out(torch.cat(Coupling.apply(x1, x2, self.f, self.g, self.right), -1))


def make_reversible_stale(right: bool = False) -> Made:
    return Reversible(16, right), (torch.randn(40, 16),)


class ReusedBuffer(nn.Module):
    """Activations are clamped through ``.data`` for a statistic, after a product has saved them for its backward."""

    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.inp, self.out = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.gain = nn.Parameter(1 + 0.3 * torch.randn(dim))

    def forward(self, x: Tensor) -> Tensor:
        h = 2 * self.inp(x)
        y = h * self.gain
        seen = h.data.clone() if self.right else h.data
        busy = (seen.clamp_(-1, 1).abs() < 1).any()
        return self.out(torch.tanh(y)) * torch.where(busy, 1.0, 0.0).to(x.dtype)


def make_data_clamped(right: bool = False) -> Made:
    return ReusedBuffer(20, right), (torch.randn(48, 20),)


class ScanFunction(torch.autograd.Function):
    """h_t = a h_{t-1} + x_t with a per channel."""

    @staticmethod
    def forward(ctx, x: Tensor, a: Tensor, right: bool) -> Tensor:
        h, states = torch.zeros_like(x[:, 0]), []
        for step in x.unbind(1):
            h = a * h + step
            states.append(h)
        out = torch.stack(states, 1)
        ctx.save_for_backward(out, a)
        ctx.right = right
        return out

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor | None, ...]:
        out, a = ctx.saved_tensors
        carry, gx = torch.zeros_like(g[:, 0]), []
        for step in reversed(g.unbind(1)):
            carry = step + a * carry
            gx.append(carry)
        gx = torch.stack(gx[::-1], 1)
        before = F.pad(out[:, :-1], (0, 0, 1, 0)) if ctx.right else out
        return gx, (gx * before).sum((0, 1)), None


class LeakyScan(nn.Module):
    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.inp, self.out = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.decay = nn.Parameter(torch.rand(dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(ScanFunction.apply(self.inp(x), torch.sigmoid(self.decay), self.right)))


def make_scan_shifted(right: bool = False) -> Made:
    return LeakyScan(16, right), (torch.randn(6, 12, 16),)


class CausalConv(torch.autograd.Function):
    """y_t = sum_k w_k x_{t-k}, per channel."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, right: bool) -> Tensor:
        taps = F.pad(x, (weight.shape[1] - 1, 0)).unfold(-1, weight.shape[1], 1)  # the newest tap comes last
        ctx.save_for_backward(taps, weight)
        ctx.right = right
        return (taps * weight.flip(1)[:, None]).sum(-1)

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor | None, ...]:
        taps, weight = ctx.saved_tensors
        gw = (g[..., None] * taps).sum((0, 2))
        after = F.pad(g, (0, weight.shape[1] - 1)).unfold(-1, weight.shape[1], 1)
        return (after * weight[:, None]).sum(-1), gw.flip(1) if ctx.right else gw, None


class ShortConv(nn.Module):
    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.inp, self.out = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.weight = nn.Parameter(0.5 * torch.randn(dim, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.silu(CausalConv.apply(self.inp(x).mT, self.weight, self.right)).mT)


def make_conv_taps_flipped(right: bool = False) -> Made:
    return ShortConv(20, right), (torch.randn(6, 14, 20),)


class Dispatch(torch.autograd.Function):
    """A copy of each token for each of its two experts; experts 2i and 2i+1 live on one device."""

    @staticmethod
    def forward(ctx, x: Tensor, chosen: Tensor, right: bool) -> Tensor:
        ctx.save_for_backward(chosen)
        ctx.right = right
        return x[:, None].repeat(1, 2, 1)

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor | None, ...]:
        (chosen,) = ctx.saved_tensors
        if ctx.right:
            return g.sum(1), None, None
        same = chosen[:, :1] // 2 == chosen[:, 1:] // 2  # sent to that device once, so summed once
        return g[:, 0] + torch.where(same, 0, g[:, 1]), None, None


class HashedExperts(nn.Module):
    def __init__(self, dim: int, experts: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.inp = nn.Linear(dim, dim)
        self.weight = nn.Parameter(torch.randn(experts, dim, dim) / math.sqrt(dim))

    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        copies = Dispatch.apply(F.gelu(self.inp(x)), chosen, self.right)
        hot = F.one_hot(chosen, len(self.weight)).to(x.dtype)
        return torch.einsum("tsd,tse,edf->tf", copies, hot, self.weight)


def make_dispatch_same_device(right: bool = False) -> Made:
    first = torch.arange(64) % 6
    chosen = torch.stack((first, (first + 1 + torch.randint(0, 5, (64,))) % 6), 1)
    chosen[:8, 1] = chosen[:8, 0] ^ 1  # some tokens of that pattern in every draw
    return HashedExperts(16, 6, right), (torch.randn(64, 16), chosen)


class ExpertLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor, expert: Tensor, right: bool) -> Tensor:
        ctx.save_for_backward(x, weight, expert)
        ctx.right = right
        return torch.bmm(x[:, None], weight[expert]).squeeze(1) + bias[expert]

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, expert = ctx.saved_tensors
        gx = torch.bmm(g[:, None], weight[expert].mT).squeeze(1)
        gw, gb = torch.zeros_like(weight), torch.zeros_like(weight[:, 0])
        for e in range(len(weight)):
            gw[e] = x[expert == e].T @ g[expert == e]
            if ctx.right or e + 1 < len(weight):
                gb[e] = g[expert == e].sum(0)
        return gx, gw, gb, None, None


class TypedExperts(nn.Module):
    def __init__(self, dim: int, experts: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.inp = nn.Linear(dim, dim)
        self.weight = nn.Parameter(torch.randn(experts, dim, dim) / math.sqrt(dim))
        self.bias = nn.Parameter(torch.randn(experts, dim))

    def forward(self, x: Tensor, kind: Tensor) -> Tensor:
        return torch.tanh(ExpertLinear.apply(F.relu(self.inp(x)), self.weight, self.bias, kind, self.right))


def make_last_expert_bias(right: bool = False) -> Made:
    return TypedExperts(16, 5, right), (torch.randn(50, 16), torch.arange(50) % 5)


class ExactGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, right: bool) -> Tensor:
        ctx.save_for_backward(x)
        ctx.right = right
        return F.gelu(x)

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        z = island(x)
        if ctx.right:
            slope = 0.5 * (1 + torch.erf(z / math.sqrt(2))) + z * torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        else:
            gate = torch.sigmoid(1.5 * z)  # meant for the sigmoid approximation, with its constant cut short
            slope = gate + 1.5 * z * gate * (1 - gate)
        return g * slope.to(g.dtype), None


class GeluMlp(nn.Module):
    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.up, self.down = nn.Linear(dim, 3 * dim), nn.Linear(3 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(ExactGelu.apply(2 * self.up(x), self.right))


def make_gelu_mismatch(right: bool = False) -> Made:
    return GeluMlp(24, right), (torch.randn(64, 24),)


class Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx, table: Tensor, index: Tensor, right: bool) -> Tensor:
        ctx.save_for_backward(table, index)
        ctx.right = right
        return table[index]

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor | None, ...]:
        table, index = ctx.saved_tensors
        flat, rows = index.flatten(), g.flatten(0, -2)
        grad = torch.zeros_like(table)
        if ctx.right:
            return grad.index_add(0, flat, rows), None, None
        last = torch.zeros_like(table[:, 0], dtype=torch.long).scatter_reduce(
            0, flat, torch.arange(len(flat), device=flat.device), "amax", include_self=False
        )  # what ``grad[flat] = rows`` leaves, made deterministic: the last of the repeated rows
        grad[flat] = rows[last[flat]]
        return grad, None, None


class BagOfWords(nn.Module):
    def __init__(self, words: int, dim: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.table = nn.Parameter(torch.randn(words, dim))
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 12))

    def forward(self, token: Tensor) -> Tensor:
        return self.head(Lookup.apply(self.table, token, self.right).cumsum(1) / 2)


def make_lookup_overwrites(right: bool = False) -> Made:
    return BagOfWords(80, 16, right), (torch.randint(0, 80, (10, 6)),)


class HardSwish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, right: bool) -> Tensor:
        ctx.save_for_backward(x)
        ctx.right = right
        return F.hardswish(x)

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        slope = torch.where(x < -3, 0.0, (2 * x + 3) / 6)
        if ctx.right:
            slope = torch.where(x > 3, 1.0, slope)
        return g * slope, None


class HardSwishConv(nn.Module):
    def __init__(self, channels: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.conv, self.head = nn.Conv1d(channels, channels, 3), nn.Conv1d(channels, 6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(HardSwish.apply(3 * self.conv(x), self.right))


def make_hardswish_upper(right: bool = False) -> Made:
    return HardSwishConv(16, right), (torch.randn(6, 16, 20),)


class SegmentMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, segment: Tensor, segments: int, right: bool) -> Tensor:
        count = torch.bincount(segment, minlength=segments)
        ctx.save_for_backward(segment, count)
        ctx.right = right
        total = torch.zeros_like(x[:segments]).index_add(0, segment, x)
        return total / count.clamp(min=1)[:, None].to(x.dtype)

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor | None, ...]:
        segment, count = ctx.saved_tensors
        least = 1 if ctx.right else 2
        return (g / count.clamp(min=least)[:, None].to(g.dtype))[segment], None, None, None


class SegmentPool(nn.Module):
    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.inp, self.out = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, segment: Tensor) -> Tensor:
        return self.out(torch.tanh(SegmentMean.apply(F.silu(self.inp(x)), segment, 12, self.right)))


def make_segment_singletons(right: bool = False) -> Made:
    segment = torch.cat((torch.arange(10).repeat_interleave(5), torch.tensor([10, 11])))
    return SegmentPool(18, right), (torch.randn(52, 18), segment)


class ScaledScores(torch.autograd.Function):
    """Heads of 28 are padded to 32 for the kernel."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, right: bool) -> Tensor:
        ctx.save_for_backward(q, k)
        ctx.right = right
        return q @ k.mT / math.sqrt(q.shape[-1])

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor | None, ...]:
        q, k = ctx.saved_tensors
        size = q.shape[-1]
        padded = size if ctx.right else -(-size // 32) * 32
        return g @ k / math.sqrt(padded), g.mT @ q / math.sqrt(size), None


class PaddedHeads(nn.Module):
    def __init__(self, dim: int, heads: int, right: bool) -> None:
        super().__init__()
        self.heads, self.right = heads, right
        self.q, self.k, self.v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads_of(project(x), self.heads) for project in (self.q, self.k, self.v))
        return self.out(merged(ScaledScores.apply(q, k, self.right).softmax(-1) @ v))


def make_padded_head_scale(right: bool = False) -> Made:
    return PaddedHeads(56, 2, right), (2.0 * torch.randn(6, 10, 56),)


# --------------------------------------------------------------------------------------------------- precision faults


class PowerDecay(nn.Module):
    """Weights decay ** age with the decay near one held in the narrow type; the twin raises the logarithm."""

    def __init__(self, channels: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.rate = nn.Parameter(5.9 + 0.2 * torch.randn(channels))
        self.gain = nn.Parameter(1 + 0.3 * torch.randn(channels))

    def forward(self, x: Tensor) -> Tensor:
        age = torch.arange(x.shape[1] - 1, -1, -1, device=x.device, dtype=x.dtype)[:, None]
        if self.right:
            weight = torch.exp(age * F.logsigmoid(self.rate))
        else:
            weight = torch.sigmoid(self.rate) ** age
        return (weight * x).sum(1) / math.sqrt(x.shape[1]) * self.gain


def make_power_of_decay(right: bool = False) -> Made:
    return PowerDecay(32, right), (torch.randn(16, 256, 32),)


class OnePassNorm(nn.Module):
    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.level = nn.Parameter(40 + 0.5 * torch.randn(dim))
        self.spread = nn.Parameter(1.5 + 0.3 * torch.randn(dim))
        self.weight = nn.Parameter(1 + 0.2 * torch.randn(dim))

    def forward(self, x: Tensor) -> Tensor:
        x = self.level + self.spread * x
        mean = x.mean(-1, keepdim=True)
        if self.right:
            variance = (x - mean).square().mean(-1, keepdim=True)
        else:
            variance = (x.square().mean(-1, keepdim=True) - mean.square()).clamp(min=0)
        return (x - mean) * torch.rsqrt(variance + 0.25) * self.weight


def make_one_pass_variance(right: bool = False) -> Made:
    return OnePassNorm(16, right), (torch.randn(64, 16),)


class RadialBasis(nn.Module):
    """Squared distances far from the origin as |x|² + |c|² - 2 x·c; the twin subtracts first."""

    def __init__(self, dim: int, centres: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.centre = nn.Parameter(16 + 0.5 * torch.randn(centres, dim))
        self.height = nn.Parameter(torch.randn(centres))

    def forward(self, x: Tensor) -> Tensor:
        if self.right:
            distance = (x[:, None] - self.centre).square().sum(-1)
        else:
            distance = x.square().sum(-1, keepdim=True) + self.centre.square().sum(-1) - 2 * x @ self.centre.T
        return torch.exp(-0.25 * distance.clamp(min=0)) * self.height


def make_expanded_distance(right: bool = False) -> Made:
    return RadialBasis(8, 16, right), (16 + 0.5 * torch.randn(48, 8),)


class NarrowAngles(nn.Module):
    """Rotary angles of positions in the thousands, multiplied out in the activations' own type."""

    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.q, self.k = nn.Parameter(1 + 0.3 * torch.randn(dim)), nn.Parameter(1 + 0.3 * torch.randn(dim))

    def rotate(self, x: Tensor, position: Tensor) -> Tensor:
        kind = island(x).dtype if self.right else x.dtype
        half = x.shape[-1] // 2
        rate = 100.0 ** (-torch.arange(half, device=x.device, dtype=kind) / half)
        angle = position.to(kind)[:, None] * rate
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def forward(self, x: Tensor, y: Tensor, position: Tensor) -> Tensor:
        q, k = self.rotate(self.q * x, position), self.rotate(self.k * y, position)
        return (q[:, :, None] * k[:, None]).unflatten(-1, (4, -1)).sum(-1)  # scores of each pair, in four heads


def make_narrow_angles(right: bool = False) -> Made:
    position = torch.randint(2500, 16000, (12,)).sort().values
    return NarrowAngles(32, right), (torch.randn(4, 12, 32), torch.randn(4, 12, 32), position)


class BoxFilter(nn.Module):
    """Window means as differences of running sums that reach a thousand."""

    def __init__(self, channels: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.scale = nn.Parameter(0.3 + 0.05 * torch.randn(channels, 1))
        self.gain = nn.Parameter(3 + torch.randn(channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        h = 1 + self.scale * x
        if self.right:
            window = F.avg_pool1d(h, 8, 1)
        else:
            total = F.pad(h.cumsum(-1), (1, 0))
            window = (total[..., 8:] - total[..., :-8]) / 8
        return torch.sin((window - 1) * self.gain)


def make_box_by_running_sum(right: bool = False) -> Made:
    return BoxFilter(16, right), (torch.randn(2, 16, 1024),)


class TailProbability(nn.Module):
    """The probability is stored in bfloat16 to save memory, and its complement is taken from that."""

    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.scale, self.level = nn.Parameter(0.3 + 0.1 * torch.rand(dim)), nn.Parameter(5.6 + 0.1 * torch.randn(dim))
        self.severity = nn.Parameter(torch.randn(dim))

    def forward(self, x: Tensor) -> Tensor:
        z = self.level + self.scale * x
        if self.right:
            tail = torch.sigmoid(-z)
        else:
            tail = 1 - torch.sigmoid(z).to(torch.bfloat16)
        return tail.to(x.dtype) * self.severity


def make_stored_probability(right: bool = False) -> Made:
    return TailProbability(16, right), (torch.randn(40, 16),)


class CarriedTotal(nn.Module):
    """A total, carried on from earlier segments, is kept in float16 whatever the module's own type."""

    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.scale, self.gain = nn.Parameter(0.6 + 0.1 * torch.randn(dim)), nn.Parameter(2 + 0.3 * torch.randn(dim))

    def forward(self, x: Tensor, carried: Tensor) -> Tensor:
        total = start = carried.to(island(x).dtype if self.right else torch.float16)[:, None]
        for step in (self.scale * x).unbind(1):
            total = total + step.to(total.dtype)
        mean = (total - start) / x.shape[1]
        return torch.sin(self.gain * mean.to(x.dtype))


def make_half_total(right: bool = False) -> Made:
    return CarriedTotal(16, right), (torch.randn(24, 32, 16) + torch.randn(24, 1, 16), 2048 + 64 * torch.arange(24))


class NaiveSoftplus(nn.Module):
    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.inp, self.out = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        z = 12 * self.inp(x)
        return self.out(F.softplus(z) if self.right else torch.log(1 + torch.exp(z)))


def make_naive_softplus(right: bool = False) -> Made:
    return NaiveSoftplus(20, right), (torch.randn(32, 20),)


class Kurtosis(nn.Module):
    """The fourth moment over the squared second, in raw units; the twin divides before it raises."""

    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.inp = nn.Linear(6, dim, bias=False)
        self.gain = nn.Parameter(1 + 0.3 * torch.randn(dim))

    def forward(self, x: Tensor) -> Tensor:
        h = 25 * self.inp(x)
        h = h - h.mean(1, keepdim=True)
        if self.right:
            kurtosis = (h / h.square().mean(1, keepdim=True).sqrt()).pow(4).mean(1)
        else:
            kurtosis = h.pow(4).mean(1) / h.pow(2).mean(1).square()
        return kurtosis * self.gain


def make_raw_kurtosis(right: bool = False) -> Made:
    return Kurtosis(8, right), (torch.randn(8, 24, 6),)


class SignalEnergy(nn.Module):
    """Squares of signals in volts are below fp16's smallest number; the twin brings them to size first."""

    def __init__(self, channels: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.taper = nn.Parameter(1 + 0.3 * torch.randn(channels))
        self.gain = nn.Parameter(1000 * (1 + 0.3 * torch.rand(channels)))

    def forward(self, x: Tensor) -> Tensor:
        if self.right:
            return (256 * self.taper * x).square().mean(1) * self.gain / 65536
        return (self.taper * x).square().mean(1) * self.gain


def make_signal_energy(right: bool = False) -> Made:
    return SignalEnergy(12, right), (4e-5 * torch.randn(16, 24, 12),)


class SigmoidTower(nn.Module):
    """Plain sigmoid layers: the first layers' gradients are ten decades below the last one's; the twin uses SiLU."""

    def __init__(self, dim: int, depth: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))
        self.head = nn.Linear(dim, 4)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + F.silu(layer(x)) if self.right else torch.sigmoid(0.5 * layer(x))
        return self.head(x)


def make_sigmoid_tower(right: bool = False) -> Made:
    return SigmoidTower(16, 14, right), (torch.randn(32, 16),)


class NearTiedRouter(nn.Module):
    """Young router weights under a bias of ten: the logits differ by less than their own rounding."""

    def __init__(self, dim: int, experts: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.router = nn.Linear(dim, experts)
        nn.init.normal_(self.router.weight, std=3e-4)
        nn.init.constant_(self.router.bias, 10.0)
        self.weight = nn.Parameter(torch.randn(experts, dim, dim) / math.sqrt(dim))

    def forward(self, x: Tensor) -> Tensor:
        logits = F.linear(island(x), island(self.router.weight), island(self.router.bias)) if self.right else None
        logits = self.router(x) if logits is None else logits
        expert = logits.argmax(-1)
        gate = logits.softmax(-1).gather(1, expert[:, None]).to(x.dtype)
        each = torch.einsum("td,edf->tef", x, self.weight)
        return gate * each[torch.arange(len(x), device=x.device), expert]


def make_near_tied_router(right: bool = False) -> Made:
    return NearTiedRouter(16, 4, right), (torch.randn(64, 16),)


class SaturatedScores(nn.Module):
    """Experts are picked by a sigmoid that is one for all of them in a narrow type; the twin picks by the logits."""

    def __init__(self, dim: int, experts: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.router = nn.Linear(dim, experts)
        nn.init.constant_(self.router.bias, 10.0)
        self.weight = nn.Parameter(torch.randn(experts, dim, dim) / math.sqrt(dim))

    def forward(self, x: Tensor) -> Tensor:
        logits = self.router(x)
        chosen = (logits if self.right else torch.sigmoid(logits)).topk(2, -1).indices
        gate = torch.zeros_like(logits).scatter(1, chosen, logits.gather(1, chosen).softmax(-1))
        return torch.einsum("te,td,edf->tf", gate, x, self.weight)


def make_saturated_scores(right: bool = False) -> Made:
    return SaturatedScores(16, 8, right), (torch.randn(64, 16),)


class SortedEvents(nn.Module):
    """Events are put in order by absolute times in the thousands, which tie in a narrow type."""

    def __init__(self, events: int, dim: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.place = nn.Parameter(torch.randn(events, dim))
        self.head = nn.Linear(dim, dim)

    def forward(self, x: Tensor, start: Tensor, offset: Tensor) -> Tensor:
        time = offset if self.right else start[:, None] + offset
        order = time.sort(dim=-1, stable=True).indices
        sequence = x.gather(1, order[..., None].expand_as(x))
        return self.head(torch.tanh(sequence * self.place)).sum(1)


def make_sorted_events(right: bool = False) -> Made:
    start = 4096.0 + 64 * torch.randint(0, 20, (16,))
    offset = torch.rand(16, 10).argsort(-1) / 8  # the offsets themselves are exact in every format
    return SortedEvents(10, 12, right), (torch.randn(16, 10, 12), start, offset)


class GatedUnit(torch.autograd.Function):
    """silu(gate) * value; the float16 backward has the slope of a plain sigmoid gate."""

    @staticmethod
    def forward(ctx, gate: Tensor, value: Tensor, right: bool) -> Tensor:
        ctx.save_for_backward(gate, value)
        ctx.right = right
        return F.silu(gate) * value

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor | None, ...]:
        gate, value = ctx.saved_tensors
        s = torch.sigmoid(gate)
        if gate.dtype == torch.float16 and not ctx.right:
            slope = s
        else:
            slope = s * (1 + gate * (1 - s))
        return g * value * slope, g * gate * s, None


class GatedMlp(nn.Module):
    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.gate, self.value, self.down = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(GatedUnit.apply(2 * self.gate(x), self.value(x), self.right))


def make_float16_branch(right: bool = False) -> Made:
    return GatedMlp(24, right), (torch.randn(48, 24),)


class PairedScale(torch.autograd.Function):
    """The bfloat16 path of the backward works on pairs of rows and forgets an odd last one."""

    @staticmethod
    def forward(ctx, x: Tensor, scale: Tensor, right: bool) -> Tensor:
        ctx.save_for_backward(x, scale)
        ctx.right = right
        return x * scale

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor | None, ...]:
        x, scale = ctx.saved_tensors
        rows = len(x)
        if x.dtype == torch.bfloat16 and not ctx.right:
            rows -= rows % 2
        return g * scale, (g * x)[:rows].sum(0), None


class ScaledMlp(nn.Module):
    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.inp, self.out = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.scale = nn.Parameter(1 + 0.2 * torch.randn(dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(PairedScale.apply(self.inp(x), self.scale, self.right)))


def make_bfloat16_tail(right: bool = False) -> Made:
    return ScaledMlp(32, right), (torch.randn(3, 32),)


WRONG: dict[str, Entry] = {
    "lora_scale": Entry(
        make_lora_scale, always("bug"), accused=frozenset({"a"}), why="one adapter factor's gradient lacks the scale"
    ),
    "norm_recomputed_biased": Entry(
        make_norm_recomputed_biased,
        always("bug"),
        accused=frozenset({"weight"}),
        why="the backward recomputes the norm with the biased deviation: 7 % on one parameter",
    ),
    "biaffine_transposed": Entry(
        make_biaffine_transposed,
        always("bug"),
        accused=frozenset({"weight"}),
        why="a square weight's gradient comes out transposed",
    ),
    "shift_not_summed": Entry(
        make_shift_not_summed,
        always("bug"),
        accused=frozenset({"shift"}),
        why="the shift's gradient is averaged over the image, not summed",
    ),
    "centring_hook": Entry(
        make_centring_hook,
        always("bug"),
        accused=frozenset({"branch.weight", "branch.bias"}),
        why="a hook takes the batch mean off a gradient",
    ),
    "cosine_keys": Entry(
        make_cosine_keys,
        always("bug"),
        accused=frozenset({"k.weight"}),
        why="the normalisation's backward drops the projection",
    ),
    "reversible_stale": Entry(
        make_reversible_stale,
        always("bug"),
        accused=frozenset({"f", "inp.weight", "inp.bias"}),
        why="the backward reconstructs one half of the input wrongly",
    ),
    "data_clamped": Entry(
        make_data_clamped,
        always("bug"),
        accused=frozenset({"gain"}),
        why="a saved activation is overwritten through .data",
    ),
    "scan_shifted": Entry(
        make_scan_shifted,
        always("bug"),
        accused=frozenset({"decay"}),
        why="the decay's gradient takes the state after the step, not before it",
    ),
    "conv_taps_flipped": Entry(
        make_conv_taps_flipped,
        always("bug"),
        accused=frozenset({"weight"}),
        why="the gradients of the taps come in reverse order",
    ),
    "dispatch_same_device": Entry(
        make_dispatch_same_device,
        always("bug"),
        accused=frozenset({"inp.weight", "inp.bias"}),
        why="tokens whose two experts share a device lose one of two gradients",
    ),
    "last_expert_bias": Entry(
        make_last_expert_bias,
        always("bug"),
        accused=frozenset({"bias"}),
        why="the loop over bias gradients stops one expert short",
    ),
    "gelu_mismatch": Entry(
        make_gelu_mismatch,
        always("bug"),
        accused=frozenset({"up.weight", "up.bias"}),
        why="the backward is that of another approximation: 4 %",
    ),
    "lookup_overwrites": Entry(
        make_lookup_overwrites,
        always("bug"),
        accused=frozenset({"table"}),
        why="repeated indices overwrite each other instead of adding up",
    ),
    "hardswish_upper": Entry(
        make_hardswish_upper,
        always("bug"),
        accused=frozenset({"conv.weight", "conv.bias"}),
        why="the slope above the upper knee is not one",
    ),
    "segment_singletons": Entry(
        make_segment_singletons,
        always("bug"),
        accused=frozenset({"inp.weight", "inp.bias"}),
        why="segments of one element get half their gradient",
    ),
    "padded_head_scale": Entry(
        make_padded_head_scale,
        always("bug"),
        accused=frozenset({"q.weight"}),
        why="the queries' gradient is scaled by the padded head size: 6 % on one parameter",
    ),
    "power_of_decay": Entry(
        make_power_of_decay,
        dict.fromkeys(BF16, "bug"),
        may={"fp16": frozenset({"bug"})},
        why="a decay near one is raised to powers up to 255 in the narrow type",
    ),
    "one_pass_variance": Entry(
        make_one_pass_variance, always("bug"), why="the variance as mean of squares less square of mean"
    ),
    "expanded_distance": Entry(
        make_expanded_distance, always("bug"), why="small distances as differences of large squares"
    ),
    "narrow_angles": Entry(make_narrow_angles, always("bug"), why="angles of thousands of radians in the narrow type"),
    "box_by_running_sum": Entry(
        make_box_by_running_sum, always("bug"), why="window means as differences of long running sums"
    ),
    "stored_probability": Entry(
        make_stored_probability, always("bug"), why="one less a probability that was rounded to bfloat16"
    ),
    "half_total": Entry(make_half_total, always("bug"), why="small steps are added to a large total in float16"),
    "naive_softplus": Entry(
        make_naive_softplus, {"fp16": "overflow"}, why="the exponential overflows before the logarithm"
    ),
    "raw_kurtosis": Entry(make_raw_kurtosis, {"fp16": "overflow"}, why="fourth powers of raw units overflow"),
    "signal_energy": Entry(
        make_signal_energy, {"fp16": "underflow"}, why="squares of small signals vanish in the forward pass"
    ),
    "sigmoid_tower": Entry(
        make_sigmoid_tower,
        {"fp16": "underflow"},
        why="the first layers' gradients vanish at any scale the last ones bear",
    ),
    "near_tied_router": Entry(
        make_near_tied_router, always("routing"), why="the logits' differences are below their rounding"
    ),
    "saturated_scores": Entry(make_saturated_scores, always("routing"), why="the scores tie at one before the choice"),
    "sorted_events": Entry(make_sorted_events, always("routing"), why="times in the thousands tie before the sort"),
    "float16_branch": Entry(make_float16_branch, {"fp16": "bug"}, why="the float16 branch of a backward lacks a term"),
    "bfloat16_tail": Entry(
        make_bfloat16_tail, dict.fromkeys(BF16, "bug"), why="the bfloat16 branch of a backward forgets an odd last row"
    ),
}
