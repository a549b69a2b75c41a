"""The transformer against torch's own modules with the same weights, in every mode, and what its protocol promises."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from gradproof.models.subject import judge_config, judge_model
from gradproof.models.transformer import Transformer, TransformerConfig

MODES = ("causal", "seq2seq", "classify")
SHAPE = dict(vocabulary=11, width=12, heads=3, encoder_layers=2, decoder_layers=2, feedforward=20, context=9)


def small(**options):
    """A float64 transformer of a few thousand parameters, γ and β not at their initial values."""
    model = Transformer(TransformerConfig(**{**SHAPE, **options}), seed=1, dtype=torch.float64)
    generator = torch.Generator().manual_seed(5)
    for name, view in model.params.items():
        if "norm" in name:
            view.add_(0.3 * torch.randn(view.shape, generator=generator, dtype=torch.float64))
    return model


def tokens(config, B, S, seed, padded=True):
    """Sequences of different lengths, the first one whole."""
    generator = torch.Generator().manual_seed(seed)
    shape = (B, 2, S) if config.mode == "seq2seq" else (B, S)
    x = torch.randint(config.vocabulary, shape, generator=generator)
    lengths = torch.randint(1, S + 1, shape[:-1], generator=generator)
    lengths[0] = S
    return x.masked_fill(torch.arange(S) >= lengths[..., None], -1) if padded else x


def torchs(model):
    """(forward, {our name: torch's parameter}): the same network of nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer, nn.Embedding and nn.LayerNorm, pre-norm, tanh GELU."""
    c = model.config
    D = c.width
    options = dict(dropout=0.0, activation=lambda x: F.gelu(x, approximate="tanh"), batch_first=True, norm_first=True)
    embedding, position = nn.Embedding(c.vocabulary, D), nn.Embedding(c.context, D)
    names = {"embedding.weight": embedding.weight, "position.weight": position.weight}
    output = nn.Linear(D, c.outputs)
    names |= {"output.weight": output.weight, "output.bias": output.bias}
    encoder = [nn.TransformerEncoderLayer(D, c.heads, c.inner, **options) for _ in range(c.encoder_layers)]
    decoder = [nn.TransformerDecoderLayer(D, c.heads, c.inner, **options) for _ in range(c.decoder_layers)]
    norms = nn.ModuleDict({"encoder": nn.LayerNorm(D), "decoder": nn.LayerNorm(D)})

    def name(prefix, module):
        names[f"{prefix}.weight"], names[f"{prefix}.bias"] = module.weight, module.bias

    def attention(prefix, module, norm, cross=False):
        name(f"{prefix}.norm", norm)
        name(f"{prefix}.out", module.out_proj)
        weight, bias = module.in_proj_weight, module.in_proj_bias
        parts = {"q": slice(0, D), "kv": slice(D, None)} if cross else {"qkv": slice(None)}
        for part, rows in parts.items():
            names[f"{prefix}.{part}.weight"], names[f"{prefix}.{part}.bias"] = (weight, rows), (bias, rows)

    def feed(prefix, layer, norm):
        name(f"{prefix}.norm", norm)
        name(f"{prefix}.up", layer.linear1)
        name(f"{prefix}.down", layer.linear2)

    for i, layer in enumerate(encoder):
        attention(f"encoder.{i}.self", layer.self_attn, layer.norm1)
        feed(f"encoder.{i}.ffn", layer, layer.norm2)
    for i, layer in enumerate(decoder):
        attention(f"decoder.{i}.self", layer.self_attn, layer.norm1)
        attention(f"decoder.{i}.cross", layer.multihead_attn, layer.norm2, cross=True)
        feed(f"decoder.{i}.ffn", layer, layer.norm3)
    name("encoder.norm", norms["encoder"])
    name("decoder.norm", norms["decoder"])
    everything = nn.ModuleList([embedding, position, output, *encoder, *decoder, norms]).double().train()
    names = {our_name: names[our_name] for our_name in model.params}
    with torch.no_grad():
        for our_name, theirs in names.items():
            (theirs[0][theirs[1]] if isinstance(theirs, tuple) else theirs).copy_(model.params[our_name])

    def embed(x):
        return embedding(x.clamp(min=0)) * (x >= 0)[..., None] + position(torch.arange(x.shape[1]))

    def encode(x):
        h = embed(x)
        for layer in encoder:
            h = layer(h, src_key_padding_mask=x < 0)
        return norms["encoder"](h)

    def decode(x, memory, padding):
        h, seen = embed(x), torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        for layer in decoder:
            h = h + layer.self_attn(*[layer.norm1(h)] * 3, attn_mask=seen, need_weights=False)[0]
            if memory is not None:
                n = layer.norm2(h)
                h = h + layer.multihead_attn(n, memory, memory, key_padding_mask=padding, need_weights=False)[0]
            h = h + layer.linear2(F.gelu(layer.linear1(layer.norm3(h)), approximate="tanh"))
        return output(norms["decoder"](h)).flatten(0, 1)

    def forward(x):
        if c.mode == "causal":
            return decode(x, None, None)
        if c.mode == "seq2seq":
            return decode(x[:, 1], encode(x[:, 0]), x[:, 0] < 0)
        mask = (x >= 0).double()[..., None]
        return output((encode(x) * mask).sum(1) / mask.sum(1))

    return forward, names, everything


@pytest.mark.parametrize("mode", MODES)
@given(B=st.sampled_from([1, 3]), S=st.sampled_from([1, 2, 6]), padded=st.booleans(), seed=st.integers(0, 9999))
def test_agrees_with_torch_modules(agree, mode, B, S, padded, seed):
    """The same weights in torch's modules give the same outputs and gradients to 1e-10. Post-norm, W_o on single heads,
    another order of Q, K and V, padding that is seen, or a final norm that is missing would fail."""
    model = small(mode=mode)
    x = tokens(model.config, B, S, seed, padded)
    forward, names, _ = torchs(model)
    right = forward(x)
    output, tape = model.forward(x)
    agree(output.logits_TO, right.detach(), 1e-10)
    dy = torch.randn(right.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    leaves = [theirs[0] if isinstance(theirs, tuple) else theirs for theirs in names.values()]
    wanted = torch.autograd.grad(right, leaves, dy, allow_unused=True)
    assert model.backward(dy, tape) is None
    size = torch.stack([grad.norm() for grad in wanted if grad is not None]).norm()
    for (name, theirs), grad in zip(names.items(), wanted, strict=True):
        own = model.params.grads[name]
        if grad is None:
            assert (own == 0).all(), name
        else:
            agree(own, grad[theirs[1]] if isinstance(theirs, tuple) else grad, 1e-10, terms=size)


def test_mode_causal_leaves_the_encoder_alone():
    """Encoder, cross-attention and their norms get exactly zero, over whatever was there before."""
    model = small(mode="causal")
    model.params.grad_P.fill_(7.0)
    output, tape = model.forward(tokens(model.config, 2, 5, 0))
    model.backward(torch.randn_like(output.logits_TO), tape)
    left = [name for name in model.params if name.startswith("encoder.") or ".cross." in name]
    assert len(left) == 2 * 12 + 2 + 2 * 8 and set(left) == set(model.config.unused)
    assert all((model.params.grads[name] == 0).all() for name in left)
    assert all((model.params.grads[name] != 0).any() for name in model.params if name not in left)


@pytest.mark.parametrize("mode", MODES)
def test_sequences_do_not_see_each_other(agree, mode):
    """In another order, or alone, a sequence gives the same logits: batch and sequence axes are not mixed up."""
    model = small(mode=mode)
    x = tokens(model.config, 3, 6, 3)
    logits = model.forward(x)[0].logits_TO.unflatten(0, (3, -1))
    turned = model.forward(x.flip(0))[0].logits_TO.unflatten(0, (3, -1))
    agree(turned, logits.flip(0), 1e-12)
    agree(model.forward(x[1:2])[0].logits_TO.unflatten(0, (1, -1))[0], logits[1], 1e-12)


def test_a_decoder_does_not_look_ahead():
    """Changing a later token must not move an earlier logit by a single bit."""
    model = small(mode="causal")
    x = tokens(model.config, 2, 6, 4, padded=False)
    before = model.forward(x)[0].logits_TO.view(2, 6, -1)
    x[:, 4] = (x[:, 4] + 1) % 11
    after = model.forward(x)[0].logits_TO.view(2, 6, -1)
    assert torch.equal(before[:, :4], after[:, :4]) and (before[:, 4:] != after[:, 4:]).any()


def test_nothing_but_padding_is_no_nan():
    """A sequence of −1 only: attention over no key and a mean over no token."""
    model = small(mode="classify")
    output, tape = model.forward(torch.tensor([[3, 1, 2], [-1, -1, -1]]))
    torch.testing.assert_close(output.logits_TO[1], model.params["output.bias"], rtol=1e-12, atol=0)
    model.backward(torch.randn_like(output.logits_TO), tape)
    assert all(grad.isfinite().all() for grad in model.params.grads.values())


@pytest.mark.parametrize("mode", MODES)
def test_gradients_add_up_over_parts(agree, mode):
    """backward(accumulate=True) over two parts equals one backward over the whole; an overwritten shared embedding
    would not."""
    model = small(mode=mode)
    x = tokens(model.config, 4, 5, 6)
    output, tape = model.forward(x)
    dy = torch.randn_like(output.logits_TO)
    model.backward(dy, tape)
    whole = {name: grad.clone() for name, grad in model.params.grads.items()}
    rows = dy.shape[0] // 4
    for part, cot, accumulate in ((x[:3], dy[: 3 * rows], False), (x[3:], dy[3 * rows :], True)):
        model.backward(cot, model.forward(part)[1], accumulate=accumulate)
    for name, grad in whole.items():
        agree(model.params.grads[name], grad, 1e-12, terms=dy)


@pytest.mark.parametrize(
    ("mode", "x", "said"),
    [
        ("causal", torch.zeros(2, 3), "int64"),
        ("causal", torch.zeros(2, 2, 3, dtype=torch.int64), r"int64 \[B ≥ 1, S\]"),
        ("seq2seq", torch.zeros(2, 3, 3, dtype=torch.int64), "source and target"),
        ("causal", torch.full((1, 3), 11), "must be in 0..10, or −1"),
        ("classify", torch.full((1, 3), -2), "must be in 0..10, or −1"),
        ("causal", torch.tensor([[1, -1, 2]]), "at the end"),
        ("classify", torch.zeros(1, 10, dtype=torch.int64), "context of 9"),
        ("classify", torch.zeros(0, 3, dtype=torch.int64), "int64"),
    ],
)
def test_refuses_what_does_not_fit(mode, x, said):
    """One sentence that names the input and the expectation."""
    with pytest.raises(ValueError, match=said):
        small(mode=mode).forward(x)


def test_a_used_tape_is_refused():
    model = small(mode="classify")
    output, tape = model.forward(torch.tensor([[1, 2]]))
    with pytest.raises(ValueError, match="like the logits"):
        model.backward(torch.zeros(2, 1, dtype=torch.float64), tape)
    model.backward(output.logits_TO, tape)
    with pytest.raises(ValueError, match="has already been used"):
        model.backward(output.logits_TO, tape)


@pytest.mark.parametrize("options", [dict(heads=5), dict(mode="decode"), dict(width=0), dict(decoder_layers=-1)])
def test_refuses_shapes_that_cannot_be(options):
    with pytest.raises(ValueError):
        TransformerConfig(**{**SHAPE, **options})


@pytest.mark.parametrize("mode", MODES)
def test_counts_without_allocating(mode):
    """param_count is what a ParamSpace of the spec holds."""
    model = small(mode=mode)
    assert model.config.param_count() == model.params.count == sum(view.numel() for view in model.params.values())


@pytest.mark.parametrize(("name", "count"), [("nano", 195_540), ("tiny", 84_984_276), ("full", 807_846_356)])
@pytest.mark.parametrize("mode", MODES)
def test_sizes_match_the_moe(name, count, mode):
    """Within a thousandth of the MoE of that name (nano: half a percent), nothing allocated."""
    config = TransformerConfig.sized(name, mode=mode)
    assert abs(config.param_count() - count) <= (0.005 if name == "nano" else 0.001) * count
    assert 2.5 * config.width <= config.inner <= 6 * config.width


def test_a_budget_too_small_is_refused():
    with pytest.raises(ValueError, match="as few as 1,000"):
        TransformerConfig.matching(1000)


def test_what_a_run_proves_before_it_trains():
    """The options of a run at a small width, every tensor judged."""
    verdict = judge_config("transformer", TransformerConfig.sized("nano"))
    assert verdict.status == "proven" and len(verdict.parameters) == 18


def test_every_mode_is_proven():
    """`gradproof verify --model transformer`, without the differences."""
    verdicts = list(judge_model("transformer", quick=True))
    assert {verdict.status for verdict in verdicts} == {"proven"}
    assert {mode for mode in MODES if any(mode in verdict.name for verdict in verdicts)} == set(MODES)
