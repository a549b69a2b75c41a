"""The transformer as a PyTorch user writes it: nn.Linear, nn.LayerNorm, F.scaled_dot_product_attention, autograd.

The projections to q, k and v are one product, and no head is copied that fused attention does not ask for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradproof.ops.layernorm import EPS


class Attention(nn.Module):
    """Pre-norm attention with its residual; to the sequence itself, or across to a memory."""

    def __init__(self, width: int, heads: int, cross: bool, device: str):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width, EPS, device=device)
        self.q = nn.Linear(width, width, device=device) if cross else None
        self.kv = nn.Linear(width, 2 * width, device=device) if cross else None
        self.qkv = None if cross else nn.Linear(width, 3 * width, device=device)
        self.out = nn.Linear(width, width, device=device)

    def forward(self, x_BSD: Tensor, memory_BLD: Tensor | None, mask: Tensor | None, causal: bool) -> Tensor:
        n_BSD = self.norm(x_BSD)
        if self.qkv is not None:
            parts = self.qkv(n_BSD).chunk(3, -1)
        else:
            assert self.q is not None and self.kv is not None
            parts = (self.q(n_BSD), *self.kv(memory_BLD).chunk(2, -1))
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        return x_BSD + self.out(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Pre-norm feed-forward with its residual."""

    def __init__(self, width: int, inner: int, device: str):
        super().__init__()
        self.norm = nn.LayerNorm(width, EPS, device=device)
        self.up = nn.Linear(width, inner, device=device)
        self.down = nn.Linear(inner, width, device=device)

    def forward(self, x_BSD: Tensor) -> Tensor:
        return x_BSD + self.down(F.gelu(self.up(self.norm(x_BSD)), approximate="tanh"))


class TorchLayer(nn.Module):
    def __init__(self, config: Any, cross: bool, device: str):
        super().__init__()
        self.self = Attention(config.width, config.heads, False, device)
        self.cross = Attention(config.width, config.heads, True, device) if cross else None
        self.ffn = FeedForward(config.width, config.inner, device)

    def forward(self, x_BSD: Tensor, memory: Tensor | None, mask: Tensor | None, causal: bool) -> Tensor:
        x_BSD = self.self(x_BSD, None, None if causal else mask, causal)
        if self.cross is not None:
            x_BSD = self.cross(x_BSD, memory, mask, False)
        return self.ffn(x_BSD)


class Eager(nn.Module):
    """Encoder and decoder as far as the mode has them. Its parameters bear the names that ours do."""

    padded = True  # the batches of an encoder, which then needs a mask

    def __init__(self, config: Any, device: str, dtype: torch.dtype):
        super().__init__()
        c = self.config = config
        self.embedding = nn.Embedding(c.vocabulary, c.width, device=device)
        self.position = nn.Embedding(c.context, c.width, device=device)
        self.encoder = self._stack(c.encoder_layers, False, device) if c.encodes else None
        self.decoder = self._stack(c.decoder_layers, c.mode == "seq2seq", device) if c.decodes else None
        self.output = nn.Linear(c.width, c.outputs, device=device)

    def _stack(self, layers: int, cross: bool, device: str) -> nn.ModuleDict:
        stack: dict[str, nn.Module] = {str(i): TorchLayer(self.config, cross, device) for i in range(layers)}
        return nn.ModuleDict({**stack, "norm": nn.LayerNorm(self.config.width, EPS, device=device)})

    def forward(self, token: Tensor) -> Tensor:
        memory, mask = None, None
        if self.encoder is not None:
            source_BS = token if self.decoder is None else token[:, 0]
            if self.decoder is None and self.padded:
                mask = (source_BS >= 0)[:, None, None, :]
            memory = self._run(self.encoder, self._embed(source_BS), None, mask, False)
        if self.decoder is None:
            assert memory is not None
            if not self.padded:
                return self.output(memory.mean(1))
            kept_BS1 = (token >= 0)[..., None]
            return self.output((memory * kept_BS1).sum(1) / kept_BS1.sum(1))
        target_BS = token if memory is None else token[:, 1]
        return self.output(self._run(self.decoder, self._embed(target_BS), memory, None, True)).flatten(0, 1)

    def _embed(self, token_BS: Tensor) -> Tensor:
        place_S = torch.arange(token_BS.shape[1], device=token_BS.device)
        if not self.padded:
            return self.embedding(token_BS) + self.position(place_S)
        return self.embedding(token_BS.clamp(min=0)) * (token_BS >= 0)[..., None] + self.position(place_S)

    def _run(
        self, stack: nn.ModuleDict, x_BSD: Tensor, memory: Tensor | None, mask: Tensor | None, causal: bool
    ) -> Tensor:
        for name, layer in stack.items():
            if name != "norm":
                x_BSD = layer(x_BSD, memory, mask, causal)
        return stack["norm"](x_BSD)


class Unpadded(Eager):
    """For batches whose sequences are all of one length: no mask, as who knows that writes it."""

    padded = False


def useful_flops(config: Any, length_B: Tensor) -> int:
    """Of the products of a step on sequences of these lengths: 6 for each weight and token, 12·D for each pair of
    tokens that attend to each other in a layer. Padding is of no use."""
    D = config.width
    encoder = config.encoder_layers if config.encodes else 0
    decoder = config.decoder_layers if config.decodes else 0
    cross = decoder if config.mode == "seq2seq" else 0
    attention, fed = 4 * D * D, 2 * D * config.inner
    weights = encoder * (attention + fed) + decoder * (attention + fed) + cross * attention
    last = D * config.outputs if config.decodes else 0
    tokens, pairs = int(length_B.sum()), int((length_B**2).sum())
    return 6 * tokens * (weights + last) + 6 * D * pairs * (2 * encoder + decoder + 2 * cross)
