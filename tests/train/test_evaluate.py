import numpy as np
import pytest
import torch

from gradproof.data.encoders import Encoder
from gradproof.data.synthetic import synthetic
from gradproof.models.dense import Dense, DenseConfig
from gradproof.models.moe import MoE, MoEConfig
from gradproof.train import evaluate as evaluate_module
from gradproof.train.evaluate import evaluate, predictions
from gradproof.train.predictor import Predictor

MODELS = {
    "moe": lambda: MoE(MoEConfig(hidden=8, depth=1, balance=0.1, correction=0.1), seed=3),
    "dense": lambda: Dense(DenseConfig(hidden=8, feedforward=9, blocks=1), seed=3),
}


@pytest.fixture(scope="module")
def made():
    return synthetic(rows=200, seed=0)


@pytest.mark.parametrize("kind", MODELS)
def test_predictions_are_those_of_the_index(made, agree, kind):
    """In its order, rows that come twice included; the 12 outcomes as probabilities, the 8 metrics behind them."""
    model, index_T = MODELS[kind](), np.array([5, 3, 199, 3])
    predicted = predictions(Predictor(model, made.schema), made.rows, index_T)
    output, _ = model.forward(Encoder(made.schema).inputs(made.rows.take(index_T)))
    logits_TO = output.logits_TO.double()
    agree(torch.from_numpy(predicted.probability_TC), torch.softmax(logits_TO[:, :12], 1))
    agree(torch.from_numpy(predicted.metrics_TM), logits_TO[:, 12:])
    assert predicted.decision_T.tolist() == logits_TO[:, :12].argmax(1).tolist()
    assert torch.equal(torch.from_numpy(predicted.gates_TE), output.gates_TE.double())


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("chunk", [1, 7, 50, 200])
def test_chunks_are_not_seen(made, monkeypatch, kind, chunk):
    """A last short chunk that is dropped, or rows out of order, would change the answer."""
    predictor, index_T = Predictor(MODELS[kind](), made.schema), np.arange(50)[::-1]
    whole = predictions(predictor, made.rows, index_T)
    monkeypatch.setattr(evaluate_module, "CHUNK", chunk)
    for chunked, right in zip(predictions(predictor, made.rows, index_T), whole, strict=True):
        np.testing.assert_allclose(chunked, right, rtol=1e-5, atol=1e-6)


def test_only_a_chunk_is_in_memory(made, monkeypatch):
    """The rows may be mapped from a table that is larger than memory."""
    monkeypatch.setattr(evaluate_module, "CHUNK", 16)
    predictor, asked = Predictor(MODELS["moe"](), made.schema), []

    class Spy(type(made.rows)):
        def take(self, index_T):
            asked.append(len(index_T))
            return super().take(index_T)

    evaluate(predictor, Spy(*made.rows), np.arange(50))
    assert asked == [16, 16, 16, 2]


def test_evaluate_by_hand(made):
    """Accuracy and mean −log p of the outcomes at the index, not of the first rows."""
    predictor, index_T = Predictor(MODELS["moe"](), made.schema), np.arange(100, 160)
    probability_TC = predictions(predictor, made.rows, index_T).probability_TC
    outcome_T = made.rows.outcome_R[100:160]
    loss, accuracy, _ = evaluate(predictor, made.rows, index_T)
    assert loss == pytest.approx(-np.log(probability_TC[np.arange(60), outcome_T]).mean())
    assert accuracy == (probability_TC.argmax(1) == outcome_T).mean()


def test_nothing_is_changed_or_recorded(made):
    """Validation in the middle of training: no gradient, no moved correction; and it sees the weights as they are."""
    model = MODELS["moe"]()
    predictor = Predictor(model, made.schema)
    before, buffer = model.params.flat_P.clone(), model.buffers["router.correction"].clone()
    model.params.grad_P.fill_(3.0)
    first = evaluate(predictor, made.rows, np.arange(20))
    assert torch.equal(model.params.flat_P, before) and torch.equal(model.buffers["router.correction"], buffer)
    assert (model.params.grad_P == 3).all()
    model.params.flat_P.mul_(1.5)
    assert evaluate(predictor, made.rows, np.arange(20))[0] != first[0]
