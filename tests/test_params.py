import hashlib
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradproof.models.moe import MoE
from gradproof.params import Entry, ParamSpace, padded

SPEC = [
    Entry("first.weight", (5, 9), "matrix"),
    Entry("first.bias", (5,), "bias"),
    Entry("norm.weight", (5,), "gamma"),
    Entry("norm.bias", (5,), "beta"),
    Entry("last.weight", (3, 64), "matrix"),
    Entry("last.bias", (3,), "bias"),
]
# The bits of every model that was ever trained from seed 0.
NANO = "c9281eba34d5f343c691df671ab0616de8eb59f598b684ce0933e97b4680cc85"


def experts(count):
    """`count` blocks of a matrix and a bias, after a router that is unlike them."""
    spec = [Entry("router.weight", (count, 7), "matrix")]
    for e in range(count):
        spec += [Entry(f"experts.{e}.weight", (4, 20), "matrix"), Entry(f"experts.{e}.bias", (4,), "bias")]
    return ParamSpace(spec)


@given(st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=3), min_size=1, max_size=8))
def test_layout(shapes):
    """Entries in the order of declaration at multiples of 64; an overlap or another order would show."""
    params = ParamSpace([Entry(f"p{i}", tuple(shape), "matrix") for i, shape in enumerate(shapes)])
    assert list(params) == list(params.grads) == [f"p{i}" for i in range(len(shapes))]
    for i, view in enumerate(params.values()):
        assert view.shape == tuple(shapes[i]) and view.is_contiguous()
        assert view.storage_offset() % 64 == 0
        view.fill_(i + 1)
    assert [int(view.unique()) for view in params.values()] == [i + 1 for i in range(len(shapes))]
    assert params.count == sum(map(math.prod, shapes)) == int((params.flat_P != 0).sum())
    assert params.flat_P.numel() == sum(padded(math.prod(shape)) for shape in shapes)
    offsets = [view.storage_offset() for view in params.values()]
    assert offsets == sorted(offsets)


def test_padding_is_zero_and_not_counted():
    """A norm of the flat buffer would count what initial values left in the gaps."""
    params = ParamSpace(SPEC).initialise(0)
    padding_P = torch.ones_like(params.flat_P, dtype=torch.bool)
    for name, view in params.items():
        padding_P[params.offsets[name] : params.offsets[name] + view.numel()] = False
    assert (params.flat_P[padding_P] == 0).all()
    assert int((~padding_P).sum()) == params.count == 45 + 5 + 5 + 5 + 192 + 3
    assert params.flat_P.numel() == 64 * (1 + 1 + 1 + 1 + 3 + 1)


def test_gradients_have_the_layout_of_the_values():
    """Were the gradients ordered otherwise, the optimizer would update one parameter with another's gradient."""
    params = ParamSpace(SPEC)
    assert params.grad_P.shape == params.flat_P.shape and (params.grad_P == 0).all()
    for name, grad in params.grads.items():
        assert grad.storage_offset() == params[name].storage_offset() and grad.shape == params[name].shape
        assert grad.untyped_storage().data_ptr() == params.grad_P.untyped_storage().data_ptr()
    assert params.grads["last.bias"] is params.grads["last.bias"]


@pytest.mark.parametrize("grads", [False, True])
def test_stack_is_a_view(grads):
    """A copy would swallow what is written to it, and experts of other lengths would not line up."""
    params = experts(11)
    views, flat_P = (params.grads, params.grad_P) if grads else (params, params.flat_P)
    w_EOI = params.stack("experts.*.weight", grads=grads)
    assert w_EOI.shape == (11, 4, 20)
    assert w_EOI.untyped_storage().data_ptr() == flat_P.untyped_storage().data_ptr()
    w_EOI.copy_(torch.arange(880.0).reshape(11, 4, 20))
    for e in range(11):
        assert torch.equal(views[f"experts.{e}.weight"], torch.arange(80.0).reshape(4, 20) + 80 * e)
        assert (views[f"experts.{e}.bias"] == 0).all()
    views["experts.10.bias"].fill_(7)
    assert params.stack("experts.*.bias", grads=grads)[10].tolist() == [7.0] * 4


def test_stack_refuses_what_is_not_a_stack():
    """A view over entries of different shapes would read one expert's bias as another's weight."""
    with pytest.raises(KeyError, match=r"nothing\.\*"):
        experts(2).stack("nothing.*.weight")
    uneven = [Entry(f"experts.{e}.weight", (4, 20 + 64 * e), "matrix") for e in range(3)]
    with pytest.raises(ValueError, match=r"experts\.\*\.weight.*not equally spaced"):
        ParamSpace(uneven).stack("experts.*.weight")


def test_stack_of_one():
    """One expert has no distance to a second."""
    assert experts(1).stack("experts.*.weight").shape == (1, 4, 20)


def test_generation_rises_with_every_write():
    """A tape that outlives an update is refused by this number alone."""
    params = experts(3)
    seen = [params.generation]
    params["experts.1.weight"].add_(1.0)
    seen.append(params.generation)
    params["experts.1.weight"][0, 0] = 5.0
    seen.append(params.generation)
    params.stack("experts.*.bias").mul_(2.0)
    seen.append(params.generation)
    params.flat_P.zero_()
    seen.append(params.generation)
    params.touch()
    seen.append(params.generation)
    with torch.no_grad():
        params["router.weight"].copy_(torch.ones(3, 7))
    seen.append(params.generation)
    with torch.inference_mode():
        params["router.weight"].zero_()
    seen.append(params.generation)
    assert seen == sorted(set(seen))


def test_generation_ignores_reads_and_gradients():
    """Were reading or a backward an update, no tape would ever be valid."""
    params = experts(3)
    before = params.generation
    _ = params["experts.1.weight"] + params.stack("experts.*.weight").sum()
    params.grads["experts.1.weight"].add_(1.0)
    params.grad_P.zero_()
    assert params.generation == before


def test_refuses_a_name_twice():
    """The second would hide the first, which would never be trained."""
    with pytest.raises(ValueError, match="'a' is declared twice"):
        ParamSpace([Entry("a", (2,), "bias"), Entry("b", (2,), "bias"), Entry("a", (3,), "bias")])


def test_unknown_name():
    """A mapping that made entries up would hide a misspelt name."""
    params = ParamSpace(SPEC)
    assert len(params) == 6 and "first.bias" in params and "first.gamma" not in params
    with pytest.raises(KeyError):
        params["first.gamma"]


def test_initial_values():
    """U(±1/√in), the bias by the matrix before it; a bound by the outputs or of √3/√in would fail."""
    spec = [
        Entry("a.weight", (200, 9), "matrix"),
        Entry("a.bias", (200,), "bias"),
        Entry("n.weight", (200,), "gamma"),
        Entry("n.bias", (200,), "beta"),
        Entry("b.weight", (20, 200), "matrix"),
        Entry("b.bias", (2000,), "bias"),
    ]
    params = ParamSpace(spec, dtype=torch.float64).initialise(3)
    for name, fan_in in {"a.weight": 9, "a.bias": 9, "b.weight": 200, "b.bias": 200}.items():
        bound, values = 1 / math.sqrt(fan_in), params[name]
        assert 0.95 * bound < values.abs().max() < bound
        assert abs(float(values.mean())) < 0.15 * bound
        assert 0.9 * bound < math.sqrt(3) * float(values.std()) < 1.1 * bound
    assert (params["n.weight"] == 1).all() and (params["n.bias"] == 0).all()


def test_initial_values_depend_on_name_and_seed_only():
    """One stream through all entries would give other values when an entry is added before."""
    params, again, other = (ParamSpace(SPEC).initialise(seed) for seed in (0, 0, 1))
    assert torch.equal(params.flat_P, again.flat_P)
    longer = ParamSpace([Entry("new.weight", (2, 2), "matrix"), *SPEC]).initialise(0)
    for name in ("first.weight", "first.bias", "last.weight", "last.bias"):
        assert not (params[name] == other[name]).any()
        assert torch.equal(params[name], longer[name])
    twins = ParamSpace([Entry("a", (4, 4), "matrix"), Entry("b", (4, 4), "matrix")]).initialise(0)
    assert not (twins["a"] == twins["b"]).any()


def test_initial_values_are_the_same_in_every_dtype():
    """Drawn in float32 and in float64 apart, a float64 proof would be about another model."""
    single, double = (ParamSpace(SPEC, dtype=dtype).initialise(0) for dtype in (torch.float32, torch.float64))
    assert torch.equal(single.flat_P, double.flat_P.float())


def test_initialise_bumps_the_generation():
    """A tape from before would be used with the new values."""
    params = ParamSpace(SPEC)
    before = params.generation
    params.initialise(0)
    assert params.generation > before


def test_nano_has_its_golden_bits():
    """Any change of the stream, the names, the order or the padding changes this digest."""
    flat_P = MoE.sized("nano", seed=0).params.flat_P
    assert hashlib.sha256(flat_P.numpy().tobytes()).hexdigest() == NANO
