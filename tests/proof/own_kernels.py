"""Six kernels in the style of people's own: a Triton function, a launcher, an autograd.Function, and a plain reference.

Mathematics is in fp32; tensors are stored in the format that they came in, and operands of products have it too.
Letters: R rows of a tile, C columns, K summed; B batch times heads, S queries and keys, W width of a head.
"""

import math

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def _dot(a, b):
    if INTERPRETED:  # the interpreter keeps bf16 as integers, and multiplies those
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


# Softmax over the last axis; the backward reads the stored result.


@triton.jit
def _softmax_rows(x, y, stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < n
    values = tl.load(x + row * stride + column, mask=inside, other=float("-inf")).to(tl.float32)
    shifted = values - tl.max(values, 0)
    grown = tl.where(inside, tl.exp(shifted), 0.0)
    result = grown / tl.sum(grown, 0)
    tl.store(y + row * n + column, result.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _softmax_slopes(y, dy, dx, stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < n
    p = tl.load(y + row * n + column, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(dy + row * stride + column, mask=inside, other=0.0).to(tl.float32)
    inner = tl.sum(p * g, 0)
    tl.store(dx + row * n + column, (p * (g - inner)).to(dx.dtype.element_ty), mask=inside)


def _rows(x):
    return x if x.stride(-1) == 1 else x.contiguous()


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = _rows(x)
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        n = x.shape[1]
        _softmax_rows[(x.shape[0],)](x, y, x.stride(0), n, BLOCK=triton.next_power_of_2(max(n, 1)))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, dy):
        (y,) = ctx.saved_tensors
        dy = _rows(dy)
        dx, n = torch.empty_like(y), y.shape[1]
        _softmax_slopes[(y.shape[0],)](y, dy, dx, dy.stride(0), n, BLOCK=triton.next_power_of_2(max(n, 1)))
        return dx


def softmax(x):
    return Softmax.apply(x)


def softmax_reference(x):
    return torch.softmax(x, -1)


# LayerNorm, forward and backward; dγ and dβ are summed by one program a block of columns.


@triton.jit
def _norm_rows(x, gamma, beta, y, mean, rstd, stride, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < n
    values = tl.load(x + row * stride + column, mask=inside, other=0.0).to(tl.float32)
    middle = tl.sum(values, 0) / n
    away = tl.where(inside, values - middle, 0.0)
    scale = 1 / tl.sqrt(tl.sum(away * away, 0) / n + eps)
    g = tl.load(gamma + column, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(beta + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * n + column, (away * scale * g + b).to(y.dtype.element_ty), mask=inside)
    tl.store(mean + row, middle)
    tl.store(rstd + row, scale)


@triton.jit
def _norm_slopes(x, dy, gamma, mean, rstd, dx, stride, dy_stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < n
    values = tl.load(x + row * stride + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(rstd + row)
    normed = tl.where(inside, (values - tl.load(mean + row)) * scale, 0.0)
    g = tl.load(dy + row * dy_stride + column, mask=inside, other=0.0).to(tl.float32)
    g = g * tl.load(gamma + column, mask=inside, other=0.0).to(tl.float32)
    along = tl.sum(normed * g, 0) / n
    level = tl.sum(g, 0) / n
    tl.store(dx + row * n + column, ((g - normed * along - level) * scale).to(dx.dtype.element_ty), mask=inside)


@triton.jit
def _norm_sums(x, dy, mean, rstd, dgamma, dbeta, stride, dy_stride, rows, n, R: tl.constexpr, C: tl.constexpr):
    column = tl.program_id(0) * C + tl.arange(0, C)
    total_gamma = tl.zeros((C,), tl.float32)
    total_beta = tl.zeros((C,), tl.float32)
    for start in range(0, rows, R):
        row = start + tl.arange(0, R)
        inside = (row < rows)[:, None] & (column < n)[None, :]
        values = tl.load(x + row[:, None] * stride + column[None, :], mask=inside, other=0.0).to(tl.float32)
        g = tl.load(dy + row[:, None] * dy_stride + column[None, :], mask=inside, other=0.0).to(tl.float32)
        middle = tl.load(mean + row, mask=row < rows, other=0.0)[:, None]
        scale = tl.load(rstd + row, mask=row < rows, other=0.0)[:, None]
        total_gamma += tl.sum(g * (values - middle) * scale, 0)
        total_beta += tl.sum(g, 0)
    tl.store(dgamma + column, total_gamma.to(dgamma.dtype.element_ty), mask=column < n)
    tl.store(dbeta + column, total_beta.to(dbeta.dtype.element_ty), mask=column < n)


class LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gamma, beta, eps):
        x, gamma, beta = _rows(x), gamma.contiguous(), beta.contiguous()
        rows, n = x.shape
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        mean, rstd = torch.empty(2, rows, dtype=torch.float32, device=x.device).unbind(0)
        if n:
            block = triton.next_power_of_2(n)
            _norm_rows[(rows,)](x, gamma, beta, y, mean, rstd, x.stride(0), n, eps, BLOCK=block)
        ctx.save_for_backward(x, gamma, mean, rstd)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, gamma, mean, rstd = ctx.saved_tensors
        dy = _rows(dy)
        rows, n = x.shape
        dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        dgamma, dbeta = torch.empty_like(gamma), torch.empty_like(gamma)
        if n:
            strides = x.stride(0), dy.stride(0)
            block = triton.next_power_of_2(n)
            _norm_slopes[(rows,)](x, dy, gamma, mean, rstd, dx, *strides, n, BLOCK=block)
            grid = (triton.cdiv(n, 16),)
            _norm_sums[grid](x, dy, mean, rstd, dgamma, dbeta, *strides, rows, n, R=16, C=16)
        return dx, dgamma, dbeta, None


def layernorm(x, gamma, beta, eps):
    return LayerNorm.apply(x, gamma, beta, eps)


def layernorm_reference(x, gamma, beta, eps):
    return F.layer_norm(x, (x.shape[1],), gamma, beta, eps)


# Matrix product in tiles; the backward is two more products, through the strides of the transposes.


@triton.jit
def _product_tiles(a, b, c, M, N, K, a_m, a_k, b_k, b_n, R: tl.constexpr, C: tl.constexpr, D: tl.constexpr):
    row = tl.program_id(0) * R + tl.arange(0, R)
    column = tl.program_id(1) * C + tl.arange(0, C)
    depth = tl.arange(0, D)
    total = tl.zeros((R, C), tl.float32)
    for start in range(0, K, D):
        k = start + depth
        left = tl.load(a + row[:, None] * a_m + k[None, :] * a_k, mask=(row < M)[:, None] & (k < K)[None, :], other=0.0)
        right = tl.load(
            b + k[:, None] * b_k + column[None, :] * b_n, mask=(k < K)[:, None] & (column < N)[None, :], other=0.0
        )
        total += _dot(left, right)
    place = c + row[:, None] * N + column[None, :]
    tl.store(place, total.to(c.dtype.element_ty), mask=(row < M)[:, None] & (column < N)[None, :])


def _product(a, b):
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty(M, N, dtype=a.dtype, device=a.device)
    grid = (triton.cdiv(M, 16), triton.cdiv(N, 16))
    _product_tiles[grid](a, b, c, M, N, K, *a.stride(), *b.stride(), R=16, C=16, D=16)
    return c


class Matmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return _product(a, b)

    @staticmethod
    def backward(ctx, dc):
        a, b = ctx.saved_tensors
        return _product(dc, b.T), _product(a.T, dc)


def matmul(a, b):
    return Matmul.apply(a, b)


def matmul_reference(a, b):
    return a @ b


# Causal attention without the matrix of scores in memory: a running maximum, and a backward that recomputes p.


@triton.jit
def _attend(q, k, v, y, lse, S, scale, W, R: tl.constexpr, C: tl.constexpr, D: tl.constexpr):
    batch = tl.program_id(1) * S * W
    query, width = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, D)
    live = (query < S)[:, None] & (width < W)[None, :]
    q_RD = tl.load(q + batch + query[:, None] * W + width[None, :], mask=live, other=0.0)
    high_R = tl.full((R,), float("-inf"), tl.float32)
    sum_R = tl.zeros((R,), tl.float32)
    total_RD = tl.zeros((R, D), tl.float32)
    for start in range(0, (tl.program_id(0) + 1) * R, C):
        key = start + tl.arange(0, C)
        there = (key < S)[:, None] & (width < W)[None, :]
        k_CD = tl.load(k + batch + key[:, None] * W + width[None, :], mask=there, other=0.0)
        v_CD = tl.load(v + batch + key[:, None] * W + width[None, :], mask=there, other=0.0)
        s_RC = _dot(q_RD, tl.trans(k_CD)) * scale
        seen = (key[None, :] <= query[:, None]) & (key < S)[None, :]
        s_RC = tl.where(seen, s_RC, float("-inf"))
        now_R = tl.maximum(high_R, tl.max(s_RC, 1))
        p_RC = tl.exp(s_RC - now_R[:, None])
        fade_R = tl.exp(high_R - now_R)
        sum_R = sum_R * fade_R + tl.sum(p_RC, 1)
        total_RD = total_RD * fade_R[:, None] + _dot(p_RC.to(v_CD.dtype), v_CD)
        high_R = now_R
    place = y + batch + query[:, None] * W + width[None, :]
    tl.store(place, (total_RD / sum_R[:, None]).to(y.dtype.element_ty), mask=live)
    tl.store(lse + tl.program_id(1) * S + query, high_R + tl.log(sum_R), mask=query < S)


@triton.jit
def _attend_dq(q, k, v, y, dy, lse, dq, S, scale, W, R: tl.constexpr, C: tl.constexpr, D: tl.constexpr):
    batch = tl.program_id(1) * S * W
    query, width = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, D)
    live = (query < S)[:, None] & (width < W)[None, :]
    own = batch + query[:, None] * W + width[None, :]
    q_RD, dy_RD = tl.load(q + own, mask=live, other=0.0), tl.load(dy + own, mask=live, other=0.0)
    y_RD = tl.load(y + own, mask=live, other=0.0)
    inner_R = tl.sum(y_RD.to(tl.float32) * dy_RD.to(tl.float32), 1)
    lse_R = tl.load(lse + tl.program_id(1) * S + query, mask=query < S, other=0.0)
    total_RD = tl.zeros((R, D), tl.float32)
    for start in range(0, (tl.program_id(0) + 1) * R, C):
        key = start + tl.arange(0, C)
        there = (key < S)[:, None] & (width < W)[None, :]
        k_CD = tl.load(k + batch + key[:, None] * W + width[None, :], mask=there, other=0.0)
        v_CD = tl.load(v + batch + key[:, None] * W + width[None, :], mask=there, other=0.0)
        s_RC = _dot(q_RD, tl.trans(k_CD)) * scale
        seen = (key[None, :] <= query[:, None]) & (key < S)[None, :]
        p_RC = tl.where(seen, tl.exp(s_RC - lse_R[:, None]), 0.0)
        dp_RC = _dot(dy_RD, tl.trans(v_CD))
        ds_RC = p_RC * (dp_RC - inner_R[:, None]) * scale
        total_RD += _dot(ds_RC.to(k_CD.dtype), k_CD)
    tl.store(dq + own, total_RD.to(dq.dtype.element_ty), mask=live)


@triton.jit
def _attend_dkv(q, k, v, y, dy, lse, dk, dv, S, scale, W, R: tl.constexpr, C: tl.constexpr, D: tl.constexpr):
    batch = tl.program_id(1) * S * W
    key, width = tl.program_id(0) * C + tl.arange(0, C), tl.arange(0, D)
    there = (key < S)[:, None] & (width < W)[None, :]
    own = batch + key[:, None] * W + width[None, :]
    k_CD, v_CD = tl.load(k + own, mask=there, other=0.0), tl.load(v + own, mask=there, other=0.0)
    dk_CD, dv_CD = tl.zeros((C, D), tl.float32), tl.zeros((C, D), tl.float32)
    for start in range(0, S, R):
        query = start + tl.arange(0, R)
        live = (query < S)[:, None] & (width < W)[None, :]
        at = batch + query[:, None] * W + width[None, :]
        q_RD, dy_RD = tl.load(q + at, mask=live, other=0.0), tl.load(dy + at, mask=live, other=0.0)
        y_RD = tl.load(y + at, mask=live, other=0.0)
        inner_R = tl.sum(y_RD.to(tl.float32) * dy_RD.to(tl.float32), 1)
        lse_R = tl.load(lse + tl.program_id(1) * S + query, mask=query < S, other=0.0)
        s_RC = _dot(q_RD, tl.trans(k_CD)) * scale
        seen = (key[None, :] <= query[:, None]) & (query < S)[:, None]
        p_RC = tl.where(seen, tl.exp(s_RC - lse_R[:, None]), 0.0)
        dv_CD += _dot(tl.trans(p_RC.to(dy_RD.dtype)), dy_RD)
        dp_RC = _dot(dy_RD, tl.trans(v_CD))
        ds_RC = p_RC * (dp_RC - inner_R[:, None]) * scale
        dk_CD += _dot(tl.trans(ds_RC.to(q_RD.dtype)), q_RD)
    tl.store(dk + own, dk_CD.to(dk.dtype.element_ty), mask=there)
    tl.store(dv + own, dv_CD.to(dv.dtype.element_ty), mask=there)


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        q, k, v = (operand.contiguous() for operand in (q, k, v))
        B, S, W = q.shape
        if W == 0:
            raise ValueError("attention needs heads of at least one number")
        y, lse = torch.empty_like(q), torch.empty(B, S, dtype=torch.float32, device=q.device)
        tiles = dict(R=16, C=16, D=max(16, triton.next_power_of_2(W)))
        _attend[(triton.cdiv(S, 16), B)](q, k, v, y, lse, S, 1 / math.sqrt(W), W, **tiles)
        ctx.save_for_backward(q, k, v, y, lse)
        return y

    @staticmethod
    def backward(ctx, dy):
        q, k, v, y, lse = ctx.saved_tensors
        dy, (B, S, W) = dy.contiguous(), q.shape
        dq, dk, dv = (torch.empty_like(q) for _ in range(3))
        grid, tiles = (triton.cdiv(S, 16), B), dict(R=16, C=16, D=max(16, triton.next_power_of_2(W)))
        _attend_dq[grid](q, k, v, y, dy, lse, dq, S, 1 / math.sqrt(W), W, **tiles)
        _attend_dkv[grid](q, k, v, y, dy, lse, dk, dv, S, 1 / math.sqrt(W), W, **tiles)
        return dq, dk, dv


def attention(q, k, v):
    return Attention.apply(q, k, v)


def attention_reference(q, k, v):
    s = q @ k.mT / math.sqrt(q.shape[2])
    earlier = torch.ones(s.shape[1:], dtype=torch.bool, device=s.device).tril()
    return torch.softmax(s.masked_fill(~earlier, -math.inf), -1) @ v


# Cross-entropy, the mean over rows: a program a row, then one that adds up.


@triton.jit
def _losses(z, target, loss, stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    logits = tl.load(z + row * stride + column, mask=column < n, other=float("-inf")).to(tl.float32)
    high = tl.max(logits, 0)
    whole = high + tl.log(tl.sum(tl.exp(logits - high), 0))
    chosen = tl.load(z + row * stride + tl.load(target + row)).to(tl.float32)
    tl.store(loss + row, whole - chosen)


@triton.jit
def _average(loss, mean, rows, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, rows, BLOCK):
        row = start + tl.arange(0, BLOCK)
        total += tl.load(loss + row, mask=row < rows, other=0.0)
    tl.store(mean, (tl.sum(total, 0) / rows).to(mean.dtype.element_ty))


@triton.jit
def _loss_slopes(z, target, dloss, dz, stride, rows, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    logits = tl.load(z + row * stride + column, mask=column < n, other=float("-inf")).to(tl.float32)
    grown = tl.exp(logits - tl.max(logits, 0))
    p = grown / tl.sum(grown, 0)
    p = tl.where(column == tl.load(target + row), p - 1, p)
    slope = p * tl.load(dloss).to(tl.float32) / rows
    tl.store(dz + row * n + column, slope.to(dz.dtype.element_ty), mask=column < n)


class CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z, target):
        z, target = _rows(z), target.contiguous()
        rows, n = z.shape
        if rows == 0:
            raise ValueError("the mean over no rows is not defined")
        loss, mean = torch.empty(rows, dtype=torch.float32, device=z.device), z.new_empty(())
        _losses[(rows,)](z, target, loss, z.stride(0), n, BLOCK=triton.next_power_of_2(n))
        _average[(1,)](loss, mean, rows, BLOCK=16)
        ctx.save_for_backward(z, target)
        return mean

    @staticmethod
    def backward(ctx, dloss):
        z, target = ctx.saved_tensors
        rows, n = z.shape
        dz = torch.empty(rows, n, dtype=z.dtype, device=z.device)
        block = triton.next_power_of_2(n)
        _loss_slopes[(rows,)](z, target, dloss, dz, z.stride(0), rows, n, BLOCK=block)
        return dz, None


def cross_entropy(z, target):
    return CrossEntropy.apply(z, target)


def cross_entropy_reference(z, target):
    return F.cross_entropy(z, target)


# Dropout: which entries stay is a function of seed and place, so the backward draws nothing.


@triton.jit
def _drop(x, y, count, limit, scale, seed, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mixed = (place * 1103515245 + seed * 12345 + 1013904223) & 0x7FFFFFFF
    mixed = ((mixed ^ (mixed >> 13)) * 69069) & 0x7FFFFFFF
    mixed = mixed ^ (mixed >> 15)
    values = tl.load(x + place, mask=place < count, other=0.0).to(tl.float32)
    kept = tl.where(mixed >= limit, values * scale, 0.0)
    tl.store(y + place, kept.to(y.dtype.element_ty), mask=place < count)


def _dropped(x, p, seed):
    x = x.contiguous()
    y = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), 32),)
    _drop[grid](x, y, x.numel(), int(p * 2**31), 1 / (1 - p), seed, BLOCK=32)
    return y


class Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, p, seed):
        ctx.drawn = p, seed
        return _dropped(x, p, seed)

    @staticmethod
    def backward(ctx, dy):
        return _dropped(dy, *ctx.drawn), None, None


def dropout(x, p, seed):
    return Dropout.apply(x, p, seed)


def dropout_reference(x, p, seed):
    place = torch.arange(x.numel(), device=x.device)
    mixed = (place * 1103515245 + seed * 12345 + 1013904223) & 0x7FFFFFFF
    mixed = ((mixed ^ (mixed >> 13)) * 69069) & 0x7FFFFFFF
    mixed = mixed ^ (mixed >> 15)
    return torch.where(mixed.view(x.shape) >= int(p * 2**31), x / (1 - p), 0.0)
