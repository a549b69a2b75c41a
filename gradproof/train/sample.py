"""Samples text from a language model, byte by byte."""

from __future__ import annotations

import torch

from gradproof.data.text import START
from gradproof.models.transformer import Transformer
from gradproof.streams import seeded

TEMPERATURE = 0.8


@torch.no_grad()
def sample(
    model: Transformer, length: int, *, prompt: bytes = b"", temperature: float = TEMPERATURE, seed: int = 0
) -> bytes:
    """`length` bytes that follow the prompt. The same seed gives the same bytes on one machine."""
    generator, context = seeded(seed, "sample", prompt), model.config.context
    written = [START, *prompt]
    for _ in range(length):
        token_BS = torch.tensor([written[-context:]], device=model.params.flat_P.device)
        logits_TO = model.apply(model.params, token_BS)[0].logits_TO
        p_V = torch.softmax(logits_TO[-1, :START].double().cpu() / temperature, 0)
        written.append(int(torch.multinomial(p_V, 1, generator=generator)))
    return bytes(written[1 + len(prompt) :])
