"""Randomly initialised small Hugging Face models: experts without float64 kernels, norms that cast to float32."""

import pytest
import torch

import gradproof

transformers = pytest.importorskip("transformers", reason="the test extra is not installed")
SMALL = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)


def mixtral():
    config = transformers.MixtralConfig(**SMALL, num_key_value_heads=2, num_local_experts=4)
    return transformers.MixtralForCausalLM(config)


def qwen2_moe():
    sizes = dict(moe_intermediate_size=32, shared_expert_intermediate_size=48, num_experts=6, num_experts_per_tok=2)
    return transformers.Qwen2MoeForCausalLM(transformers.Qwen2MoeConfig(**SMALL, **sizes, num_key_value_heads=2))


def gpt2():
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=32)
    )


def bert():
    return transformers.BertModel(transformers.BertConfig(**SMALL))


@pytest.mark.parametrize("make", [mixtral, qwen2_moe, gpt2, bert])
def test_model_is_proven(make):
    torch.manual_seed(0)
    report = gradproof.verify(make(), (torch.randint(0, 64, (2, 10)),))
    assert report.status == "proven", report.summary
    (subject,) = report.subjects
    assert subject.forwards <= 60 + 8 * len(subject.parameters)  # the ways to call it cost the same for any model


def test_one_spoilt_expert_is_named():
    """A 1% error in the experts' fused weight, behind a grouped product that had to be decomposed."""
    torch.manual_seed(0)
    model = mixtral()
    name = "model.layers.1.mlp.experts.down_proj"
    model.get_parameter(name).register_hook(lambda g: 1.01 * g)
    report = gradproof.verify(model, {"input_ids": torch.randint(0, 64, (2, 10))})
    assert [j.name for j in report.subjects[0].parameters if j.status == "refuted"] == [name]


@pytest.mark.parametrize("factor, how", [(1.001, {}), (1.05, {"autocast": "bf16"})])
@pytest.mark.parametrize("make", [mixtral, gpt2])
def test_a_small_factor_in_the_dtype_that_trains_is_named(make, factor, how):
    """Right in float64; what is narrower is a little too large."""
    torch.manual_seed(0)
    model = make()
    name = next(name for name, _ in model.named_parameters() if "o_proj" in name or "c_proj.weight" in name)
    narrow = torch.bfloat16 if how else torch.float32

    def hook(module, args, output):
        output = output[0] if isinstance(output, tuple) else output
        if output.dtype == narrow:
            output.register_hook(lambda g: factor * g)

    model.get_submodule(name.removesuffix(".weight")).register_forward_hook(hook)
    report = gradproof.verify(model, (torch.randint(0, 64, (2, 10)),), quick=True, **how)
    assert name in {j.name for j in report.subjects[0].parameters if j.status == "refuted"}, report.summary
    assert "right in float64, wrong in" in report.summary


KEY_BIAS, SHARED_GATE = "model.layers.1.self_attn.k_proj.bias", "model.layers.1.mlp.shared_expert_gate.weight"


@pytest.mark.parametrize(
    "make, seed, how, name, factor",
    [
        (qwen2_moe, 0, {"dtype": "bf16"}, KEY_BIAS, 1.05),
        pytest.param(qwen2_moe, 0, {"dtype": "bf16"}, KEY_BIAS, 1 / 1.05, marks=pytest.mark.slow),
        pytest.param(qwen2_moe, 0, {"dtype": "bf16", "skip": ["point"]}, KEY_BIAS, 1.05, marks=pytest.mark.slow),
        pytest.param(qwen2_moe, 0, {"dtype": "bf16"}, SHARED_GATE, 1.05, marks=pytest.mark.slow),
        (qwen2_moe, 4, {"autocast": "bf16"}, KEY_BIAS, 1.05),
        (mixtral, 1, {"dtype": "bf16"}, "model.layers.0.mlp.gate.weight", 1.05),
        pytest.param(qwen2_moe, 0, {"dtype": "bf16"}, None, 1.0, marks=pytest.mark.slow),
        (qwen2_moe, 4, {"autocast": "bf16"}, None, 1.0),
        (mixtral, 1, {"dtype": "bf16"}, None, 1.0),
    ],
)
def test_a_small_factor_that_rounding_hides_in_one_run(make, seed, how, name, factor):
    """A key bias, whose gradient nearly cancels, and a router's gate: bf16 rounding moves them by several percent."""
    torch.manual_seed(seed)
    model = make()
    if name is not None:
        model.get_parameter(name).register_hook(lambda g: g if g.dtype == torch.float64 else factor * g)
    report = gradproof.verify(model, (torch.randint(0, 64, (2, 10)),), quick=True, seed=seed, **how)
    assert report.status == ("proven" if name is None else "refuted"), report.summary
    refuted = [j.name for j in report.subjects[0].parameters if j.status == "refuted"]
    assert refuted == ([] if name is None else [name])
