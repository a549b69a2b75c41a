import pytest
import torch

from gradproof.ops import adamw
from gradproof.params import ALIGNMENT, Entry, ParamSpace
from gradproof.train.adamw import AdamW

SPEC = [
    Entry("a.weight", (9, 7), "matrix"),
    Entry("a.bias", (9,), "bias"),
    Entry("n.weight", (9,), "gamma"),
    Entry("b.weight", (70, 30), "matrix"),
    Entry("b.bias", (70,), "bias"),
]


@pytest.fixture
def kernel(triton_device):
    from gradproof.kernels.triton import adamw

    return adamw


@pytest.fixture
def state(normal, triton_device):
    """p, g, m, v, and the flags of the blocks that decay."""
    space = ParamSpace(SPEC)
    P = space.flat_P.numel()
    for name, view in space.items():
        view.fill_(float(space.shapes[name] and name.startswith(("a.weight", "b.weight"))))
    flags = space.flat_P.view(-1, ALIGNMENT).amax(1) > 0
    p, g, m, v = (normal_P.float() for normal_P in normal(0, (P,), (P,), (P,), (P,)))
    return (*(buffer.to(triton_device) for buffer in (p, g, 0.1 * m, 0.01 * v.square(), flags)),)


def scalar(value, device):
    return None if value is None else torch.tensor(float(value), device=device)


def right(p, g, m, v, flags, count, rate, divisor, betas, eps, decay):
    """The update in float64."""
    p, g, m, v = (buffer_P.double() for buffer_P in (p, g, m, v))
    g = g / (divisor or 1.0)
    decayed = flags.repeat_interleave(ALIGNMENT)
    p = torch.where(decayed, p * (1 - rate * decay), p)
    m = m + (1 - betas[0]) * (g - m)
    v = v + (1 - betas[1]) * (g * g - v)
    root = (v / (1 - betas[1] ** count)).sqrt()
    return p - rate / (1 - betas[0] ** count) * m / (root + eps), m, v


@pytest.mark.parametrize("count", [1, 7, 100_000])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.95)])
@pytest.mark.parametrize("divisor", [None, 4.7])
def test_one_step(kernel, state, triton_device, near, count, betas, divisor):
    """A bias correction in fp32 would lose half its digits at the first steps; a flag of a neighbouring block would
    move a bias."""
    p, g, m, v, flags = state
    wanted = right(*state, count, 0.01, divisor, betas, 1e-8, 0.1)
    start = [buffer_P.clone() for buffer_P in (p, m, v)]
    scalars = [scalar(number, triton_device) for number in (count, 0.01, divisor)]
    kernel.step(p, g, m, v, flags, *scalars, None, betas, 1e-8, 0.1)
    for moved, before, exact in zip((p, m, v), start, wanted, strict=True):
        change = exact - before.double()
        error = (moved.double() - exact).norm()
        assert error <= 2e-6 * change.norm() + 2**-24 * exact.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_narrow_copy(kernel, state, triton_device, dtype):
    """Written with the parameters: the new ones, rounded."""
    p, g, m, v, flags = state
    narrow = torch.full_like(p, torch.nan, dtype=dtype)
    scalars = [scalar(number, triton_device) for number in (3, 0.01, None, None)]
    kernel.step(p, g, m, v, flags, *scalars, (0.9, 0.999), 1e-8, 0.1, narrow)
    assert torch.allclose(narrow.float(), p, rtol=torch.finfo(dtype).eps, atol=1e-7)


@pytest.mark.parametrize("skip", [None, 0.0, 1.0])
def test_a_skipped_step_changes_nothing(kernel, state, triton_device, skip):
    """Not even by NaN in the gradient or in the divisor."""
    p, g, m, v, flags = state
    narrow = p.bfloat16()
    if skip:
        g[5] = torch.nan
    before = [buffer_P.clone() for buffer_P in (p, m, v, narrow)]
    scalars = [scalar(number, triton_device) for number in (1, 0.01, 2.0, skip)]
    kernel.step(p, g, m, v, flags, *scalars, (0.9, 0.999), 1e-8, 0.1, narrow)
    after = (p, m, v, narrow)
    assert all(torch.equal(*pair) == bool(skip) for pair in zip(before, after, strict=True))
    assert g.isnan().any() == bool(skip)


def test_nan_in_the_gradient_reaches_its_parameter_alone(kernel, state, triton_device):
    p, g, m, v, flags = state
    g[5] = torch.nan
    scalars = [scalar(number, triton_device) for number in (1, 0.01, None, 0.0)]
    kernel.step(p, g, m, v, flags, *scalars, (0.9, 0.999), 1e-8, 0.1)
    for buffer_P in (p, m, v):
        assert buffer_P.isnan().nonzero().flatten().tolist() == [5]


@pytest.mark.parametrize("decay", ["matrices", "all"])
def test_as_the_reference_over_some_steps(kernel, normal, triton_device, decay):
    """The same parameters and moments as `AdamW`, within what fp32 gives, padding untouched."""
    spaces = [ParamSpace(SPEC, device=triton_device).initialise(0) for _ in range(2)]
    optimizer = AdamW(lr=0.01, weight_decay=0.1, decay=decay).bind(spaces[0])
    p, m, v = spaces[1].flat_P, *(torch.zeros_like(spaces[1].flat_P) for _ in range(2))
    marks = ParamSpace(SPEC)
    for entry in SPEC:
        marks[entry.name].fill_(float(decay == "all" or entry.kind == "matrix"))
    flags = (marks.flat_P.view(-1, ALIGNMENT).amax(1) > 0).to(torch.uint8).to(triton_device)
    divisor, skip, rate = (scalar(number, triton_device) for number in (8.0, 0.0, 0.01))
    for step in range(1, 6):
        for name, view in spaces[0].grads.items():
            view.copy_(normal(step, spaces[0].shapes[name])[0])
        g = spaces[0].grad_P.clone()
        optimizer.step(divisor, skip)
        count = scalar(step, triton_device)
        kernel.step(p, g, m, v, flags, count, rate, divisor, skip, (0.9, 0.999), 1e-8, 0.1)
    for moved, wanted in ((p, spaces[0].flat_P), (m, optimizer.m_P), (v, optimizer.v_P)):
        assert (moved - wanted).norm() <= 1e-6 * wanted.norm()


@pytest.mark.parametrize("P", [1, 63, 4096, 20_001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_norm(kernel, normal, triton_device, monkeypatch, P, dtype):
    """In one chunk and in several, of several blocks; the last one short."""
    (g,) = normal(1, (P,))
    g = g.to(triton_device, dtype)
    wanted = float(g.double().norm())
    for programs in (kernel.PROGRAMS, 2):
        monkeypatch.setattr(kernel, "PROGRAMS", programs)
        first, second = kernel.norm(g), kernel.norm(g)
        assert first.shape == () and first.dtype == torch.float32 and torch.equal(first, second)
        assert abs(float(first) - wanted) <= 1e-6 * wanted


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_norm_that_is_not_finite(kernel, triton_device, bad):
    g = torch.ones(5000, device=triton_device)
    g[4999] = bad
    assert not kernel.norm(g).isfinite()


def test_the_op_and_the_norm(kernel, state, triton_device):
    """What an admission calls: new memory, the old left as it is."""
    before = [buffer.clone() for buffer in state]
    scalars = [scalar(number, triton_device) for number in (7, 0.01, 1024.0, 0.0)]
    fast, _ = kernel.forward(*state, *scalars)
    exact = [tensor.double() if tensor.is_floating_point() else tensor for tensor in (*state, *scalars)]
    wanted, _ = adamw.forward(*exact)
    assert all(torch.equal(*pair) for pair in zip(before, state, strict=True))
    for fast_P, right_P in zip(fast, wanted, strict=True):
        assert (fast_P - right_P).norm() <= 1e-6 * right_P.norm()
    assert abs(float(kernel.norm(state[1])) - float(adamw.norm(state[1]))) <= 1e-6 * float(adamw.norm(state[1]))


def test_too_few_flags_are_refused(kernel, state):
    """The kernel would read beyond them."""
    p, g, m, v, flags = state
    with pytest.raises(ValueError, match="a flag for every 64"):
        kernel.step(p, g, m, v, flags[:-1], torch.ones(()), torch.ones(()))
