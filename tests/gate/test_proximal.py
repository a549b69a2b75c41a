"""The sparse weights near the first ones: the optimum, by autograd; what is said is followed, the rest stays."""

import numpy as np
import torch
from made_calls import bash, rows

from gradproof.gate import proximal
from gradproof.gate.calls import text
from gradproof.gate.kept_logits import KeptLogits
from gradproof.gate.network import FEATURE_SCALE, FEATURE_WEIGHT, KNOWN, SCALE, WEIGHT
from gradproof.ops import hashed_ngrams


def problem(trained):
    """A network, texts, what `solve` takes of them, and the weights that it stays near: not those it starts from."""
    gate, generator, anchors = trained.copy(), torch.Generator().manual_seed(0), {}
    for name in (WEIGHT, FEATURE_WEIGHT):
        anchors[name] = gate.network.params[name].normal_(generator=generator).clone()
        gate.network.params[name].normal_(generator=generator)
    said = [text(bash(f"kubectl delete ns {name}")) for name in ("a", "prod", "web")]
    learned = rows(8)
    texts = [row.text for row in learned] + said
    label_R = torch.tensor([float(row.allow) for row in learned] + [0.0] * 3)
    readings = KeptLogits()
    given = (readings.sparse(gate, texts), torch.from_numpy(readings.encoded(gate, texts)).float(), label_R)
    return gate, texts, (*given, torch.tensor([1.0] * 16 + [8.0] * 3), anchors)


def test_the_solution_is_stationary(trained):
    """Autograd's gradient of the objective, in float64, is a thousandth of what it was, and no direction is better."""
    gate, texts, given = problem(trained)
    _, _, label_R, mass_R, anchors = given
    network = gate.network
    names = {WEIGHT: SCALE, FEATURE_WEIGHT: FEATURE_SCALE}
    before = {name: network.params[name].clone() for name in names}
    encoded = [gate.encode(written) for written in texts]
    _, *grams = network.split(gate.batch(encoded))
    y_B = sum(
        hashed_ngrams.forward(gram_BG, network.buffers[names[name]], before[name])[0]
        for name, gram_BG in zip(names, grams, strict=True)
    )
    e_B = torch.from_numpy(gate.logits(encoded)) - y_B.double()

    def gradient(weights):
        leaves = [weights[name].double().clone().requires_grad_() for name in names]
        z_B = e_B + sum(
            hashed_ngrams.forward(gram_BG, network.buffers[scale].double(), leaf_N)[0]
            for gram_BG, scale, leaf_N in zip(grams, names.values(), leaves, strict=True)
        )
        loss_B = torch.nn.functional.binary_cross_entropy_with_logits(z_B, label_R.double(), reduction="none")
        moved = sum(
            (leaf_N - anchors[layer.weight]).square().sum() / (2 * free)
            for leaf_N, (layer, free) in zip(leaves, proximal.FREELY.items(), strict=True)
        )
        value = (mass_R * loss_B).sum() + moved
        return torch.cat(torch.autograd.grad(value, leaves)).norm()

    proximal.solve(network, *given)
    assert gradient(network.params) < 1e-3 * gradient(before)


def test_what_was_said_is_followed_and_the_rest_stays(trained):
    """A weight of no n-gram that occurs goes back to where the gate began."""
    gate, texts, given = problem(trained)
    proximal.solve(gate.network, *given)
    z_R = gate.logits([gate.encode(written) for written in texts])
    assert ((z_R > 0) == given[2].numpy().astype(bool)).all()
    touched_N = torch.zeros_like(gate.network.params[WEIGHT], dtype=torch.bool)
    gram_BG = gate.network.split(gate.batch([gate.encode(written) for written in texts]))[1]
    touched_N[gram_BG[gram_BG >= 0]] = True
    anchor_N = given[-1][WEIGHT]
    assert torch.allclose(gate.network.params[WEIGHT][~touched_N], anchor_N[~touched_N], atol=1e-3)


def test_linear_is_the_sparse_part(trained):
    """The whole logit minus the encoder's, for rows of several lengths, one of them empty."""
    gate, texts, (sparse, encoded_R, *_) = problem(trained)
    z_R = gate.logits([gate.encode(written) for written in texts])
    assert np.allclose(proximal.linear(gate.network, sparse), z_R - encoded_R.numpy(), atol=1e-4)
    nothing = np.zeros(0, dtype=np.int64)
    assert proximal.linear(gate.network, [proximal.SparseRow(nothing, nothing)]).tolist() == [0.0]


def test_ngrams_of_several_calls_become_known(trained):
    gate, readings = trained.copy(), KeptLogits()
    gate.network.buffers[KNOWN].zero_()
    calls = [text(bash(command)) for command in ("terraform apply", "terraform destroy", "zyx")]
    proximal.get_to_know(gate.network, readings.sparse(gate, calls))
    both, once = (readings.row(gate, text(bash(command))).sparse.gram_G for command in ("terraform ", "zyx"))
    known = gate.network.buffers[KNOWN]
    assert any(bool(known[n]) for n in both) and not all(bool(known[n]) for n in once)


def test_the_offset_suits_the_first_weights():
    """The mean of p is that of the labels, by mass; and it stays finite where all labels are the same."""
    generator = torch.Generator().manual_seed(1)
    z_R, mass_R = 3 * torch.randn(200, generator=generator), torch.rand(200, generator=generator)
    label_R = (torch.rand(200, generator=generator) < 0.2).float()
    b = proximal.offset(z_R, label_R, mass_R)
    got, want = ((mass_R * of_R).sum() / mass_R.sum() for of_R in (torch.sigmoid(z_R + b), label_R))
    assert abs(float(got - want)) < 1e-4 and abs(proximal.offset(z_R, torch.ones(200), mass_R)) < 100
