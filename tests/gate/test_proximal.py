"""The n-grams' weights near the serving ones: the optimum, by autograd; what is said is followed, the rest stays."""

import torch
from made_calls import bash, rows

from gradproof.gate import proximal
from gradproof.gate.calls import text
from gradproof.gate.network import KNOWN, SCALE, WEIGHT
from gradproof.ops import hashed_ngrams


def problem(trained):
    gate = trained.copy()
    gate.network.params[WEIGHT].normal_(generator=torch.Generator().manual_seed(0))
    said = [text(bash(f"kubectl delete ns {name}")) for name in ("a", "prod", "web")]
    learned = rows(8)
    texts = [row.text for row in learned] + said
    label_R = torch.tensor([float(row.allow) for row in learned] + [0.0] * 3)
    return gate, texts, label_R, torch.tensor([1.0] * 16 + [8.0] * 3)


def test_the_solution_is_stationary(trained):
    """Autograd's gradient of the objective, in float64, is a thousandth of what it was, and no direction is better."""
    gate, texts, label_R, mass_R = problem(trained)
    network, before_N = gate.network, gate.network.params[WEIGHT].clone()
    x_BX = gate.batch([gate.encode(each) for each in texts])
    e_B = torch.from_numpy(gate.logits([gate.encode(each) for each in texts]))
    gram_BG = network.split(x_BX)[1]
    e_B = e_B - hashed_ngrams.forward(gram_BG, network.buffers[SCALE], before_N)[0].double()

    def gradient(w_N):
        leaf_N = w_N.double().clone().requires_grad_()
        z_B = e_B + hashed_ngrams.forward(gram_BG, network.buffers[SCALE].double(), leaf_N)[0]
        loss_B = torch.nn.functional.binary_cross_entropy_with_logits(z_B, label_R.double(), reduction="none")
        value = (mass_R * loss_B).sum() + (leaf_N - before_N).square().sum() / (2 * proximal.STRENGTH)
        return torch.autograd.grad(value, leaf_N)[0].norm()

    proximal.solve(gate, texts, label_R, mass_R)
    assert gradient(network.params[WEIGHT]) < 1e-3 * gradient(before_N)


def test_what_was_said_is_followed_and_the_rest_stays(trained):
    gate, texts, label_R, mass_R = problem(trained)
    proximal.solve(gate, texts, label_R, mass_R)
    z_R = gate.logits([gate.encode(each) for each in texts])
    assert ((z_R > 0) == label_R.numpy().astype(bool)).all()
    touched_N = torch.zeros_like(gate.network.params[WEIGHT], dtype=torch.bool)
    gram_BG = gate.network.split(gate.batch([gate.encode(each) for each in texts]))[1]
    touched_N[gram_BG[gram_BG >= 0]] = True
    before_N = problem(trained)[0].network.params[WEIGHT]
    assert torch.equal(gate.network.params[WEIGHT][~touched_N], before_N[~touched_N])


def test_ngrams_of_several_calls_become_known(trained):
    gate = trained.copy()
    gate.network.buffers[KNOWN].zero_()
    proximal.get_to_know(gate, [text(bash("terraform apply")), text(bash("terraform destroy")), text(bash("zyx"))])
    vocabulary = gate.network.config.vocabulary
    both, once = (
        {n - vocabulary for n in gate.encode(text(bash(each))) if n >= vocabulary} for each in ("terraform ", "zyx")
    )
    known = gate.network.buffers[KNOWN]
    assert any(bool(known[n]) for n in both) and not all(bool(known[n]) for n in once)
