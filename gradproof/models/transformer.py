"""The transformer: pre-norm encoder–decoder with an explicit backward.

    encoder layer   x += SelfAttn(LN x);  x += FFN(LN x)
    decoder layer   x += SelfAttn(LN x), causal;  x += CrossAttn(LN x, memory);  x += FFN(LN x)
    causal    tokens_BS → decoder without cross-attention → LN → logits of the next token, T = B·S rows
    seq2seq   tokens_B2S, [source, target] → memory = LN(encoder(source)); LN(decoder(target, memory)) → logits
    classify  tokens_BS → LN(encoder) → mean over the tokens that are no padding → one logit a sequence

Tokens are int64; −1 is padding. In a decoder it stands at the end, where causal attention never looks back at it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from gradproof.contract import EVERY_OP, Claim, Contract, Example, Gradients, Outputs
from gradproof.kernels.shapes import TOKEN_OPS, Block, Shape
from gradproof.kernels.variants import REFERENCE, Kernels
from gradproof.models import block
from gradproof.models.block import Attended, Fed, Layout, Normed, Read, Write
from gradproof.models.model import SIZES, Model, MoEOutput, spec_count
from gradproof.ops import pool, positional, wide
from gradproof.ops.embedding import PADDING
from gradproof.ops.experts import Chain, linear_entries
from gradproof.ops.reading import (
    Reader,
    attention_entries,
    encoder_entries,
    ffn_entries,
    norm_entries,
    token_entries,
)
from gradproof.ops.route import Whole
from gradproof.params import Entry, Weights

TransformerMode = Literal["causal", "seq2seq", "classify"]
NARROWEST, WIDE = 16, 256  # in matched sizes a width below 256 is a multiple of 16, above of 64; so are the heads
ASPECT = 64  # width for each layer there, at least three layers


@dataclass(frozen=True)
class TransformerConfig:
    """Shape and mode; `feedforward` 0 means 4·width. In mode causal, the encoder and cross-attention exist but are
    unused, unless `encoder_layers` is 0."""

    vocabulary: int = 257
    width: int = 256
    heads: int = 8
    encoder_layers: int = 6
    decoder_layers: int = 6
    feedforward: int = 0
    context: int = 256
    mode: TransformerMode = "seq2seq"

    def __post_init__(self):
        if min(self.vocabulary, self.width, self.heads, self.context) < 1:
            raise ValueError("vocabulary, width, heads and context must be at least 1")
        if self.mode not in ("causal", "seq2seq", "classify"):
            raise ValueError(f"mode = {self.mode!r} must be causal, seq2seq or classify")
        if min(self.encoder_layers, self.decoder_layers, self.feedforward) < 0:
            raise ValueError("encoder_layers, decoder_layers and feedforward must be at least 0")
        if self.width % self.heads:
            raise ValueError(f"width = {self.width} is not divisible by {self.heads} heads")

    @property
    def inner(self) -> int:
        """F."""
        return self.feedforward or 4 * self.width

    @property
    def outputs(self) -> int:
        return 1 if self.mode == "classify" else self.vocabulary

    @property
    def encodes(self) -> bool:
        """Whether the encoder runs."""
        return self.mode != "causal"

    @property
    def decodes(self) -> bool:
        return self.mode != "classify"

    @property
    def crosses(self) -> bool:
        """Whether the decoder has cross-attention, used or not."""
        return self.decodes and (self.mode == "seq2seq" or self.encoder_layers > 0)

    @classmethod
    def sized(cls, name: str, **overrides: Any) -> TransformerConfig:
        """nano, tiny, medium or full, with as many parameters as the MoE of that name; overrides as for `matching`."""
        if name not in SIZES:
            raise ValueError(f"there is no transformer size {name!r}; the sizes are {', '.join(SIZES)}")
        return cls.matching(SIZES[name], **overrides)

    @classmethod
    def matching(
        cls, budget: int, vocabulary: int = 257, context: int = 256, mode: TransformerMode = "causal"
    ) -> TransformerConfig:
        """The config whose parameter count is closest to `budget`: about 64 of width per layer, at least three layers,
        F about 4·width; F absorbs the rest."""

        def shaped(layers: int, width: int, inner: int = 0) -> TransformerConfig:
            encoder, decoder = (0 if mode == "causal" else layers), (0 if mode == "classify" else layers)
            return cls(vocabulary, width, width // _step(width), encoder, decoder, inner, context, mode)

        def fitted(width: int) -> TransformerConfig:
            layers = max(3, width // ASPECT)
            fixed = shaped(layers, width, 1).param_count()
            per_inner = shaped(layers, width, 2).param_count() - fixed
            return shaped(layers, width, max(1, 1 + round((budget - fixed) / per_inner)))

        width, more = NARROWEST, 2 * NARROWEST
        while shaped(max(3, more // ASPECT), more).param_count() <= budget:
            width, more = more, more + _step(more)
        nearest = min((fitted(width), fitted(more)), key=lambda config: abs(config.inner / config.width - 4))
        if nearest.param_count() > 2 * budget:
            raise ValueError(
                f"no transformer of {vocabulary:,} tokens and {context:,} places has as few as {budget:,} parameters"
            )
        return nearest

    def spec(self) -> list[Entry]:
        """The parameters: embedding and positions, then encoder and decoder as the mode needs them, then the output."""
        D = self.width
        spec = token_entries(self.vocabulary, self.context, D)
        if self.encodes or self.encoder_layers:
            spec += encoder_entries(self.encoder_layers, D, self.inner)
        if self.decodes:
            for i in range(self.decoder_layers):
                spec += attention_entries(f"decoder.{i}.self.", D)
                spec += attention_entries(f"decoder.{i}.cross.", D, cross=True) if self.crosses else []
                spec += ffn_entries(f"decoder.{i}.ffn.", D, self.inner)
            spec += norm_entries("decoder.norm", D)
        return spec + linear_entries("output", D, self.outputs)

    @cached_property
    def unused(self) -> tuple[str, ...]:
        """The parameters that do not affect the output: encoder and cross-attention in mode causal."""
        if self.mode != "causal":
            return ()
        return tuple(entry.name for entry in self.spec() if is_unused(entry.name))

    def param_count(self) -> int:
        """The exact number of parameters, without allocating one."""
        return spec_count(self.spec())

    @property
    def layers(self) -> tuple[int, int]:
        """The number of layers and of cross-attentions that a token passes; in mode seq2seq, one token each of source
        and target."""
        decoder = self.decoder_layers * self.decodes
        return self.encoder_layers * self.encodes + decoder, decoder * (self.mode == "seq2seq")

    def saved_per_row(self) -> int:
        """The number of values that a tape keeps per token, with fused attention. A norm keeps its input and output;
        one head's scores one sum a query."""
        D, normed, (layers, crossed) = self.width, 2 * self.width + 2, self.layers
        attended, fed = normed + 4 * D + self.heads, normed + self.inner
        return layers * (attended + fed) + crossed * attended + (self.encodes + self.decodes) * normed

    def working_per_row(self, device: str) -> int:
        """The number of additional values per token at the peak of the backward: logits and their gradient, and the
        working memory of one sublayer. The kernel of a GPU keeps the activations too."""
        logits = 2 * self.outputs * self.decodes
        again = self.layers[0] * self.inner * (device == "cuda")
        return logits + max(self.inner + 3 * self.width, 11 * self.width) + again

    def shared_by_threads(self) -> int:
        """Zero: no gradient has a copy per thread."""
        return 0


def _step(width: int) -> int:
    """What widths are multiples of in matched sizes, and how wide a head is."""
    return NARROWEST if width < WIDE else 4 * NARROWEST


def is_unused(name: str) -> bool:
    """Whether mode causal does not use a parameter."""
    return name.startswith("encoder.") or ".cross." in name


class Layer(NamedTuple):
    """What one layer saves; an encoder layer has no `crossed`."""

    attended: Attended
    crossed: Attended | None
    fed: Fed


class Stack(NamedTuple):
    """What the encoder or decoder saves: the tokens, the layout of their rows, the layers, the final norm."""

    token_BS: Tensor
    layout: Layout
    layers: list[Layer]
    normed: Normed


class Saved(NamedTuple):
    encoder: Stack | None
    decoder: Stack | None
    pooled_BD: Tensor | None


class Transformer(Model):
    """`Transformer(TransformerConfig(mode="causal"), seed=0)`; tokens in, logits out. Its one gate is 1."""

    Config = TransformerConfig
    config: TransformerConfig
    loss_options: Mapping[str, Mapping[str, Any]] = MappingProxyType({"cross_entropy": {"ignore": PADDING}})

    @classmethod
    def sized(cls, name: str, **options: Any) -> Transformer:
        """`Transformer.sized("nano", seed=0, device="cpu")`: a causal transformer over bytes."""
        return cls(TransformerConfig.sized(name), **options)

    def shape(self, rows: int, dtype: torch.dtype) -> Shape:
        c = self.config
        own = Block(c.vocabulary, c.width, c.heads, c.inner, c.context, c.decodes, c.encoder_layers)
        ops = TOKEN_OPS if c.decodes else tuple(op for op in TOKEN_OPS if op != "cross_entropy")
        chain, fused = Chain((c.width, c.outputs), ()), ("update",) if c.decodes else ("update", "reading")
        flat_P = self.params.flat_P
        return Shape(
            flat_P.device.type,
            str(dtype)[6:],
            rows,
            1,
            1,
            chain,
            block=own,
            ops=ops,
            fused=fused,
            parameters=flat_P.numel(),
        )

    def draw_input(self, rows: int, generator: torch.Generator) -> Tensor:
        c = self.config
        shape = (rows, *[2] * (c.mode == "seq2seq"), c.context)
        drawn = torch.randint(c.vocabulary, shape, generator=generator, device=generator.device)
        return drawn.to(self.params.flat_P.device)

    def rows(self, x_BS: Tensor, /) -> int:
        return x_BS.shape[0] * x_BS.shape[-1] if self.config.decodes else x_BS.shape[0]

    def routed(self, saved: Saved) -> tuple[Tensor, Tensor]:
        stack = saved.encoder or saved.decoder
        assert stack is not None
        B, device = stack.token_BS.shape[0], stack.token_BS.device
        return torch.ones(B, 1, device=device), torch.full((1,), B, device=device)

    def check_input(self, x_BS: Tensor, /) -> None:
        c = self.config
        want = "[B ≥ 1, 2, S]: source and target" if c.mode == "seq2seq" else "[B ≥ 1, S]"
        if x_BS.dtype != torch.int64 or x_BS.dim() != 2 + (c.mode == "seq2seq") or not x_BS.numel():
            raise ValueError(f"the tokens must be int64 {want}, not {x_BS.dtype} {list(x_BS.shape)}")
        if c.mode == "seq2seq" and x_BS.shape[1] != 2:
            raise ValueError(f"the tokens must be {want}, not {list(x_BS.shape)}")
        if x_BS.shape[-1] > c.context:
            raise ValueError(f"a sequence of {x_BS.shape[-1]} tokens is longer than the context of {c.context}")
        flat_P = self.params.flat_P
        if x_BS.device != flat_P.device:
            raise ValueError(f"the tokens are on {x_BS.device}, the parameters on {flat_P.device}; move one of them")
        _require(
            (x_BS >= PADDING) & (x_BS < c.vocabulary), f"a token must be in 0..{c.vocabulary - 1}, or −1 for padding"
        )
        if c.decodes:
            target_BS = x_BS if c.mode == "causal" else x_BS[:, 1]
            gap_BS = (target_BS[:, 1:] >= 0) & (target_BS[:, :-1] < 0)
            _require(~gap_BS, "a decoder's padding (−1) must be at the end of its sequence")

    def apply(
        self, weights: Weights, x_TI: Tensor, whole: Whole | None = None, kernels: Kernels = REFERENCE
    ) -> tuple[MoEOutput, Saved]:
        c, read = self.config, Read(weights, kernels, self.config.heads)
        encoder = decoder = pooled_BD = None
        if c.encodes:
            encoder = self._encode(read, x_TI[:, 0] if c.mode == "seq2seq" else x_TI)
        if c.decodes:
            decoder = self._decode(read, x_TI[:, 1] if c.mode == "seq2seq" else x_TI, encoder)
            last_TD = decoder.normed.n_TD
        else:
            assert encoder is not None
            memory_ZD = encoder.normed.n_TD
            last_TD, _ = pool.forward(encoder.layout.spread(wide(memory_ZD)), x_TI >= 0)
            pooled_BD = last_TD = last_TD.to(memory_ZD.dtype)
        logits_TO = wide(block.project(read, "output", last_TD))
        output = MoEOutput(logits_TO, logits_TO.new_ones(logits_TO.shape[0], 1), logits_TO.new_zeros(()))
        return output, Saved(encoder, decoder, pooled_BD)

    def logits(self, weights: Weights, x_TI: Tensor, kernels: Kernels = REFERENCE) -> Tensor:
        """logits_TO only, saving nothing for a backward; in a single kernel if there is one."""
        if kernels.reading is None or weights is not self.params:
            return self.apply(weights, x_TI, None, kernels)[0].logits_TO
        return kernels.reading.forward(x_TI, self.params.flat_P, self._reader)[0]

    @cached_property
    def _reader(self) -> Reader:
        c = self.config
        return Reader(c.vocabulary, c.width, c.heads, c.encoder_layers, c.inner, c.context, c.outputs)

    def _embed(self, read: Read, token_BS: Tensor, layout: Layout) -> Tensor:
        """x_TD."""
        x_BSD, _ = read.kernels.embedding.forward(token_BS, read.weights["embedding.weight"])
        return layout.rows(positional.forward(x_BSD, read.weights["position.weight"])[0])

    def _encode(self, read: Read, token_BS: Tensor) -> Stack:
        layout = block.layout_of(token_BS)
        x_TD, layers = self._embed(read, token_BS, layout), []
        for i in range(self.config.encoder_layers):
            x_TD, attended = block.self_attention(read, f"encoder.{i}.self.", x_TD, layout, False)
            x_TD, fed = block.feed_forward(read, f"encoder.{i}.ffn.", x_TD)
            layers.append(Layer(attended, None, fed))
        return Stack(token_BS, layout, layers, block.norm(read, "encoder.norm", x_TD)[1])

    def _decode(self, read: Read, token_BS: Tensor, encoder: Stack | None) -> Stack:
        layout = Layout(token_BS.shape[0], token_BS.shape[1])
        x_TD, layers = self._embed(read, token_BS, layout), []
        for i in range(self.config.decoder_layers):
            x_TD, attended = block.self_attention(read, f"decoder.{i}.self.", x_TD, layout, True)
            crossed = None
            if encoder is not None:
                memory_ZD, across = encoder.normed.n_TD, encoder.layout
                x_TD, crossed = block.cross_attention(read, f"decoder.{i}.cross.", x_TD, layout, memory_ZD, across)
            x_TD, fed = block.feed_forward(read, f"decoder.{i}.ffn.", x_TD)
            layers.append(Layer(attended, crossed, fed))
        return Stack(token_BS, layout, layers, block.norm(read, "decoder.norm", x_TD)[1])

    def pull_back(
        self,
        weights: Weights,
        grad_P: Tensor,
        dy: tuple[Tensor, Tensor],
        x_TI: Tensor,
        saved: Saved,
        *,
        accumulate: bool = False,
        want_dx: bool = True,
        kernels: Kernels = REFERENCE,
    ) -> None:
        """Returns no input gradient, because tokens have none."""
        read, grads = Read(weights, kernels, self.config.heads), self.params.views_of(grad_P)
        write = Write(grads, accumulate)
        if not accumulate:
            for name in self.config.unused:
                grads[name].zero_()
        for name in self.config.unused:
            kernels.announce(name)
        if saved.decoder is not None:
            last_TD = saved.decoder.normed.n_TD
            dn_TD = block.project_backward(read, write, "output", dy[0].to(last_TD.dtype), last_TD)
            kernels.announce("output")
            dmemory_ZD = self._decode_backward(read, write, dn_TD, saved.decoder, saved.encoder)
            # Source and target share their embedding: the second adds to what the first wrote.
            write = Write(grads, True) if saved.encoder is not None else write
        else:
            assert saved.pooled_BD is not None and saved.encoder is not None
            dpooled_BD = block.project_backward(read, write, "output", dy[0].to(saved.pooled_BD.dtype), saved.pooled_BD)
            kernels.announce("output")
            dmemory_ZD = saved.encoder.layout.rows(pool.backward(wide(dpooled_BD), None, x_TI >= 0))
        if saved.encoder is not None:
            own = Write(grads, accumulate)
            dx_TD = self._encode_backward(read, own, dmemory_ZD, saved.encoder)
            self._embed_backward(read, write, dx_TD, saved.encoder)

    def _encode_backward(self, read: Read, write: Write, dn_TD: Tensor, saved: Stack) -> Tensor:
        """Returns the gradient of the embedded tokens."""
        dx_TD = block.norm_backward(read, write, "encoder.norm", dn_TD, saved.normed)
        read.kernels.announce("encoder.norm")
        for i in reversed(range(len(saved.layers))):
            layer = saved.layers.pop()  # a tape serves once: what is done with is freed
            dx_TD = block.feed_forward_backward(read, write, f"encoder.{i}.ffn.", dx_TD, layer.fed)
            dx_TD = block.self_attention_backward(
                read, write, f"encoder.{i}.self.", dx_TD, layer.attended, saved.layout
            )
            read.kernels.announce(f"encoder.{i}.")
        return dx_TD

    def _decode_backward(self, read: Read, write: Write, dn_TD: Tensor, saved: Stack, encoder: Stack | None) -> Tensor:
        """Returns dmemory_ZD, the sum over all layers; zeros without an encoder. Finishes with the embedding."""
        dx_TD = block.norm_backward(read, write, "decoder.norm", dn_TD, saved.normed)
        read.kernels.announce("decoder.norm")
        dmemory_ZD = dx_TD.new_zeros(()) if encoder is None else torch.zeros_like(encoder.normed.x_TD)
        for i in reversed(range(len(saved.layers))):
            layer = saved.layers.pop()
            dx_TD = block.feed_forward_backward(read, write, f"decoder.{i}.ffn.", dx_TD, layer.fed)
            if encoder is not None and layer.crossed is not None:
                own, across = (layer.crossed, saved.layout), (encoder.normed.n_TD, encoder.layout)
                dx_TD, dmemory = block.cross_attention_backward(
                    read, write, f"decoder.{i}.cross.", dx_TD, *own, *across
                )
                dmemory_ZD += dmemory
            dx_TD = block.self_attention_backward(
                read, write, f"decoder.{i}.self.", dx_TD, layer.attended, saved.layout
            )
            read.kernels.announce(f"decoder.{i}.")
        self._embed_backward(read, write, dx_TD, saved)
        return dmemory_ZD

    def _embed_backward(self, read: Read, write: Write, dx_TD: Tensor, saved: Stack) -> None:
        dx_BSD, dp_CD = positional.backward(saved.layout.spread(dx_TD), None, read.weights["position.weight"])
        write.put("position.weight", dp_CD)
        dw_VD = read.kernels.embedding.backward(dx_BSD, None, saved.token_BS, read.weights["embedding.weight"])
        write.put("embedding.weight", dw_VD)


def _require(holds: Tensor, sentence: str) -> None:
    """A sentence where it does not hold; a GPU stops by itself, nothing waits for it."""
    if holds.is_cuda:
        torch._assert_async(holds.all(), sentence)  # pyright: ignore[reportPrivateImportUsage]
    elif not bool(holds.all()):
        raise ValueError(sentence)


def _small(**options: Any) -> TransformerConfig:
    usual = dict(vocabulary=7, width=8, heads=2, encoder_layers=1, decoder_layers=1, feedforward=9, context=6)
    return TransformerConfig(**{**usual, **options})


def draw_tokens(sizes: Any, generator: torch.Generator, options: Any) -> dict[str, Any]:
    """Sequences of different lengths, one of them whole; where only an encoder reads them, one may be all padding."""
    config = options["config"]
    B, S = sizes["B"], min(sizes["S"], config.context)
    shape = (B, 2, S) if config.mode == "seq2seq" else (B, S)
    x_BS = torch.randint(config.vocabulary, shape, generator=generator)
    lengths_B = torch.randint(0, S + 1, shape[:-1], generator=generator)
    lengths_B[0] = S
    return dict(x=x_BS.masked_fill(torch.arange(S) >= lengths_B[..., None], PADDING))


def _nothing_but_padding(generator: torch.Generator) -> Example:
    """A source of nothing but padding: attention over no key, in the encoder and across."""
    x_B2S = torch.randint(7, (2, 2, 4), generator=generator)
    x_B2S[1, 0] = PADDING
    return Example("nothing but padding", dict(x=x_B2S), dict(config=_small(mode="seq2seq")))


def _holes(generator: torch.Generator) -> Example:
    """An encoder's padding may stand anywhere."""
    x_BS = torch.randint(7, (3, 5), generator=generator)
    x_BS[0, 2], x_BS[1, 0], x_BS[2] = PADDING, PADDING, PADDING
    return Example("holes", dict(x=x_BS), dict(config=_small(mode="classify")))


def _left_alone(example: Example, outputs: Outputs, grads: Gradients) -> tuple[float, float]:
    """In mode causal, encoder, cross-attention and their norms have a gradient of exactly zero; nothing is NaN."""
    wrong = sum(int((~grad.isfinite()).sum()) for grad in grads.values() if grad is not None)
    if example.options["config"].mode == "causal":
        wrong += sum(int((grad != 0).sum()) for name, grad in grads.items() if is_unused(name) and grad is not None)
    return float(wrong), 0.0


CONTRACT = Contract(
    shapes="x[B,S] -> logits[T,O] aux[]",
    sizes=dict(B=(1, 3), S=(1, 5)),
    grads=(),
    draw=draw_tokens,
    options=(
        dict(label="classify", config=_small(mode="classify")),
        dict(label="seq2seq", config=_small(mode="seq2seq")),
        dict(label="two layers", config=_small(mode="seq2seq", decoder_layers=2)),
        dict(label="causal", config=_small(mode="causal")),
        dict(label="causal, decoder only", config=_small(mode="causal", encoder_layers=0, decoder_layers=2)),
        dict(label="one head", config=_small(mode="causal", heads=1, encoder_layers=0)),
        dict(label="A = D", config=_small(mode="classify", heads=8)),
        dict(label="no layers", config=_small(mode="seq2seq", encoder_layers=0, decoder_layers=0)),
        dict(label="nano", config=TransformerConfig.sized("nano"), sizes=dict(B=(2,), S=(12,)), by_name=True),
    ),
    claims=(*EVERY_OP, Claim("zero_rows_safe", check=_left_alone)),
    edges=(_nothing_but_padding, _holes),
)
