import pytest
import torch

from gradproof.proof.recorder import AS_IT_IS, FLOAT32, PIECES, Recorder, grouped_mm


def watched(function, *args, promote=AS_IT_IS):
    with Recorder(promote) as recorder:
        function(*args)
    return recorder


@pytest.mark.parametrize(
    ("function", "kink"),
    [
        (torch.relu, 0.0),
        (torch.abs, 0.0),
        (torch.celu, 0.0),
        (torch.nn.functional.hardtanh, 1.0),
        (lambda x: x.clamp(min=0.5), 0.5),
        (lambda x: x.clamp(-3, 0.5), 0.5),
        (lambda x: torch.maximum(x, torch.full_like(x, 0.25)), 0.25),
        (lambda x: torch.where(x > 2, x, 0.0), 2.0),
        (torch.round, 0.5),
        (torch.floor, 3.0),
        (lambda x: torch.nn.functional.huber_loss(x, torch.zeros_like(x)), 1.0),
        (lambda x: x.clone().floor_(), 1.0),
        (lambda x: x.round(decimals=1), 0.25),
        (lambda x: torch.div(x, 2.0, rounding_mode="floor"), 2.0),
        (torch.angle, 0.0),
        (lambda x: torch.copysign(torch.ones_like(x), x), 0.0),
        (lambda x: torch.linalg.slogdet(x.diag()), 0.0),
        (lambda x: torch.zeros(1).index_reduce(0, torch.tensor([0, 0]), x, "amax"), 0.0),
        (lambda x: torch.zeros(1).scatter_reduce(0, torch.tensor([0, 0]), x, "amax"), 0.0),
    ],
)
def test_a_crossed_kink_changes_the_signature(function, kink):
    """Differences across a kink must be noticed; those on one side must not be thrown away."""
    below, above = torch.tensor([kink - 1e-3, -7.3]), torch.tensor([kink + 1e-3, -7.3])
    beside = torch.tensor([kink + 2e-3, -7.31])
    assert watched(function, below).signature != watched(function, above).signature
    assert watched(function, above).signature == watched(function, beside).signature


def test_order_and_choice_change_the_signature():
    """Sort, top-k and arg-max by their indices; control flow by the ops that run."""
    x, y = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 3.0, 2.0])
    for function in (torch.sort, lambda t: t.topk(2), torch.argmax, lambda t: t.sin() if t[1] > t[2] else t.cos()):
        assert watched(function, x).signature != watched(function, y).signature


def test_coarsest_rounding_is_seen():
    x = torch.randn(3, dtype=torch.float64)
    assert watched(torch.sin, x).coarsest == torch.finfo(torch.float64).eps
    assert watched(lambda t: t.float().sin().double(), x).coarsest == torch.finfo(torch.float32).eps
    assert watched(lambda t: t.bfloat16().double(), x).coarsest == torch.finfo(torch.bfloat16).eps


def test_promotion_keeps_float64():
    """Casts, factories and constants in float32 become float64; views and writes keep their own storage."""
    x, constant = torch.randn(4, dtype=torch.float64), torch.rand(4)

    def forward(t):
        h = t.float() * constant + torch.ones(4, dtype=torch.float32)
        assert h.dtype == torch.float64
        constant[1:].add_(1.0)

    before = constant.clone()
    assert watched(forward, x, promote=FLOAT32).coarsest <= torch.finfo(torch.float32).eps
    assert torch.equal(constant[1:], before[1:] + 1)


def test_every_piece_takes_its_op():
    """A pattern function with the wrong arguments would crash the user's forward."""
    assert all(callable(piece) for piece in PIECES.values())
    x = torch.randn(3, 4)
    watched(lambda t: (t[:0].max(dim=1), t.max(), t.min(), torch.max(t, -t), t.amax(1), t.clamp(max=t + 1)), x)
    watched(lambda t: (t.bfloat16().round(), torch.clamp(t[0], min=t)), x)
    # More source than is read, and reductions that choose nothing.
    first = torch.tensor([[0, 1], [2, 0]])
    watched(lambda t: (t.scatter_reduce(0, first, t.exp(), "amin"), t.scatter_reduce(1, first, t.exp(), "sum")), x)
    watched(lambda t: (t.div(2), t.index_reduce(1, torch.tensor([0, 3]), t[:, :2], "mean")), x)


@pytest.mark.parametrize("shapes", [((8, 8), (2, 8, 8)), ((8, 8), (8, 8)), ((2, 8, 8), (8, 8))])
def test_grouped_product_is_torch_s(shapes):
    """Rows, the summed axis and columns in groups, against the kernel in float32."""
    a, b = (torch.randn(shape) for shape in shapes)
    offs = torch.tensor([3, 8], dtype=torch.int32)
    expected = torch._grouped_mm(a, b, offs=offs)
    assert torch.allclose(grouped_mm(a, b, offs=offs), expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max()))
