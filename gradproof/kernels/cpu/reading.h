// What a classifying transformer says of a sequence: ops/reading.py.
//
//   x = w[token] + p;   x += W_o·Attention(W_qkv·LN x);  x += FFN(LN x);   y = W·mean(LN x) + b
//
// One thread reads a sequence from its first token to its logits. Padding is left out from the start, so every row is
// a key that each query sees.
#pragma once

#include <vector>

#include "crew.h"
#include "norm_gelu.h"
#include "product.h"
#include "softmax.h"

struct Affine {
    const float *weight, *bias;
};

struct ReadingLayer {
    Affine attention_norm, qkv, out, ffn_norm, up, down;
};

struct Reader {
    const float *embedding_VD, *position_CD;
    const ReadingLayer* layers;
    Affine norm, output;
    long depth, D, heads, F, O;
};

// Rows that a thread works in, each from a line of the cache on; kept from call to call.
struct Desk {
    float *x_nD, *n_nD, *qkv_nG, *h_nF, *p_nn;

    Desk(const Reader& of, long n) {
        static thread_local std::vector<float> room;
        const long sizes[] = {n * of.D, n * of.D, 3 * n * of.D, n * of.F, n * n};
        float** places[] = {&x_nD, &n_nD, &qkv_nG, &h_nF, &p_nn};
        constexpr long LINE = 16;
        long end = LINE;
        for (long size : sizes) end += (size + LINE - 1) / LINE * LINE;
        if (static_cast<long>(room.size()) < end) room.resize(end);
        const long ahead = reinterpret_cast<uintptr_t>(room.data()) / sizeof(float) % LINE;
        float* next = room.data() + (LINE - ahead) % LINE;
        for (int i = 0; i < 5; i++) *places[i] = next, next += (sizes[i] + LINE - 1) / LINE * LINE;
    }
};

static void layernorm_rows(const float* x_nD, Affine norm, long n, long D, float* y_nD) {
    for (long t = 0; t < n; t++) {
        const float* x_D = x_nD + t * D;
        vec total{}, squares{};
        each_vector(D, [&](long j, auto part) { total += load(x_D + j, part); });
        const float mean = sum(total) / D;
        each_vector(D, [&](long j, auto part) {
            const vec centred = inside(load(x_D + j, part) - mean, part);
            squares += centred * centred;
        });
        const float rstd = 1.0f / std::sqrt(sum(squares) / D + EPS);
        each_vector(D, [&](long j, auto part) {
            const vec scaled = (load(x_D + j, part) - mean) * rstd * load(norm.weight + j, part);
            store(y_nD + t * D + j, scaled + load(norm.bias + j, part), part);
        });
    }
}

static void add_bias(float* y_nO, const float* b_O, long n, long O) {
    for (long t = 0; t < n; t++)
        each_vector(O, [&](long j, auto part) {
            store(y_nO + t * O + j, load(y_nO + t * O + j, part) + load(b_O + j, part), part);
        });
}

// y += x Wᵀ + b, or y = x Wᵀ + b.
static void linear_rows(const float* x_nI, Affine of, long n, long I, long O, float* y_nO, Write write) {
    product_transposed(n, O, I, {x_nI, I, 1}, {of.weight, I}, {y_nO, O, write});
    add_bias(y_nO, of.bias, n, O);
}

// What the heads see, side by side: y_nD, from the rows of q, k and v in qkv_nG.
static void attend(const float* qkv_nG, long n, long D, long heads, float* p_nn, float* y_nD) {
    const long W = D / heads, G = 3 * D;
    const float scale = 1.0f / std::sqrt(static_cast<float>(W));
    for (long a = 0; a < heads; a++) {
        const float *q = qkv_nG + a * W, *k = q + D, *v = k + D;
        product_transposed(n, n, W, {q, G, 1}, {k, G}, {p_nn, n, Write::set});
        for (long t = 0; t < n; t++) {
            float* p_n = p_nn + t * n;
            each_vector(n, [&](long j, auto part) { store(p_n + j, load(p_n + j, part) * scale, part); });
            softmax(p_n, n, p_n);
        }
        product(n, W, n, {p_nn, n, 1}, {v, G}, {y_nD + a * W, D, Write::set});
    }
}

static void read_sequence(const int64_t* token_S, long S, const Reader& of, std::vector<long>& place, float* y_O) {
    const long D = of.D, F = of.F;
    place.clear();
    for (long s = 0; s < S; s++)
        if (token_S[s] >= 0) place.push_back(s);
    const long n = place.size();
    Desk desk(of, std::max(n, 1L));
    for (long t = 0; t < n; t++)
        each_vector(D, [&](long j, auto part) {
            const vec token = load(of.embedding_VD + token_S[place[t]] * D + j, part);
            store(desk.x_nD + t * D + j, token + load(of.position_CD + place[t] * D + j, part), part);
        });
    for (long i = 0; i < of.depth && n; i++) {
        const ReadingLayer& layer = of.layers[i];
        layernorm_rows(desk.x_nD, layer.attention_norm, n, D, desk.n_nD);
        linear_rows(desk.n_nD, layer.qkv, n, D, 3 * D, desk.qkv_nG, Write::set);
        attend(desk.qkv_nG, n, D, of.heads, desk.p_nn, desk.n_nD);
        linear_rows(desk.n_nD, layer.out, n, D, D, desk.x_nD, Write::add);
        layernorm_rows(desk.x_nD, layer.ffn_norm, n, D, desk.n_nD);
        product_transposed(n, F, D, {desk.n_nD, D, 1}, {layer.up.weight, D}, {desk.h_nF, F, Write::set});
        bias_gelu(desk.h_nF, layer.up.bias, n, F, desk.h_nF);
        linear_rows(desk.h_nF, layer.down, n, F, D, desk.x_nD, Write::add);
    }
    layernorm_rows(desk.x_nD, of.norm, n, D, desk.n_nD);
    float* mean_D = desk.x_nD;
    each_vector(D, [&](long j, auto part) {
        vec total{};
        for (long t = 0; t < n; t++) total += load(desk.n_nD + t * D + j, part);
        store(mean_D + j, total * (1.0f / std::max(n, 1L)), part);
    });
    for (long o = 0; o < of.O; o++) {
        vec total{};
        each_vector(D, [&](long j, auto part) {
            total += load(mean_D + j, part) * load(of.output.weight + o * D + j, part);
        });
        y_O[o] = sum(total) + of.output.bias[o];
    }
}

// Numbers of a Reader: depth, D, heads, F, O, V, then where each parameter starts in theta. Returns how many tokens are
// neither in the vocabulary nor padding; if any, nothing is read.
static long reading_forward(const int64_t* token_BS, long B, long S, const float* theta_P, const int64_t* numbers,
                            float* y_BO, long threads) {
    const long depth = numbers[0], V = numbers[5], last = 2 + 12 * depth;
    const auto at = [&](long i) { return theta_P + numbers[6 + i]; };
    const auto pair = [&](long i) { return Affine{at(i), at(i + 1)}; };
    const long strange = std::count_if(token_BS, token_BS + B * S, [&](int64_t token) { return token < -1 || token >= V; });
    if (strange) return strange;
    std::vector<ReadingLayer> layers;
    for (long i = 2; i < last; i += 12)
        layers.push_back({pair(i), pair(i + 2), pair(i + 4), pair(i + 6), pair(i + 8), pair(i + 10)});
    const Reader of{at(0),   at(1),      layers.data(), pair(last), pair(last + 2),
                    depth,   numbers[1], numbers[2],    numbers[3], numbers[4]};
    in_parallel(crew_size(B, 1, threads), [&](Crew crew) {
        std::vector<long> place;
        const Range own = crew.share(B);
        for (long b = own.begin; b < own.end; b++) read_sequence(token_BS + b * S, S, of, place, y_BO + b * of.O);
    });
    return 0;
}
