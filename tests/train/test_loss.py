from types import SimpleNamespace

import pytest
import torch

from gradproof.ops import bce, cross_entropy, mse, quality
from gradproof.train.loss import Loss

WEIGHT_C = torch.tensor([0.5, 2.0, 1.25]).double()


def outcomes(T, classes=3, seed=0):
    return torch.randint(classes, (T,), generator=torch.Generator().manual_seed(seed))


def case(name, normal, T=9):
    """A loss, outputs for it, and a target."""
    y_TO, metrics_TM, label_T, weight_T = normal(3, (T, 5), (T, 2), (T,), (T,))
    return {
        "cross_entropy": (Loss("cross_entropy"), y_TO[:, :3], outcomes(T)),
        "weighted": (Loss("cross_entropy", class_weight_C=WEIGHT_C), y_TO[:, :3], outcomes(T)),
        "quality": (Loss("quality", weight=0.3), y_TO, (outcomes(T), metrics_TM)),
        "weighted quality": (Loss("quality", weight=0.3, class_weight_C=WEIGHT_C), y_TO, (outcomes(T), metrics_TM)),
        "mse": (Loss("mse"), y_TO[:, :2], metrics_TM),
        "bce": (Loss("bce"), y_TO[:, :1], (label_T.sigmoid(), weight_T.exp())),
        "bce, several": (Loss("bce"), y_TO[:, :2], (metrics_TM.sigmoid(), metrics_TM.exp())),
    }[name]


CASES = ["cross_entropy", "weighted", "quality", "weighted quality", "mse", "bce", "bce, several"]


def cut(target, rows):
    return tuple(t[rows] for t in target) if isinstance(target, tuple) else target[rows]


@pytest.mark.parametrize("name", CASES)
def test_the_op_is_called_as_it_was_written(normal, agree, name):
    """An argument in another's place, or an option that only one direction gets, would fail against autograd."""
    loss, y_TO, target = case(name, normal)
    y_TO = y_TO.clone().requires_grad_()
    loss_value, saved = loss.forward(y_TO, target, {})
    (dloss,) = normal(5, ())
    (right,) = torch.autograd.grad(loss_value, y_TO, dloss, retain_graph=True)
    with torch.no_grad():
        agree(loss.backward(dloss, saved, y_TO, target), right)


def test_class_weights_and_lambda_reach_both_directions(normal, agree):
    """The same numbers, from torch: λ in the loss alone or weights that are lost would pass the test above."""
    loss, y_TO, (outcome_T, metrics_TM) = case("weighted quality", normal)
    loss_value, _ = loss.forward(y_TO, (outcome_T, metrics_TM), {})
    right = torch.nn.functional.cross_entropy(y_TO[:, :3], outcome_T, WEIGHT_C)
    agree(loss_value, right + 0.3 * torch.nn.functional.mse_loss(y_TO[:, 3:], metrics_TM))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("sizes", [(9,), (1, 8), (4, 4, 1), (1,) * 9])
def test_parts_add_up_to_the_whole(normal, agree, name, sizes):
    """A total of one part, of rows where weights count, or of rows where entries count, would not add up."""
    loss, y_TO, target = case(name, normal)
    whole, saved = loss.forward(y_TO, target, {})
    parts, start = [], 0
    for size in sizes:
        parts.append(slice(start, start + size))
        start += size
    total = loss.total([cut(target, rows) for rows in parts])
    (dloss,) = normal(6, ())
    added, grads = 0, []
    for rows in parts:
        part, kept = loss.forward(y_TO[rows], cut(target, rows), total)
        added = added + part
        grads.append(loss.backward(dloss, kept, y_TO[rows], cut(target, rows)))
    agree(added, whole)
    agree(torch.cat(grads), loss.backward(dloss, saved, y_TO, target))


def test_totals():
    """What each op divides by: rows, class weights, entries."""
    outcome_T, metrics_TM = torch.tensor([0, 1, 1]), torch.zeros(3, 2)
    assert dict(Loss("cross_entropy").total([outcome_T, outcome_T[:1]])) == {"total": 4}
    weighted = Loss("cross_entropy", class_weight_C=WEIGHT_C).total([outcome_T, outcome_T[:1]])
    assert float(weighted["total"]) == 4.5 + 0.5
    both = Loss("quality", class_weight_C=WEIGHT_C, weight=2.0).total(
        [(outcome_T, metrics_TM), (outcome_T, metrics_TM)]
    )
    assert both["total"] == 6 and float(both["weight_total"]) == 9.0
    assert dict(Loss("mse").total([metrics_TM, metrics_TM[:1]])) == {"total": 8}
    assert dict(Loss("bce").total([(metrics_TM, metrics_TM)])) == {"total": 6}


@pytest.mark.parametrize(("name", "op"), dict(mse=mse, quality=quality, cross_entropy=cross_entropy, bce=bce).items())
def test_a_name_is_an_op(name, op):
    """The names of the design."""
    assert Loss(name).op is op and Loss(op).op is op


def test_binary_labels_with_and_without_their_axis(normal, agree):
    """[T, 1] against [T] would broadcast to [T, T]."""
    loss, z_T1, (label_T, weight_T) = case("bce", normal)
    flat, kept = loss.forward(z_T1, (label_T, weight_T), {})
    column, kept_too = loss.forward(z_T1, (label_T[:, None], weight_T[:, None]), {})
    agree(column, flat, 0)
    one = torch.ones(()).double()
    dz_T1 = loss.backward(one, kept, z_T1, (label_T, weight_T))
    assert dz_T1.shape == (9, 1)
    agree(loss.backward(one, kept_too, z_T1, (label_T[:, None], weight_T[:, None])), dz_T1, 0)


def test_an_op_of_your_own(normal):
    """One without `count` serves whole batches; micro-batches of it would each be a mean of their own."""
    own = SimpleNamespace(
        forward=lambda y, target, sharp=1.0: (sharp * (y - target).abs().mean(), sharp / y.numel()),
        backward=lambda dloss, saved, y, target: dloss * saved * (y - target).sign(),
    )
    loss = Loss(own, sharp=2.0)
    y_TO, target_TO = normal(7, (4, 3), (4, 3))
    loss_value, saved = loss.forward(y_TO, target_TO, loss.total([target_TO]))
    assert float(loss_value) == pytest.approx(2 * float((y_TO - target_TO).abs().mean()))
    dy_TO = loss.backward(torch.ones(()).double(), saved, y_TO, target_TO)
    torch.testing.assert_close(dy_TO, (y_TO - target_TO).sign() / 6, rtol=1e-15, atol=0)
    with pytest.raises(ValueError, match=r"no count\(\*target\).*cannot be added up"):
        loss.total([target_TO, target_TO])


def test_refusals():
    """A sentence that lists what there is."""
    with pytest.raises(ValueError, match="no loss 'hinge'; the losses are mse, quality, cross_entropy, bce"):
        Loss("hinge")
    with pytest.raises(ValueError, match="no loss 'softmax'"):  # an op, but no loss
        Loss("softmax")
    with pytest.raises(ValueError, match="no option 'weights'; its options are class_weight_C"):
        Loss("cross_entropy", weights=WEIGHT_C)


@pytest.mark.parametrize("option", ["total", "target_T"])
def test_refuses_an_option_that_is_not_the_users(option):
    """The batch gives the target and its total; taken as options they would collide at the first step."""
    with pytest.raises(ValueError, match=option):
        Loss("cross_entropy", **{option: 3})
