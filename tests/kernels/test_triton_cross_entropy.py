import pytest
import torch

from gradproof.ops import cross_entropy


@pytest.fixture
def kernel(triton_device):
    from gradproof.kernels.triton import cross_entropy

    return cross_entropy


@pytest.fixture
def compare(kernel, near, triton_device):
    """compare(z, target, **options): loss and gradient against the reference."""

    def check(z_TC, target_T, **options):
        z_TC, target_T = z_TC.to(triton_device), target_T.to(triton_device)
        dloss = torch.tensor(1.7, device=triton_device)
        before = z_TC.clone()
        loss, saved = kernel.forward(z_TC, target_T, **options)
        dz_TC = kernel.backward(dloss, saved, z_TC, target_T)
        assert torch.equal(z_TC, before)
        usual, kept = cross_entropy.forward(z_TC, target_T, **options)
        wide = {
            name: option.double() if isinstance(option, torch.Tensor) else option for name, option in options.items()
        }
        right, exact = cross_entropy.forward(z_TC.double(), target_T, **wide)
        near(loss, usual, right)
        usual_TC = cross_entropy.backward(dloss.to(z_TC.dtype), kept, z_TC, target_T)
        right_TC = cross_entropy.backward(dloss.double(), exact, z_TC.double(), target_T)
        near(dz_TC, usual_TC, right_TC, scale=1.7 * exact)
        return loss, dz_TC

    return check


@pytest.fixture
def drawn(normal):
    def draw(T, C):
        (z_TC,) = normal(0, (T, C))
        return 3 * z_TC.float(), torch.randint(C, (T,), generator=torch.Generator().manual_seed(1))

    return draw


@pytest.mark.parametrize(
    ("T", "C"), [(1, 1), (1, 2), (2, 3), (7, 12), (33, 20), (300, 12), (1030, 2), (5, 129), (11, 1000)]
)
def test_every_shape(compare, drawn, T, C):
    """Classes of the padding that count, rows left out, or blocks that are not added up would fail."""
    compare(*drawn(T, C))


@pytest.mark.parametrize("T", [9, 300])
def test_class_weights_and_totals(compare, drawn, triton_device, T):
    """From the host and from the device; the total of the whole batch divides once."""
    z_TC, target_T = drawn(T, 5)
    weight_C = torch.tensor([0.5, 2.0, 1.0, 0.0, 3.0], device=triton_device)
    compare(z_TC, target_T, class_weight_C=weight_C)
    compare(z_TC, target_T, total=50.0)
    compare(z_TC, target_T, total=torch.tensor(77.0, device=triton_device))
    compare(z_TC, target_T, class_weight_C=weight_C, total=2 * T)


def test_wrong_with_certainty(compare):
    """The loss is 900, not the logarithm of a clamped probability, and logits of that size keep their digits."""
    z_TC = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    z_TC[1] = torch.tensor([900.0, 0.0, 1.0, -3.0])
    compare(z_TC, torch.tensor([0, 1, 2]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_logits(kernel, drawn, triton_device, dtype):
    z_TC, target_T = (tensor.to(triton_device) for tensor in drawn(20, 6))
    z_TC = z_TC.to(dtype)
    loss, saved = kernel.forward(z_TC, target_T)
    dz_TC = kernel.backward(torch.ones((), device=triton_device), saved, z_TC, target_T)
    right, exact = cross_entropy.forward(z_TC.double(), target_T)
    right_TC = cross_entropy.backward(torch.ones((), device=triton_device), exact, z_TC.double(), target_T)
    eps = torch.finfo(dtype).eps
    assert loss.dtype == dz_TC.dtype == dtype
    assert abs(float(loss) - float(right)) <= eps * float(right)
    assert torch.allclose(dz_TC.double(), right_TC, rtol=2 * eps, atol=1e-7)


def test_strided_logits_nan_and_same_bits_twice(compare, drawn, kernel, triton_device):
    z_TC, target_T = drawn(300, 20)
    compare(z_TC[:, 4:16], target_T % 12)
    compare(z_TC[:, ::2], target_T[:300] % 10)
    z_TC, target_T = z_TC.to(triton_device), target_T.to(triton_device)
    first, second = (kernel.forward(z_TC, target_T)[0] for _ in range(2))
    assert torch.equal(first, second)
    z_TC[7, 3] = torch.nan
    loss, saved = kernel.forward(z_TC, target_T)
    dz_TC = kernel.backward(torch.ones((), device=triton_device), saved, z_TC, target_T)
    assert loss.isnan() and dz_TC.isnan().any(1).nonzero().flatten().tolist() == [7]


@pytest.mark.skipif(torch.cuda.is_available(), reason="on the device an assertion ends the process")
def test_a_target_out_of_range_is_refused(kernel):
    for bad in (-1, 3):
        with pytest.raises(ValueError, match=rf"target\[1\] = {bad} is out of range"):
            kernel.forward(torch.zeros(2, 3), torch.tensor([0, bad]))
    with pytest.raises(ValueError, match="int64"):
        kernel.forward(torch.zeros(2, 3), torch.tensor([0, 1], dtype=torch.int32))
    with pytest.raises(ValueError, match="at least one row"):
        kernel.forward(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))


def test_more_classes_than_it_holds(kernel):
    with pytest.raises(ValueError, match="C = 1025"):
        kernel.forward(torch.zeros(1, 1025), torch.zeros(1, dtype=torch.int64))


@pytest.mark.parametrize("T", [4, 300])
def test_the_flag_that_the_device_asserts(kernel, triton_device, T):
    """What `torch._assert_async` is given: 0 as soon as one target is out of range, in any block."""
    import triton

    z_TC, tile, block = torch.zeros(T, 3, device=triton_device), *kernel._tile(3)
    for bad, expected in ((2, 1.0), (3, 0.0), (-1, 0.0)):
        target_T = torch.zeros(T, dtype=torch.int64, device=triton_device)
        target_T[-1] = bad
        blocks = triton.cdiv(T, tile)
        part, loss, divisor, fine = (torch.empty(n, device=triton_device) for n in (3 * blocks, 1, 1, 1))
        kernel._forward[(blocks,)](
            z_TC,
            target_T,
            None,
            part,
            loss,
            divisor,
            fine,
            0.0,
            T,
            Z_ROW=3,
            C=3,
            R=tile,
            BLOCK=block,
            ALONE=blocks == 1,
            TOTAL="none",
            IGNORE=None,
        )
        if blocks > 1:
            kernel._add_up[(1,)](part, loss, divisor, fine, 0.0, blocks, DEEP=2, TOTAL="none")
        assert fine.item() == expected


@pytest.mark.parametrize("T", [6, 300])
def test_padding_is_ignored(compare, T):
    """Rows of −1 count neither in the sum nor in what it is divided by, and have no gradient."""
    z_TC = torch.randn(T, 5, generator=torch.Generator().manual_seed(9))
    compare(z_TC, torch.arange(T) % 6 - 1, ignore=-1)


@pytest.mark.parametrize("T", [6, 300])
def test_nothing_but_padding_gives_nothing(kernel, triton_device, T):
    """0/0 would be NaN: in the loss, and through it in every parameter."""
    z_TC = torch.randn(T, 5, generator=torch.Generator().manual_seed(9)).to(triton_device)
    target_T = torch.full((T,), -1, device=triton_device)
    for total in (None, 0.0, torch.tensor(0, device=triton_device)):
        loss, saved = kernel.forward(z_TC, target_T, total=total, ignore=-1)
        dz_TC = kernel.backward(torch.tensor(1.7, device=triton_device), saved, z_TC, target_T)
        assert float(loss) == 0 and (dz_TC == 0).all()
