// Matrix products of a few rows: c[m,n] = Σ_k a[m,k]·b[k,n], in tiles of 6 rows × 4 vectors that stay in registers.
//
// A library's product packs its operands, which costs as much as the product itself where an expert has 16 rows. Here b
// is read as it lies, or transposed in blocks (`product_transposed`), and the lines of b that come next are fetched
// from memory meanwhile.
#pragma once

#include <algorithm>

#include "vector.h"

#if defined(__AVX__) && !defined(__AVX512F__)
constexpr int TILE_VECTORS = 2;  // 16 registers
#else
constexpr int TILE_VECTORS = 4;  // 32 registers
#endif
constexpr long TILE_ROWS = 6;
constexpr long SLAB = TILE_VECTORS * LANES;  // columns of a tile
constexpr long DEPTH = 128;                  // k of one block
constexpr long SHALLOW = 64;                 // the same where b is transposed and large

struct Left {  // a[m,k] = p[m·row + k·step]
    const float* p;
    long row, step;
};
struct Right {  // b[k,n] = p[k·row + n]
    const float* p;
    long row;
};
enum class Write { set, add, stream };  // stream: past the caches, for what is not read soon; needs aligned rows
struct Out {
    float* p;
    long row;
    Write write;
};

INLINE void stream(float* p, vec v) {
#if defined(__AVX512F__)
    _mm512_stream_ps(p, reinterpret_cast<__m512>(v));
#else
    store(p, v);
#endif
}

// R rows × V vectors over all k. `next` is fetched one line a step.
template <int R, int V>
INLINE void tile(long K, Left a, Right b, Out c, long columns, Right next) {
    vec acc[R][V] = {};
    for (long k = 0; k < K; k++) {
        __builtin_prefetch(next.p + k * next.row, 0, 2);
        vec b_V[V];
        UNROLL for (int v = 0; v < V; v++) b_V[v] = load(b.p + k * b.row + v * LANES);
        UNROLL for (int r = 0; r < R; r++) {
            const float scale = a.p[r * a.row + k * a.step];
            UNROLL for (int v = 0; v < V; v++) acc[r][v] += scale * b_V[v];
        }
    }
    const auto each = [&](auto put) {
        UNROLL for (int r = 0; r < R; r++)
            UNROLL for (int v = 0; v < V; v++) put(c.p + r * c.row + v * LANES, acc[r][v]);
    };
    const Part part{columns};
    if (V == 1 && columns < LANES && c.write == Write::add)
        each([&](float* p, vec v) { store(p, load(p, part) + v, part); });
    else if (V == 1 && columns < LANES)
        each([&](float* p, vec v) { store(p, v, part); });
    else if (c.write == Write::add)
        each([&](float* p, vec v) { store(p, load(p) + v); });
    else if (c.write == Write::stream)
        each([&](float* p, vec v) { stream(p, v); });
    else
        each([&](float* p, vec v) { store(p, v); });
}

// M rows of one slab, `rows` a tile.
template <int V>
static void slab(long M, long K, Left a, Right b, Out c, long columns, long rows, Right next) {
    for (long m = 0, group = 0; m < M; m += rows, group++) {
        const Left a_m{a.p + m * a.row, a.row, a.step};
        const Out c_m{c.p + m * c.row, c.row, c.write};
        const Right next_m{next.p + group % TILE_VECTORS * LANES, next.row};
        switch (std::min(rows, M - m)) {
            case 1: tile<1, V>(K, a_m, b, c_m, columns, next_m); break;
            case 2: tile<2, V>(K, a_m, b, c_m, columns, next_m); break;
            case 3: tile<3, V>(K, a_m, b, c_m, columns, next_m); break;
            case 4: tile<4, V>(K, a_m, b, c_m, columns, next_m); break;
            case 5: tile<5, V>(K, a_m, b, c_m, columns, next_m); break;
            default: tile<6, V>(K, a_m, b, c_m, columns, next_m);
        }
    }
}

// The columns that fill no vector: b is copied, for nothing may be read behind its rows.
static void edge(long M, long K, Left a, Right b, Out c, long columns, long rows) {
    float b_KL[DEPTH * LANES] = {};
    for (long k = 0; k < K; k++) std::memcpy(b_KL + k * LANES, b.p + k * b.row, columns * sizeof(float));
    slab<1>(M, K, a, {b_KL, LANES}, c, columns, rows, {b_KL, 0});
}

// c = a b for at most DEPTH k; `next` is the block of b that follows.
static void block(long M, long N, long K, Left a, Right b, Out c, long rows, Right next) {
    const auto b_n = [&](long n) { return Right{b.p + n, b.row}; };
    const auto c_n = [&](long n) { return Out{c.p + n, c.row, c.write}; };
    long n = 0;
    for (; n + SLAB <= N; n += SLAB)
        slab<TILE_VECTORS>(M, K, a, b_n(n), c_n(n), SLAB, rows, n + 2 * SLAB <= N ? b_n(n + SLAB) : next);
    for (; n + 2 * LANES <= N; n += 2 * LANES) slab<2>(M, K, a, b_n(n), c_n(n), SLAB, rows, next);
    for (; n + LANES <= N; n += LANES) slab<1>(M, K, a, b_n(n), c_n(n), SLAB, rows, next);
    if (n < N) edge(M, K, a, b_n(n), c_n(n), N - n, rows);
}

// Rows of a tile, of M: few are split into at least four tiles, for each fetches one line in four of what comes next.
INLINE long tile_rows(long M) { return std::clamp((M + 3) / 4, 1L, TILE_ROWS); }

// c = a b.
static void product(long M, long N, long K, Left a, Right b, Out c) {
    for (long k = 0; k < K; k += DEPTH) {
        const long depth = std::min(DEPTH, K - k);
        const Right b_k{b.p + k * b.row, b.row}, next{b_k.p + depth * b.row, b.row};
        const Out c_k{c.p, c.row, k ? Write::add : c.write};
        block(M, N, depth, {a.p + k * a.step, a.row, a.step}, b_k, c_k, tile_rows(M), next);
    }
}

// c = a b for few k and a large c, which is written front to back.
static void outer_product(long M, long N, long K, Left a, Right b, Out c) {
    const bool aligned = N % LANES == 0 && c.row % LANES == 0 && reinterpret_cast<uintptr_t>(c.p) % sizeof(vec) == 0;
    const Write write = c.write == Write::stream && !aligned ? Write::set : c.write;
    for (long m = 0; m < M; m += TILE_ROWS) {
        const Left a_m{a.p + m * a.row, a.row, a.step};
        const Out c_m{c.p + m * c.row, c.row, write};
        block(std::min(TILE_ROWS, M - m), N, K, a_m, b, c_m, TILE_ROWS, {b.p, 0});
    }
#if defined(__AVX512F__)
    if (write == Write::stream) _mm_sfence();
#endif
}

// LANES × LANES transposed by exchanging halves, quarters, … of pairs of rows.
INLINE void transpose_square(const float* from, long from_row, float* to, long to_row) {
    vec rows[LANES];
    UNROLL for (int i = 0; i < LANES; i++) rows[i] = load(from + i * from_row);
    UNROLL for (int half = 1; half < LANES; half *= 2) {
        const ivec lane = lane_numbers(), upper = (lane & half) != 0;
        UNROLL for (int i = 0; i < LANES; i++) {
            if (i & half) continue;
            const vec a = rows[i], b = rows[i + half];
            rows[i] = __builtin_shuffle(a, b, upper ? lane - half + LANES : lane);
            rows[i + half] = __builtin_shuffle(a, b, upper ? lane + LANES : lane + half);
        }
    }
    UNROLL for (int i = 0; i < LANES; i++) store(to + i * to_row, rows[i]);
}

// to[k, n] = from[n, k] for n < N ≤ SLAB, k < K; zero for the other n of the last vector.
static void transpose(long N, long K, Right from, float* to) {
    for (long n = 0; n < N; n += LANES) {
        long k = 0;
        if (n + LANES <= N)
            for (; k + LANES <= K; k += LANES)
                transpose_square(from.p + n * from.row + k, from.row, to + k * SLAB + n, SLAB);
        for (; k < K; k++)
            for (long i = n; i < n + LANES; i++) to[k * SLAB + i] = i < N ? from.p[i * from.row + k] : 0.0f;
    }
}

// c[M,N] = a[M,K]·b[N,K]ᵀ.
static void product_transposed(long M, long N, long K, Left a, Right b, Out c) {
    alignas(64) float slab_KN[2 * DEPTH * SLAB];
    const long depth = K <= 2 * DEPTH ? K : SHALLOW, rows = tile_rows(M);
    for (long n = 0; n < N; n += SLAB)
        for (long k = 0; k < K; k += depth) {
            const long N_n = std::min(SLAB, N - n), K_k = std::min(depth, K - k);
            const float* own = b.p + n * b.row + k;
            transpose(N_n, K_k, {own, b.row}, slab_KN);
            const Right next{k + depth < K ? own + depth : b.p + (n + SLAB) * b.row, b.row};
            const Left a_k{a.p + k * a.step, a.row, a.step};
            const auto c_n = [&](long v) { return Out{c.p + n + v, c.row, k ? Write::add : c.write}; };
            if (N_n == SLAB) {
                slab<TILE_VECTORS>(M, K_k, a_k, {slab_KN, SLAB}, c_n(0), SLAB, rows, next);
            } else {
                for (long v = 0; v < N_n; v += LANES)
                    slab<1>(M, K_k, a_k, {slab_KN + v, SLAB}, c_n(v), N_n - v, rows, next);
            }
        }
}
