"""Cautions: each is said where it holds, and nowhere else."""

import pytest

from gradproof.train.cautions import cautions


def scores(accuracy=0.8, log_loss=0.4):
    return [
        {"name": "moe nano", "accuracy": accuracy, "log_loss": log_loss},
        {"name": "logistic regression", "accuracy": None, "log_loss": None},
        {"name": "majority class", "accuracy": 0.6, "log_loss": 0.67},
    ]


@pytest.mark.parametrize(
    ("own", "rows", "sentences"),
    [
        (scores(), 50, []),
        (scores(), 49, ["only 49 rows were held out, so one row changes the score by 2.0%"]),
        (
            scores(accuracy=0.6),
            500,
            ["60.00%, is no better than that of always choosing the most frequent class, 60.00%"],
        ),
        (scores(accuracy=0.61), 500, []),
        (scores(log_loss=0.67), 500, []),
        (scores(log_loss=0.68), 500, ["0.6800, is worse than that of predicting the class frequencies, 0.6700"]),
        (scores(0.3, 2.0), 9, ["only 9 rows were held out", "no better than", "overconfident"]),
        (scores(0.3, 2.0)[:1], 100, []),
    ],
)
def test_cautions(own, rows, sentences):
    said = cautions(own, rows)
    assert len(said) == len(sentences)
    for sentence, part in zip(said, sentences, strict=True):
        assert part in sentence and ("try" in sentence or "use more data" in sentence)
