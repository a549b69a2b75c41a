"""Encodes rows as model inputs: one-hot for categories; value or rank, pieces and p-adic columns for numbers."""

from __future__ import annotations

from itertools import accumulate, pairwise

import torch
from torch import Tensor

from gradproof.data.pieces import BESIDE
from gradproof.data.rows import Rows
from gradproof.data.schema import Schema
from gradproof.ops import padic

FAR = 1e4  # standard deviations: what is further away counts as this far, so that 1e300 overflows in no precision


class Encoder:
    """x_TI = one-hot | (v − mean)/std or place | pieces | p-adic | missing flags | levels; a missing number is 0 in all
    but its flag. Pieces, flag and levels of a number with places are scaled by `BESIDE`.

    Holds the schema's figures as tensors; P pieces of all numbers, D numbers that are p-adic, L levels."""

    def __init__(self, schema: Schema, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32):
        widths = [category.width for category in schema.categories]
        self.schema, self.device, self.dtype = schema, device, dtype
        self.hot = sum(widths)
        self.offset_C = torch.tensor([0, *accumulate(widths)][: len(widths)], dtype=torch.int64, device=device)
        self.mean_N = torch.tensor([n.mean for n in schema.numbers], dtype=torch.float64, device=device)
        self.std_N = torch.tensor([n.std for n in schema.numbers], dtype=torch.float64, device=device)
        pieces = [(n, *stretch) for n, number in enumerate(schema.numbers) for stretch in pairwise(number.knots)]
        self.piece_P = torch.tensor([n for n, _, _ in pieces], dtype=torch.int64, device=device)
        self.start_P = torch.tensor([start for _, start, _ in pieces], dtype=torch.float64, device=device)
        self.stop_P = torch.tensor([stop for _, _, stop in pieces], dtype=torch.float64, device=device)
        self.place_N = torch.tensor([bool(n.places) for n in schema.numbers], dtype=torch.bool, device=device)
        first = [n.places[0] if n.places else 0.0 for n in schema.numbers]
        self.first_N = torch.tensor(first, dtype=torch.float64, device=device)
        steps = [b - a for n in schema.numbers for a, b in pairwise(n.places or (0.0,) * len(n.knots))]
        self.step_PN = torch.zeros(len(pieces), len(schema.numbers), dtype=torch.float64, device=device)
        self.step_PN[torch.arange(len(pieces), device=device), self.piece_P] = torch.tensor(
            steps, dtype=torch.float64, device=device
        )
        self.loud_N = 1.0 + (BESIDE - 1.0) * self.place_N.double()
        whole = [i for i, number in enumerate(schema.numbers) if number.padic]
        self.whole_D = torch.tensor(whole, dtype=torch.int64, device=device)
        self.unit_D = torch.tensor([10.0 ** schema.numbers[i].decimals for i in whole], device=device).double()
        long = [d for d, i in enumerate(whole) if schema.numbers[i].padic > 1]
        self.long = torch.tensor(long, dtype=torch.int64, device=device)
        flagged = [i for i, number in enumerate(schema.numbers) if number.missing]
        self.flagged = torch.tensor(flagged, dtype=torch.int64, device=device)
        levels = [(n, level) for n, number in enumerate(schema.numbers) for level in number.levels]
        self.number_L = torch.tensor([n for n, _ in levels], dtype=torch.int64, device=device)
        self.level_L = torch.tensor([level for _, level in levels], dtype=torch.float64, device=device)

    def inputs(self, rows: Rows) -> Tensor:
        """x_TI."""
        code_TC = torch.from_numpy(rows.codes_RC).to(self.device, torch.int64)
        v_TN = torch.from_numpy(rows.numbers_RN).to(self.device)
        # One column more than there are slots takes the ones of values without a slot.
        hot_TC = torch.where(code_TC < 0, self.hot, code_TC + self.offset_C)
        onehot = torch.zeros(rows.count, self.hot + 1, dtype=self.dtype, device=self.device).scatter_(1, hot_TC, 1.0)
        z_TN = ((v_TN - self.mean_N) / self.std_N).nan_to_num(0.0).clamp(-FAR, FAR)
        u_TP = (v_TN[:, self.piece_P] - self.start_P) / (self.stop_P - self.start_P)
        u_TP = u_TP.nan_to_num(0.0).clamp(0, 1)
        z_TN = torch.where(self.place_N, (u_TP @ self.step_PN + self.first_N).masked_fill(v_TN.isnan(), 0.0), z_TN)
        flags = v_TN[:, self.flagged].isnan() * self.loud_N[self.flagged]
        numbers = (z_TN, u_TP * self.loud_N[self.piece_P], *self._digits(v_TN), flags)
        if len(self.level_L):
            numbers = (*numbers, (v_TN[:, self.number_L] == self.level_L) * self.loud_N[self.number_L])
        return torch.cat([onehot[:, :-1], *(columns.to(self.dtype) for columns in numbers)], 1)

    def _digits(self, v_TN: Tensor) -> tuple[Tensor, ...]:
        """The p-adic columns: of every number that has them, then the second ones of those that have two. What is no
        number, or none that int64 holds, is 0."""
        if not len(self.whole_D):
            return ()
        n_TD = torch.round(v_TN[:, self.whole_D] * self.unit_D)
        n_TD = torch.where(n_TD.abs() < 2.0**63, n_TD, 0.0).to(torch.int64)
        first_TD, second_TD = padic.forward(n_TD, dtype=self.dtype)[0]
        return first_TD, second_TD[:, self.long]

    def columns(self) -> Tensor:
        """column_I: which of the schema's columns each input is made of; a date's parts are of its column."""
        at = {column.name: c for c, column in enumerate(self.schema.columns)}
        hot = [at[category.name] for category in self.schema.categories for _ in range(category.width)]
        number_N = torch.tensor([at[number.name] for number in self.schema.numbers], dtype=torch.int64)
        second_D = self.whole_D[self.long]
        of = [self.piece_P, self.whole_D, second_D, self.flagged, self.number_L]
        return torch.cat([torch.tensor(hot, dtype=torch.int64), number_N, *(number_N[index.cpu()] for index in of)])

    def target(self, rows: Rows) -> Tensor | tuple[Tensor, Tensor]:
        """outcome_T, or (outcome_T, metrics_TM) where the schema has metrics; value_T, standardised, of a quantity."""
        if self.schema.quantity:
            return torch.from_numpy(rows.metrics_RM[:, 0]).to(self.device, self.dtype)
        outcome_T = torch.from_numpy(rows.outcome_R).to(self.device)
        if not self.schema.metrics:
            return outcome_T
        return outcome_T, torch.from_numpy(rows.metrics_RM).to(self.device, self.dtype)
