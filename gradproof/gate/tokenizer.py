"""Byte-level BPE: text to tokens and back. Every byte is a token, so nothing is out of vocabulary.

`tokenizer.json` beside this file is what `train()` gives; it is kept because a model is worth nothing without exactly
the tokens that it was trained with.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from gradproof.gate import MISSING_EXTRA

VOCABULARY = 2048
PATH = Path(__file__).with_name("tokenizer.json")


class Tokenizer:
    """`Tokenizer().encode("ls -la")`; `size` tokens."""

    def __init__(self, path: Path = PATH):
        self._inner = _library().Tokenizer.from_file(str(path))
        self.size: int = self._inner.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""
        return self._inner.encode(text).ids

    def decode(self, tokens: Sequence[int]) -> str:
        """The text again, exactly."""
        return self._inner.decode(list(tokens))


@cache
def default() -> Tokenizer:
    """The gate's own, read once."""
    return Tokenizer()


def train() -> str:
    """Trains on the generated corpus; the same JSON every time."""
    from gradproof.gate.corpus import corpus

    library = _library()
    inner = library.Tokenizer(library.models.BPE())
    inner.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        min_frequency=2,
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(corpus(), trainer)
    return inner.to_str()


def _library() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise ValueError(MISSING_EXTRA) from None
    return tokenizers
