"""Round 0 of the zoo: thresholds are chosen on it, so nothing is scored on it.

Inputs are a tuple (positional) or a dict (by keyword). What is declared was measured with plain torch, seeds 0 to 4.
"""

import math
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F
from zoo.entry import Entry, always

LOW = (torch.bfloat16, torch.float16)  # where the wrong fast paths are taken
ROUTING = frozenset({"routing"})
FLIPS = {"bf16": ROUTING, "fp16": ROUTING, "fp8_e4m3": ROUTING}


def p(*shape, scale=1.0, shift=0.0):
    """A parameter of N(shift, scale²) entries."""
    return nn.Parameter(torch.randn(*shape) * scale + shift)


def mlp(*widths, act=nn.GELU):
    layers = [layer for i, o in pairwise(widths) for layer in (nn.Linear(i, o), act())]
    return nn.Sequential(*layers[:-1])


class Act(nn.Module):
    """A function as a layer."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


# -------------------------------------------------------------------------------- correct: small tensors


class Gain(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.linear, self.gain = nn.Linear(width, width), nn.Parameter(torch.tensor(0.7))

    def forward(self, x):
        return self.gain * torch.tanh(self.linear(x))


class Temperature(nn.Module):
    def __init__(self):
        super().__init__()
        self.head, self.log_temperature = nn.Linear(24, 10), nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return F.log_softmax(self.head(x) / self.log_temperature.exp(), dim=-1)


class ScalarMix(nn.Module):
    """ELMo's mix of layers: three logits and one gain."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.logits, self.gain = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.ones(()))

    def forward(self, x):
        hidden = []
        for layer in self.layers:
            x = torch.tanh(layer(x))
            hidden.append(x)
        return self.gain * sum(w * h for w, h in zip(self.logits.softmax(0), hidden, strict=True))


class InfoNCE(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(20, 16, bias=False), nn.Linear(12, 16, bias=False)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, a, b):
        a, b = F.normalize(self.left(a), dim=-1), F.normalize(self.right(b), dim=-1)
        logits = self.logit_scale.exp() * a @ b.T
        target = torch.arange(len(a))
        return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2


# -------------------------------------------------------------------------------- correct: cancellation


class Attention(nn.Module):
    """Heads, biases everywhere, and a mask written as users write it."""

    def __init__(self, width=32, heads=4, mask="inf", scale=None):
        super().__init__()
        self.heads, self.mask, self.scale = heads, mask, scale or (width // heads) ** -0.5
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        if self.mask == "sdpa":
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-1, -2) * self.scale
            future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            if self.mask == "inf":
                scores = scores.masked_fill(future, -math.inf)
            elif self.mask == "min":
                scores = scores + future.to(scores.dtype) * torch.finfo(scores.dtype).min
            y = scores.softmax(-1) @ v
        return self.out(y.transpose(1, 2).flatten(-2))


class ShiftedNorm(nn.Module):
    """A shift that the layer norm takes out again: its gradient is zero."""

    def __init__(self):
        super().__init__()
        self.linear, self.shift, self.norm = nn.Linear(24, 48), p(1), nn.LayerNorm(48)

    def forward(self, x):
        return self.norm(self.linear(x) + self.shift)


class Twins(nn.Module):
    """The change of a network's output under a small step: two gradients that nearly cancel."""

    def __init__(self):
        super().__init__()
        self.net = mlp(12, 32, 6, act=nn.Tanh)

    def forward(self, x, step):
        return self.net(x + step) - self.net(x)


class Invariant(nn.Module):
    """A shift of all logits, which the log-softmax ignores."""

    def __init__(self):
        super().__init__()
        self.head, self.shift = nn.Linear(16, 12), p(1, scale=3.0)

    def forward(self, x):
        return F.log_softmax(self.head(x) + self.shift, -1)[:, :3]


# -------------------------------------------------------------------------------- correct: norms, streams


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * h.to(x.dtype)


class SwiGLU(nn.Module):
    def __init__(self, width=24, hidden=64):
        super().__init__()
        self.norm = RMSNorm(width)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        h = self.norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class MassiveStream(nn.Module):
    """A residual stream in which one channel is hundreds of times the others."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.GELU()) for _ in range(4))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 8)

    def forward(self, x):
        x = x + 300.0 * F.one_hot(torch.tensor(7), 32).to(x.dtype)
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.norm(x))


class LayerScale(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.norm = Attention(24, 3, mask=None), nn.LayerNorm(24)
        self.gamma = nn.Parameter(torch.full((24,), 1e-4))

    def forward(self, x):
        return x + self.gamma * self.attention(self.norm(x))


# -------------------------------------------------------------------------------- correct: routers


class MoE(nn.Module):
    """Experts chosen by top-k. score: softmax or sigmoid; pick: topk or sort; offset: added to every logit;
    island: the scores are float32; norm: the logits are normalised."""

    def __init__(
        self, width=16, experts=8, k=2, score="softmax", pick="topk", spread=1.0, offset=0.0, island=True, norm=False
    ):
        super().__init__()
        self.k, self.score, self.pick, self.offset, self.island, self.norm = k, score, pick, offset, island, norm
        self.router = nn.Linear(width, experts, bias=False)
        nn.init.normal_(self.router.weight, std=spread / math.sqrt(width))
        self.w1, self.w2 = p(experts, width, 24, scale=width**-0.5), p(experts, 24, width, scale=24**-0.5)

    def scores(self, x):
        logits = self.router(x) + self.offset
        logits = logits.float() if self.island else logits
        logits = F.layer_norm(logits, logits.shape[-1:]) if self.norm else logits
        return (logits.sigmoid() if self.score == "sigmoid" else logits.softmax(-1)).to(logits.dtype)

    def forward(self, x):
        scores = self.scores(x)
        if self.pick == "sort":
            weights, chosen = (t[:, : self.k] for t in scores.sort(-1, descending=True))
        else:
            weights, chosen = scores.topk(self.k, -1)
        if self.k > 1:
            weights = weights / weights.sum(-1, keepdim=True)
        y = torch.zeros_like(x)
        for e in range(len(self.w1)):
            rows, slot = (chosen == e).nonzero(as_tuple=True)
            h = F.silu(x[rows] @ self.w1[e]) @ self.w2[e]
            y = y.index_add(0, rows, h * weights[rows, slot, None].to(x.dtype))
        return y


# -------------------------------------------------------------------------------- correct: the rest


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.rnn, self.head = kind(8, 16, batch_first=True), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


class TiedLM(nn.Module):
    """Token ids to logits with the embedding as the head."""

    def __init__(self):
        super().__init__()
        self.embed, self.block = nn.Embedding(50, 24), Attention(24, 2)

    def forward(self, ids):
        h = self.embed(ids)
        return (h + self.block(h)) @ self.embed.weight.T


class LMLoss(nn.Module):
    """Cross-entropy as the module's output."""

    def __init__(self):
        super().__init__()
        self.net = mlp(16, 48, 30)

    def forward(self, x, target):
        return F.cross_entropy(self.net(x), target)


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.scale = nn.Linear(16, 32), nn.Linear(16, 32), p(32)

    def forward(self, x):
        y = self.a(x).add_(self.b(x)).relu_() * self.scale
        y[:, ::4] *= 0.5
        return y.clamp_(min=-1.0)


class SiLUFunction(torch.autograd.Function):
    """Right everywhere; `factor` makes the backward wrong in low precision."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor if x.dtype in LOW else 1.0
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return ctx.factor * g * s * (1 + x * (1 - s)), None


class CustomSiLU(nn.Module):
    def __init__(self, factor=1.0):
        super().__init__()
        self.factor, self.first, self.second = factor, nn.Linear(16, 32), nn.Linear(32, 8)

    def forward(self, x):
        return self.second(SiLUFunction.apply(self.first(x), self.factor))


class Siren(nn.Module):
    """Coordinates through sin(30·Wx), with SIREN's initialisation."""

    def __init__(self, w0=30.0):
        super().__init__()
        self.w0, self.first, self.second, self.head = w0, nn.Linear(2, 32), nn.Linear(32, 32), nn.Linear(32, 3)
        bound = math.sqrt(6 / 32) / w0
        nn.init.uniform_(self.first.weight, -0.5, 0.5)
        nn.init.uniform_(self.second.weight, -bound, bound)

    def forward(self, x):
        return self.head(torch.sin(self.w0 * self.second(torch.sin(self.w0 * self.first(x)))))


class Render(nn.Module):
    """A ray's colour: transmittance by cumprod, as in NeRF."""

    def __init__(self):
        super().__init__()
        self.field = mlp(3, 32, 4, act=nn.ReLU)

    def forward(self, points):
        density, colour = self.field(points).split([1, 3], -1)
        alpha = 1 - torch.exp(-F.softplus(density.squeeze(-1)) * 0.1)
        passed = torch.cumprod(1 - alpha + 1e-6, -1)
        weights = alpha * torch.cat([torch.ones_like(passed[:, :1]), passed[:, :-1]], -1)
        return (weights.unsqueeze(-1) * colour.sigmoid()).sum(1)


class LinearAttention(nn.Module):
    """Causal linear attention over a long sequence: cumsum of positive features."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        q, k = F.elu(self.q(x)) + 1, F.elu(self.k(x)) + 1
        state = torch.einsum("btd,bte->btde", k, self.v(x)).cumsum(1)
        return torch.einsum("btd,btde->bte", q, state) / (q * k.cumsum(1)).sum(-1, keepdim=True)


class Bilinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.u, self.v, self.core = p(10, 2, scale=0.3), p(12, 2, scale=0.3), p(2, 2, 4)

    def forward(self, a, b):
        return torch.einsum("bi,bj,ir,js,rso->bo", a, b, self.u, self.v, self.core)


class Lambda(nn.Module):
    """A network and what is done to its output."""

    def __init__(self, net, then):
        super().__init__()
        self.net, self.then = net, then

    def forward(self, x):
        return self.then(self.net(x))


class PolyExp(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.c = nn.Linear(12, 24), nn.Parameter(torch.tensor([0.5, -0.3, 0.1, 0.02]))

    def forward(self, x):
        h = self.linear(x)
        poly = self.c[0] + h * (self.c[1] + h * (self.c[2] + h * self.c[3]))
        return poly * torch.exp(-h * h) + torch.sin(3 * h)


class BCE(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(12, 1)
        nn.init.constant_(self.net.bias, 6.0)

    def forward(self, x, target):
        return F.binary_cross_entropy_with_logits(self.net(x).squeeze(-1), target, reduction="none")


def hf(name, config, encoder_decoder=False, **options):
    """make() of a tiny random Hugging Face model without dropout."""

    def make():
        import transformers

        model = getattr(transformers, name)(getattr(transformers, config)(use_cache=False, **options)).eval()
        ids = torch.randint(3, 64, (2, 12))  # 0 may be padding, whose row of the embedding has no gradient
        return model, {"input_ids": ids, "decoder_input_ids": ids.flip(1)} if encoder_decoder else {"input_ids": ids}

    return make


LLAMA = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 32}  # fmt: skip
BERT = LLAMA | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
T5 = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
GPT2 = {
    "vocab_size": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 32,
}


def quantised(*shape):
    return torch.randint(-4, 5, shape) / 4


def dominant():
    net = nn.Linear(16, 10)
    net.bias.data[3] += 12.0
    return Lambda(net, lambda z: z.softmax(-1)), (torch.randn(32, 16),)


def saturated():
    net = nn.Linear(16, 32)
    net.bias.data.copy_(5.0 * torch.randn(32).sign())
    return Lambda(net, lambda z: z.sigmoid() * torch.tanh(z)), (torch.randn(48, 16),)


def deep(depth, width, act, gain):
    layers = [nn.Linear(width, width) for _ in range(depth)]
    for layer in layers:
        nn.init.normal_(layer.weight, std=gain / math.sqrt(width))
    return nn.Sequential(*[m for layer in layers for m in (layer, act())])


def conv_bn():
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4)
    )
    return net, (torch.randn(4, 3, 8, 8),)


def conv_gn():
    net = nn.Sequential(nn.Conv1d(4, 12, 5, padding=2), nn.GroupNorm(3, 12), nn.SiLU(), nn.Conv1d(12, 6, 3, groups=2))
    return net, (torch.randn(4, 4, 40),)


def dropout_block():
    block = nn.TransformerEncoderLayer(24, 3, 48, dropout=0.2, batch_first=True, norm_first=True)
    return block, (torch.randn(3, 9, 24),)


def c(make, why, may=None):
    return Entry(make=make, why=why, may=may or {})


CORRECT = {
    "gain": c(
        lambda: (Gain(), (torch.randn(64, 32),)), "one gain gathers the rounding of 2048 products of either sign"
    ),
    "temperature": c(lambda: (Temperature(), (torch.randn(32, 24),)), "one temperature behind a log-softmax"),
    "scalar_mix": c(lambda: (ScalarMix(), (torch.randn(40, 16),)), "three softmax logits and one gain"),
    "prelu": c(
        lambda: (nn.Sequential(nn.Linear(12, 20), nn.PReLU(), nn.Linear(20, 1)), (torch.randn(30, 12),)),
        "one slope and one output",
    ),
    "infonce": c(
        lambda: (InfoNCE(), (torch.randn(24, 20), torch.randn(24, 12))),
        "a scalar loss whose temperature's gradient is a difference of two log-sum-exps",
    ),
    "key_bias": c(lambda: (Attention(mask=None), (torch.randn(2, 10, 32),)), "the key bias' gradient is exactly zero"),
    "shift_before_layernorm": c(
        lambda: (ShiftedNorm(), (torch.randn(32, 24),)), "the shift's gradient is exactly zero"
    ),
    "softmax_shift": c(
        lambda: (Invariant(), (torch.randn(32, 16),)), "the logits' shift has a gradient of exactly zero"
    ),
    "bias_before_batchnorm": c(
        lambda: (nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.Tanh()), (torch.randn(64, 10),)),
        "the linear bias' gradient is exactly zero",
    ),
    "conv_batchnorm": c(conv_bn, "convolution biases that batch norm takes out, with batch statistics"),
    "conv_groupnorm": c(conv_gn, "grouped convolutions and group norm"),
    "twins": c(
        lambda: (Twins(), (torch.randn(24, 12), 0.05 * torch.randn(24, 12))),
        "two gradients that cancel but for a few percent",
    ),
    "constant_tenth": c(
        lambda: (mlp(32, 64, 8), (torch.full((16, 32), 0.1),)),
        "every input rounds by the same amount in the same direction",
    ),
    "one_row_third": c(lambda: (mlp(12, 24, 24, 2, act=nn.Tanh), (torch.full((1, 12), 1 / 3),)), "one row of thirds"),
    "quantised_input": c(
        lambda: (mlp(16, 32, 32, 4, act=nn.ReLU), (quantised(48, 16),)), "inputs on a grid, exact in bf16"
    ),
    "mean_of_positive": c(
        lambda: (Lambda(nn.Linear(16, 32), lambda h: h.exp().mean()), (torch.randn(128, 16),)),
        "the mean of 4096 positive entries as a scalar output",
    ),
    "sum_of_positive": c(
        lambda: (Lambda(nn.Linear(8, 40), lambda h: F.softplus(h).sum(1).log()), (torch.rand(128, 8),)),
        "sums of positive entries of positive inputs: no rounding cancels",
    ),
    "wide_mean": c(
        lambda: (Lambda(nn.Linear(4096, 4), torch.tanh), (torch.rand(3, 4096),)), "4096 positive inputs to four outputs"
    ),
    "deep_tanh": c(
        lambda: (deep(40, 8, nn.Tanh, 1.2), (torch.randn(16, 8),)), "40 narrow layers without normalisation"
    ),
    "deep_relu": c(
        lambda: (deep(32, 24, nn.ReLU, math.sqrt(2)), (torch.randn(16, 24),)), "32 layers, flips of ReLU add up"
    ),
    "saturated": c(saturated, "gates at sigmoid(±5): gradients of e^-5, 1 - tanh² of rounding"),
    "dominant_logit": c(dominant, "one logit 12 above the others: 1 - p cancels in low precision"),
    "logsumexp": c(
        lambda: (Lambda(nn.Linear(16, 200), lambda z: torch.logsumexp(4 * z, -1)), (torch.randn(24, 16),)),
        "log-sum-exp over 200 sharpened logits",
    ),
    "cross_entropy": c(
        lambda: (LMLoss(), (torch.randn(64, 16), torch.randint(0, 30, (64,)))), "the loss is the output: one scalar"
    ),
    "bce_saturated": c(
        lambda: (BCE(), (torch.randn(32, 12), torch.ones(32))),
        "confident and right: every gradient is about e^-6, one sign",
    ),
    "layernorm_tiny_variance": c(
        lambda: (nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 8)), (1e-3 * torch.randn(24, 32),)),
        "a variance below eps",
    ),
    "layernorm_offset": c(
        lambda: (nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 8)), (1 + 0.05 * torch.randn(24, 32),)),
        "the mean is 20 times the deviation, so rounding the input costs five bits",
    ),
    "rmsnorm_swiglu": c(lambda: (SwiGLU(), (torch.randn(2, 12, 24),)), "RMS norm by hand in a float32 island"),
    "massive_stream": c(
        lambda: (MassiveStream(), (torch.randn(24, 32),)),
        "one channel of 300 in the residual stream, small ones beside it",
    ),
    "layer_scale": c(lambda: (LayerScale(), (torch.randn(2, 8, 24),)), "a branch scaled by 1e-4 beside the residual"),
    "attention_inf_mask": c(lambda: (Attention(mask="inf"), (torch.randn(2, 12, 32),)), "a causal mask of -inf"),
    "attention_min_mask": c(
        lambda: (Attention(mask="min"), (torch.randn(2, 12, 32),)), "a causal mask of finfo.min, added"
    ),
    "sdpa": c(lambda: (Attention(mask="sdpa"), (torch.randn(2, 16, 32),)), "the fused attention kernel, causal"),
    "moe_top1": c(lambda: (MoE(k=1, experts=4), (torch.randn(96, 16),)), "top-1 of a softmax in float32", FLIPS),
    "moe_top2_sigmoid": c(
        lambda: (MoE(score="sigmoid"), (torch.randn(128, 16),)), "top-2 of sigmoids, normalised", FLIPS
    ),
    "moe_sort": c(lambda: (MoE(pick="sort", spread=2.0), (torch.randn(128, 16),)), "top-2 by sort()[:, :2]", FLIPS),
    "moe_one_row": c(
        lambda: (MoE(k=2, experts=4, spread=3.0), (torch.randn(1, 16),)), "a router and one row", {"fp8_e4m3": ROUTING}
    ),
    "gru": c(lambda: (Recurrent(nn.GRU), (torch.randn(4, 24, 8),)), "24 steps of a GRU, last state only"),
    "lstm": c(lambda: (Recurrent(nn.LSTM), (torch.randn(4, 24, 8),)), "24 steps of an LSTM, last state only"),
    "tied_lm": c(lambda: (TiedLM(), (torch.randint(0, 50, (3, 10)),)), "an embedding used at both ends"),
    "dropout": c(dropout_block, "dropout in training mode: the same mask in every precision or nothing agrees"),
    "in_place": c(lambda: (InPlace(), (torch.randn(40, 16),)), "add_, relu_, clamp_ and a scaled slice"),
    "custom_function": c(lambda: (CustomSiLU(), (torch.randn(40, 16),)), "a custom autograd function that is right"),
    "poly_exp_sin": c(
        lambda: (PolyExp(), (torch.randn(40, 12),)), "polynomial, exponential and sine with four coefficients"
    ),
    "siren": c(lambda: (Siren(), (torch.rand(64, 2) * 2 - 1,)), "sin(30·Wx): the argument's rounding is a large angle"),
    "volume_rendering": c(
        lambda: (Render(), (torch.rand(8, 32, 3) * 2 - 1,)), "cumprod of transmittances, 1 - exp(-small)"
    ),
    "linear_attention": c(
        lambda: (LinearAttention(), (torch.randn(1, 512, 8),)), "cumsum over 512 steps, then a quotient"
    ),
    "bilinear": c(
        lambda: (Bilinear(), (torch.randn(20, 10), torch.randn(20, 12))), "five-way einsum with a 2x2x4 core"
    ),
    "output_1e-5": c(lambda: (Lambda(mlp(12, 24, 4), lambda y: 1e-5 * y), (torch.randn(24, 12),)), "outputs of 1e-5"),
    "output_1e4": c(
        lambda: (Lambda(mlp(12, 24, 4, act=nn.Tanh), lambda y: 1e4 * y), (torch.randn(24, 12),)),
        "outputs of 1e4: the loss scale must give way, not the verdict",
    ),
    "hf_gpt2": c(hf("GPT2LMHeadModel", "GPT2Config", resid_pdrop=0.0, **GPT2), "GPT-2 with a tied head"),
    "hf_llama": c(
        hf("LlamaForCausalLM", "LlamaConfig", **LLAMA), "Llama: rotary positions, grouped keys, float32 norms"
    ),
    "hf_mixtral": c(
        hf("MixtralForCausalLM", "MixtralConfig", num_local_experts=4, experts_implementation="eager", **LLAMA),
        "Mixtral: a router at 0.02-initialised logits",
        FLIPS,
    ),
    "hf_bert": c(hf("BertModel", "BertConfig", **BERT), "BERT: key biases, token types that are all zero"),
    "hf_t5": c(hf("T5Model", "T5Config", encoder_decoder=True, **T5), "T5: relative bias, no score scaling"),
}


# -------------------------------------------------------------------------------- wrong: gradients


class NormFunction(torch.autograd.Function):
    """Layer norm without affine. drop: the projection term of the backward is forgotten, always or in low precision."""

    @staticmethod
    def forward(ctx, x, drop):
        h = x.double() if x.dtype == torch.float64 else x.float()
        rstd = (h.var(-1, unbiased=False, keepdim=True) + 1e-5).rsqrt()
        xhat = (h - h.mean(-1, keepdim=True)) * rstd
        ctx.save_for_backward(xhat, rstd)
        ctx.drop = drop == "always" or (drop == "low" and x.dtype in LOW)
        return xhat.to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        xhat, rstd = ctx.saved_tensors
        h = g.to(xhat.dtype)
        d = h - h.mean(-1, keepdim=True)
        if not ctx.drop:
            d = d - xhat * (h * xhat).mean(-1, keepdim=True)
        return (d * rstd).to(g.dtype), None


class CustomNorm(nn.Module):
    def __init__(self, drop):
        super().__init__()
        self.drop, self.first, self.second = drop, nn.Linear(12, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.second(torch.tanh(NormFunction.apply(self.first(x), self.drop)))


class MeanBias(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return x @ weight.T + bias

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return g @ weight, g.T @ x, g.mean(0)


class FusedLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias, self.head = p(16, 12, scale=0.3), p(16, scale=0.1), nn.Linear(16, 4)

    def forward(self, x):
        return self.head(F.gelu(MeanBias.apply(x, self.weight, self.bias)))


class DetachedGate(nn.Module):
    """Softmax scores renormalised over the chosen ones, by a sum that is detached."""

    def __init__(self, width=12, experts=4):
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))

    def forward(self, x):
        weights, chosen = self.router(x).float().softmax(-1).topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True).detach()
        outputs = torch.stack([f(x) for f in self.experts], 1)
        picked = outputs.gather(1, chosen.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
        return (picked * weights.unsqueeze(-1).to(x.dtype)).sum(1)


class MaskedSoftmax(torch.autograd.Function):
    """The Jacobian's diagonal only: p(1-p)g for p(g - <g, p>)."""

    @staticmethod
    def forward(ctx, scores, mask):
        probs = scores.masked_fill(mask, -math.inf).softmax(-1)
        ctx.save_for_backward(probs)
        return probs

    @staticmethod
    def backward(ctx, g):
        (probs,) = ctx.saved_tensors
        return probs * (1 - probs) * g, None


class WrongAttention(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.query, self.key = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width)

    def forward(self, x):
        scores = self.query(x) @ self.key(x).transpose(-1, -2) / math.sqrt(x.shape[-1])
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return MaskedSoftmax.apply(scores, future) @ self.value(x)


class Combine(torch.autograd.Function):
    """y = Σ_k w_k·h_k. twice: the experts' takes the gate twice; pair: rows of experts (1, 3) lose the gates'."""

    @staticmethod
    def forward(ctx, hidden, weights, chosen, fault):
        ctx.save_for_backward(hidden, weights, chosen)
        ctx.fault = fault
        return (hidden * weights.unsqueeze(-1)).sum(1)

    @staticmethod
    def backward(ctx, g):
        hidden, weights, chosen = ctx.saved_tensors
        dh = g.unsqueeze(1) * weights.unsqueeze(-1)
        dw = (g.unsqueeze(1) * hidden).sum(-1)
        if ctx.fault == "twice":
            dh = dh * weights.unsqueeze(-1)
        if ctx.fault == "pair":
            dw = dw * ((chosen[:, :1] != 1) | (chosen[:, 1:] != 3))
        return dh, dw, None, None


class CombinedMoE(nn.Module):
    def __init__(self, fault, width=10, experts=4):
        super().__init__()
        self.fault, self.router = fault, nn.Linear(width, experts, bias=False)
        nn.init.normal_(self.router.weight, std=1.5 / math.sqrt(width))
        self.w = p(experts, width, 6, scale=width**-0.5)

    def forward(self, x):
        top, chosen = self.router(x).topk(2, -1)
        hidden = torch.tanh(torch.einsum("ti,eio->teo", x, self.w))
        hidden = hidden.gather(1, chosen.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))
        return Combine.apply(hidden, top.softmax(-1), chosen, self.fault)


class FastGELU(torch.autograd.Function):
    """The exact GELU forward with the derivative of the sigmoid approximation: a few percent off."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return F.gelu(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(1.702 * x)
        return g * (s + 1.702 * x * s * (1 - s))


def hooked(h):
    """Gradient "clipping" of the hidden state."""
    if h.requires_grad:
        h.register_hook(lambda g: g * 0.95)
    return torch.tanh(h)


class RMSWeight(torch.autograd.Function):
    """RMS norm whose weight's gradient uses x in place of the normalised x."""

    @staticmethod
    def forward(ctx, x, weight):
        rstd = (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()
        ctx.save_for_backward(x, weight, rstd)
        return x * rstd * weight

    @staticmethod
    def backward(ctx, g):
        x, weight, rstd = ctx.saved_tensors
        h = g * weight
        return rstd * (h - x * rstd.pow(2) * (h * x).mean(-1, keepdim=True)), (g * x).sum(0)


class WrongRMS(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.weight, self.second = nn.Linear(12, 16), p(16, scale=0.2, shift=1.0), nn.Linear(16, 4)

    def forward(self, x):
        return self.second(F.silu(RMSWeight.apply(self.first(x), self.weight)))


class Lookup(torch.autograd.Function):
    """An embedding whose backward writes where it should add: repeated tokens lose all but one gradient."""

    @staticmethod
    def forward(ctx, ids, table):
        ctx.save_for_backward(ids)
        ctx.rows = len(table)
        return table[ids]

    @staticmethod
    def backward(ctx, g):
        (ids,) = ctx.saved_tensors
        d = g.new_zeros(ctx.rows, g.shape[-1])
        d[ids.flatten()] = g.flatten(0, -2)
        return None, d


class BagOfWords(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = p(20, 8), nn.Linear(8, 4)

    def forward(self, ids):
        return self.head(torch.tanh(Lookup.apply(ids, self.table)).mean(1))


class Rotary(torch.autograd.Function):
    """Rotates by an angle per position; the backward rotates the same way instead of back."""

    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    @staticmethod
    def backward(ctx, g):
        cos, sin = ctx.saved_tensors
        a, b = g.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1), None, None


class RotaryScores(nn.Module):
    """Only the queries go through the wrong function."""

    def __init__(self, width=8, steps=10):
        super().__init__()
        self.query, self.key = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        angle = torch.arange(steps)[:, None] * 10.0 ** -torch.linspace(0, 2, width // 2)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, x):
        q, (a, b) = Rotary.apply(self.query(x), self.cos, self.sin), self.key(x).chunk(2, -1)
        k = torch.cat([a * self.cos - b * self.sin, a * self.sin + b * self.cos], -1)
        return (q @ k.transpose(-1, -2) / math.sqrt(x.shape[-1])).softmax(-1)


class DetachedBatchNorm(nn.Module):
    """Batch norm by hand with its statistics under no_grad."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(10, 12)
        self.weight, self.bias = nn.Parameter(torch.ones(12)), nn.Parameter(torch.zeros(12))

    def forward(self, x):
        h = self.linear(x)
        with torch.no_grad():
            mean, std = h.mean(0), h.std(0, unbiased=False)
        return torch.tanh((h - mean) / (std + 1e-5) * self.weight + self.bias)


# -------------------------------------------------------------------------------- wrong: low precision only


class FastScores(torch.autograd.Function):
    """q·kᵀ/√d; the low-precision path has a scale that is 1.1 times too large."""

    @staticmethod
    def forward(ctx, q, k):
        ctx.scale = q.shape[-1] ** -0.5 * (1.1 if q.dtype in LOW else 1.0)
        ctx.save_for_backward(q, k)
        return q @ k.transpose(-1, -2) * ctx.scale

    @staticmethod
    def backward(ctx, g):
        q, k = ctx.saved_tensors
        g = g * ctx.scale
        return g @ k, g.transpose(-1, -2) @ q


class FastAttention(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))

    def forward(self, x):
        return FastScores.apply(2 * self.query(x), 2 * self.key(x)).softmax(-1) @ self.value(x)


# -------------------------------------------------------------------------------- wrong: range


class HandRMS(nn.Module):
    """RMS norm by hand without a float32 island: x² leaves fp16 above 256."""

    def __init__(self):
        super().__init__()
        self.weight, self.head = nn.Parameter(torch.ones(24)), nn.Linear(24, 6)

    def forward(self, x):
        return self.head(self.weight * x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt())


class NaiveSoftmax(nn.Module):
    """exp(z)/Σexp(z) without taking out the maximum."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(16, 10)
        nn.init.constant_(self.head.bias, 11.0)

    def forward(self, x):
        e = self.head(x).exp()
        return e / e.sum(-1, keepdim=True)


class Likelihood(nn.Module):
    """A sequence's likelihood as a product of probabilities, not a sum of logarithms."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(12, 16)

    def forward(self, x):
        return self.head(x).softmax(-1)[..., 0].prod(-1)


class RBF(nn.Module):
    """exp(-|x - c|²/2) far from the centres."""

    def __init__(self):
        super().__init__()
        self.centres, self.head = p(12, 8, scale=0.5), nn.Linear(12, 3, bias=False)

    def forward(self, x):
        return self.head(torch.exp(-0.5 * (x.unsqueeze(1) - self.centres).pow(2).sum(-1)))


def far():
    direction = F.normalize(torch.randn(24, 8), dim=-1)
    return RBF(), (8.0 * direction,)


# -------------------------------------------------------------------------------- wrong: accumulation


class LoopNormaliser(nn.Module):
    """Weights divided by their sum, which a loop adds up in the parameters' precision."""

    def __init__(self, items=800):
        super().__init__()
        self.items, self.score, self.value = items, p(8, scale=0.1), nn.Linear(8, 4)

    def forward(self, x):
        weight = torch.sigmoid(x @ self.score)
        total = torch.zeros_like(weight[0])
        for w in weight.unbind(0):
            total = total + w
        return (weight.unsqueeze(-1) * self.value(x)).sum(0) / total


class Euler(nn.Module):
    """h ← h + dt·k·h by 600 steps that are each below half a unit in the last place."""

    def __init__(self, steps=600, dt=2.3e-4):
        super().__init__()
        self.steps, self.dt, self.rate = steps, dt, nn.Parameter(torch.ones(4))

    def forward(self, x):
        h, step = x, self.dt * self.rate
        for _ in range(self.steps):
            h = h + step * h
        return h * h * h


class HalfPrior(nn.Module):
    """A smoothed normaliser: a prior of 1 and 600 small counts, added up in half precision whatever the module's is."""

    def __init__(self, items=600):
        super().__init__()
        self.items, self.score, self.value = items, p(8, scale=0.2), nn.Linear(8, 4)

    def forward(self, x):
        weight = 6e-4 * torch.sigmoid(x @ self.score - 0.5)
        total = torch.ones((), dtype=torch.float16)
        for w in weight.half().unbind(0):
            total = total + w
        return (weight.unsqueeze(-1) * self.value(x)).sum(0) * 10 / total.to(x.dtype).pow(3)


def bug(make, accused, why):
    return Entry(make=make, fault=always("bug"), accused=frozenset(accused.split()), why=why)


def low(make, accused, why):
    fault, may = {"bf16": "bug", "fp16": "bug"}, {"fp8_e4m3": frozenset({"bug"})}
    return Entry(make=make, fault=fault, may=may, accused=frozenset(accused.split()), why=why)


def fp16(category, make, why, may=None):
    return Entry(make=make, fault={"fp16": category}, may=may or {}, why=why)


def rows(n, width):
    return (torch.randn(n, width),)


UPSTREAM = "x first.weight first.bias"

WRONG = {
    "norm_drops_projection": bug(
        lambda: (CustomNorm("always"), rows(24, 12)), UPSTREAM, "layer norm forgets x̂·mean(g·x̂)"
    ),
    "bias_mean": bug(
        lambda: (FusedLinear(), rows(24, 12)), "bias", "the bias' gradient is a mean over rows, not a sum"
    ),
    "detached_normaliser": bug(
        lambda: (DetachedGate(), rows(40, 12)), "x router.weight", "the gates' normaliser is detached"
    ),
    "softmax_diagonal": bug(
        lambda: (WrongAttention(), (torch.randn(2, 8, 12),)),
        "x query.weight key.weight",
        "the Jacobian's diagonal only",
    ),
    "gate_twice": bug(
        lambda: (CombinedMoE("twice"), rows(64, 10)), "x w", "the experts' gradient takes the gate twice"
    ),
    "one_pair_of_experts": bug(
        lambda: (CombinedMoE("pair"), rows(96, 10)),
        "x router.weight",
        "rows sent to experts (1, 3) lose the gate's gradient",
    ),
    "fast_gelu_backward": bug(
        lambda: (nn.Sequential(nn.Linear(12, 24), Act(FastGELU.apply), nn.Linear(24, 4)), rows(32, 12)),
        "input 0.weight 0.bias",
        "the exact GELU with an approximation's derivative: a few percent",
    ),
    "hook_shrinks": bug(
        lambda: (nn.Sequential(nn.Linear(12, 24), Act(hooked), nn.Linear(24, 4)), rows(32, 12)),
        "input 0.weight 0.bias",
        "a hook shrinks the hidden gradient by 5%",
    ),
    "rms_weight": bug(lambda: (WrongRMS(), rows(24, 12)), "weight", "the norm's weight sees x in place of x̂"),
    "embedding_overwrites": bug(
        lambda: (BagOfWords(), (torch.randint(0, 20, (8, 6)),)), "table", "repeated tokens keep one gradient of several"
    ),
    "rotary_backward": bug(
        lambda: (RotaryScores(), (torch.randn(2, 10, 8),)),
        "x query.weight",
        "the rotation's backward turns the wrong way",
    ),
    "batchnorm_detached": bug(
        lambda: (DetachedBatchNorm(), rows(48, 10)), "x linear.weight linear.bias", "batch statistics under no_grad"
    ),
    "low_silu_1.25": low(
        lambda: (CustomSiLU(1.25), rows(40, 16)), UPSTREAM, "the low-precision SiLU backward is 1.25 times"
    ),
    "low_norm_drops": low(lambda: (CustomNorm("low"), rows(40, 12)), UPSTREAM, "the low-precision norm forgets a term"),
    "low_scores_1.1": low(
        lambda: (FastAttention(), (torch.randn(4, 16, 16),)),
        "x query.weight key.weight value.weight",
        "low-precision scores are 1.1 times",
    ),
    "overflow_router": fp16(
        "overflow",
        lambda: (MoE(spread=40.0, island=False, norm=True), (2e3 * torch.randn(64, 16),)),
        "router logits beyond 65504 before they are normalised",
        {"bf16": ROUTING, "fp8_e4m3": ROUTING},
    ),
    "overflow_square": fp16(
        "overflow", lambda: (HandRMS(), (400 * torch.randn(24, 24),)), "x² beyond 65504 in an RMS norm"
    ),
    "overflow_exp": fp16("overflow", lambda: (NaiveSoftmax(), rows(64, 16)), "exp of logits around 11"),
    "overflow_scores": fp16(
        "overflow",
        lambda: (Attention(64, 1, mask="inf", scale=3e-5), (120 * torch.randn(2, 12, 64),)),
        "q·k beyond 65504 before it is scaled",
    ),
    "ties_softmax": Entry(
        lambda: (MoE(experts=32, spread=0.008, island=False), rows(128, 16)),
        always("routing"),
        why="a softmax in low precision ties flat scores before top-k",
    ),
    "ties_sigmoid": Entry(
        lambda: (MoE(score="sigmoid", offset=7.0, spread=0.7, island=False), rows(128, 16)),
        always("routing"),
        why="sigmoids near 1 tie in low precision before top-k",
    ),
    "router_offset": Entry(
        lambda: (MoE(offset=300.0, island=False), rows(128, 16)),
        always("routing"),
        why="logits on a common offset of 300",
    ),
    "underflow_deep_sigmoid": fp16(
        "underflow", lambda: (deep(16, 12, nn.Sigmoid, 0.6), rows(16, 12)), "16 layers of 0.15 each"
    ),
    "underflow_likelihood": fp16(
        "underflow", lambda: (Likelihood(), (torch.randn(16, 10, 12),)), "a product of ten probabilities of 1/16"
    ),
    "underflow_rbf": fp16("underflow", far, "Gaussian kernels e^-32 away from the centres"),
    "loop_normaliser": Entry(
        lambda: (LoopNormaliser(), rows(800, 8)),
        {"bf16": "bug", "fp8_e4m3": "bug"},
        may={"fp16": frozenset({"bug"})},  # up to 8 times the ordinary error, for the same reason
        why="a loop's sum of 800 weights stagnates",
    ),
    "loop_euler": Entry(
        lambda: (Euler(), (1 + torch.rand(6, 4),)), always("bug"), why="600 small steps are all rounded away"
    ),
    "half_sum": Entry(
        lambda: (HalfPrior(), rows(600, 8)), always("bug"), why="600 small counts are lost in a half-precision sum"
    ),
}
