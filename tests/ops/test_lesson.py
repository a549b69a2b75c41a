import pytest
import torch

from gradproof.ops import lesson, mixture, update
from gradproof.ops.experts import Chain
from gradproof.ops.mixture import Mixture
from gradproof.ops.route import Routing

SHAPES = {
    "usual": Mixture(4, Chain((5, 12, 3), (True,)), Routing()),
    "auxiliary terms": Mixture(4, Chain((5, 12, 3), (True,)), Routing(balance=0.3, z_loss=0.1)),
    "sigmoid": Mixture(5, Chain((5, 9, 6, 4), (True, False)), Routing(scores="sigmoid", renormalise=True, balance=0.3)),
    "one expert": Mixture(1, Chain((4, 2), ()), Routing(k=1)),
}


def drawn(shape, T=7, **more):
    given = lesson._draw(dict(T=T), torch.Generator().manual_seed(3), dict(mixture=shape))
    return {**given, **more}


def called(given, shape, **options):
    names = ("p", "m", "v", "decayed", "count", "skips", "rate", "scale", "x", "target", "c")
    return lesson.forward(*(given[name] for name in names), shape, **options)[0]


@pytest.mark.parametrize("scale", [1.0, 64.0])
@pytest.mark.parametrize("name", SHAPES)
def test_its_gradient_is_that_of_its_loss(name, scale, agree):
    """Autograd through the forward alone: fails on a lost auxiliary term, a scale applied twice, or the target of
    another row.
    """
    shape = SHAPES[name]
    given = drawn(shape, scale=torch.tensor(scale).double())
    learnt = called(given, shape)
    p_P = given["p"].clone().requires_grad_()
    (y_TO, gates_TE, aux), _ = mixture.forward(given["x"], p_P, None, shape)
    loss = torch.nn.functional.cross_entropy(y_TO, given["target"]) + aux
    (loss * scale).backward()
    agree(learnt.g_P, p_P.grad, 1e-12)
    agree(learnt.loss, loss.detach(), 1e-14)
    agree(learnt.gates_TE, gates_TE.detach(), 1e-14)
    assert float(learnt.norm) == pytest.approx(float(p_P.grad.norm()) / scale, rel=1e-12)


@pytest.mark.parametrize("clip", [None, 0.1])
def test_it_ends_as_a_step_does(clip, agree):
    shape = SHAPES["auxiliary terms"]
    given = drawn(shape)
    learnt = called(given, shape, clip=clip, weight_decay=0.2)
    state = (given["p"], learnt.g_P, given["m"], given["v"], given["decayed"])
    scalars = tuple(given[name] for name in ("count", "skips", "rate", "scale"))
    right, _ = update.forward(*state, *scalars, learnt.loss, clip, weight_decay=0.2)
    for name in ("p_P", "m_P", "v_P", "count", "skips", "norm", "skipped"):
        agree(getattr(learnt, name), getattr(right, name), 1e-14)
    assert not torch.equal(learnt.p_P, given["p"]) and float(learnt.count) == float(given["count"]) + 1


def test_entropy_and_load_by_hand():
    """Of the router's distribution, not of the gates."""
    shape = SHAPES["usual"]
    given = drawn(shape)
    learnt = called(given, shape)
    of = shape.views(given["p"])
    q_TE = torch.softmax(given["x"] @ of.w_EI.T + of.b_E, -1)
    assert float(learnt.entropy) == pytest.approx(float(-(q_TE * q_TE.log()).sum(1).mean()), rel=1e-12)
    chosen_TK = q_TE.topk(2, 1).indices
    assert learnt.load_E.tolist() == [int((chosen_TK == e).sum()) for e in range(4)]


def test_a_target_out_of_range_is_refused():
    shape = SHAPES["usual"]
    with pytest.raises(ValueError, match=r"target\[2\] = 3 is out of range: the classes are 0..2"):
        called(drawn(shape, target=torch.tensor([0, 1, 3, 0, 0, 0, 0])), shape)
