"""TrainStep on a transformer: the loss of tokens, micro-batches, narrow products, admitted kernels."""

import pytest
import torch
from torch.nn import functional as F

import gradproof
from gradproof.train.loss import Loss

SHAPE = dict(vocabulary=11, width=32, heads=4, encoder_layers=2, decoder_layers=2, context=8)
MODES = ("causal", "seq2seq", "classify")


def make(mode, dtype="fp32", **options):
    """A step on a small transformer, and a batch with padding."""
    masters = torch.float64 if dtype == "fp64" else torch.float32
    model = gradproof.Transformer(gradproof.TransformerConfig(mode=mode, **SHAPE), seed=3, dtype=masters)
    loss = "bce" if mode == "classify" else "cross_entropy"
    step = gradproof.TrainStep(model, loss, gradproof.AdamW(lr=1e-2), dtype, clip=1.0, **options)
    generator = torch.Generator().manual_seed(4)
    B, S = 6, 7
    x = torch.randint(11, (B, 2, S) if mode == "seq2seq" else (B, S), generator=generator)
    lengths = torch.randint(1, S + 1, x.shape[:-1], generator=generator)
    x = x.masked_fill(torch.arange(S) >= lengths[..., None], -1)
    if mode == "classify":
        return step, x, (torch.randint(2, (B,), generator=generator).to(masters), torch.ones(B, dtype=masters))
    last = x if mode == "causal" else x[:, 1]
    target = torch.randint(11, (B, S), generator=generator).masked_fill(last < 0, -1)
    return step, x, target


@pytest.mark.parametrize("mode", MODES)
def test_the_loss_is_the_mean_over_tokens(mode):
    """Divided by B·S, padding included, it would be too small."""
    step, x, target = make(mode, "fp64")
    logits = step.model.forward(x)[0].logits_TO
    loss = float(step(x, target).loss)
    if mode == "classify":
        right = F.binary_cross_entropy_with_logits(logits[:, 0], target[0])
    else:
        right = F.cross_entropy(logits, target.flatten(), ignore_index=-1)
    assert loss == pytest.approx(float(right), rel=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_micro_batches_change_nothing(mode):
    """Sequences of different lengths in unequal parts: a mean of means would move the parameters elsewhere."""
    whole, x, target = make(mode, "fp64")
    parts, _, _ = make(mode, "fp64", micro_rows=4)
    for _ in range(3):
        a, b = whole(x, target), parts(x, target)
    assert float(b.loss) == pytest.approx(float(a.loss), rel=1e-10)
    torch.testing.assert_close(parts.model.params.flat_P, whole.model.params.flat_P, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("mode", MODES)
def test_fast_kernels_are_admitted_and_agree(mode, monkeypatch):
    """Fused attention and the others run in float32, and train as the reference does."""
    fast, x, target = make(mode)
    fast.choose(6)
    monkeypatch.setenv("GRADPROOF_KERNELS", "reference")
    slow, _, _ = make(mode)
    assert {fast.choose(6).chosen[op] for op in ("attention", "layernorm", "embedding")} == {"aten"}
    assert fast.choose(6).chosen["ffn"] in ("cpu", "aten")  # the first needs g++
    assert set(slow.choose(6).chosen.values()) == {"reference"}
    for _ in range(5):
        a, b = fast(x, target), slow(x, target)
        assert float(a.loss) == pytest.approx(float(b.loss), rel=1e-4)
        assert float(a.grad_norm) == pytest.approx(float(b.grad_norm), rel=1e-3)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("mode", MODES)
def test_narrow_products_follow_the_wide_ones(mode, dtype):
    """Masters, residual, norms and loss stay fp32: the loss after a few steps is that of fp32 to some percent, and the
    gradient of the first step points the same way."""
    narrow, x, target = make(mode, dtype)
    wide, _, _ = make(mode)
    for i in range(4):
        a, b = narrow(x, target), wide(x, target)
        if i == 0:
            g, h = narrow.model.params.grad_P / float(a.scale), wide.model.params.grad_P
            assert float(F.cosine_similarity(g, h, 0)) > 0.999
            assert narrow.model.params.flat_P.dtype == torch.float32
    assert float(a.loss) == pytest.approx(float(b.loss), rel=0.05) and not bool(a.skipped)


def test_a_target_that_is_neither_token_nor_padding_is_refused():
    step, x, target = make("causal")
    target[0, 0] = -2
    with pytest.raises(ValueError, match="out of range"):
        step(x, target)


def test_class_weights_and_padding_go_together():
    """A Loss of one's own: padding still has no weight."""
    step, x, target = make("causal", "fp64")
    weight = torch.linspace(0.5, 2, 11, dtype=torch.float64)
    step.training.loss = Loss("cross_entropy", class_weight_C=weight, ignore=-1)
    logits = step.model.forward(x)[0].logits_TO
    right = F.cross_entropy(logits, target.flatten(), weight, ignore_index=-1)
    assert float(step(x, target).loss) == pytest.approx(float(right), rel=1e-12)
