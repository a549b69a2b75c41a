// Bias, LayerNorm and GELU of rows: ops/norm_gelu.py.
//
//   x = h + b,  x̂ = (x − mean)·rstd,  n = x̂·γ + β,  y = GELU(n) where active, else n
//   dn = GELU′(n)·dy,  dx̂ = dn·γ,  dh = rstd·(dx̂ − mean(dx̂) − x̂·mean(dx̂·x̂))
//   db = Σ_T dh,  dγ = Σ_T dn·x̂,  dβ = Σ_T dn
#pragma once

#include <vector>

#include "crew.h"
#include "vector.h"

constexpr float EPS = 1e-5f;

struct Norm {
    const float *b_H, *gamma_H, *beta_H;
    long width;
    bool active;
};

struct Stats {
    float mean, rstd;
};

// Column sums over rows, one float a column.
struct Sums {
    float *db_H, *dgamma_H, *dbeta_H;
};

// s = σ(2v) and e = exp(−2v), v = √(2/π)(n + a·n³), so that GELU is n·s and 1 − s is e·s without cancellation.
// n is at least −10; above 10 the exponent stops at the last normal number.
struct Sigmoid {
    vec s, e;
};
constexpr float CUBIC = 0.044715f;
constexpr float TWICE_SCALE = 1.5957691216f;                      // 2√(2/π)
constexpr float TWICE_SCALE_LOG2E = 1.5957691216 * 1.4426950409;  // for a power of 2 instead of e

INLINE Sigmoid gelu_sigmoid(vec n) {
    const vec exponent = n * (-TWICE_SCALE_LOG2E - TWICE_SCALE_LOG2E * CUBIC * (n * n));
    const vec e = exp2(at_least(exponent, -126.0f));
    return {reciprocal(1.0f + e), e};
}

INLINE Stats statistics(const float* h_H, const Norm& norm) {
    vec total{}, squares{};
    each_vector(norm.width, [&](long j, auto part) { total += load(h_H + j, part) + load(norm.b_H + j, part); });
    const float mean = sum(total) / norm.width;
    each_vector(norm.width, [&](long j, auto part) {
        const vec centred = inside(load(h_H + j, part) + load(norm.b_H + j, part) - mean, part);
        squares += centred * centred;
    });
    return {mean, 1.0f / std::sqrt(sum(squares) / norm.width + EPS)};
}

// One row forward: y_H, given its statistics.
INLINE void norm_gelu_row(const float* h_H, Stats stats, const Norm& norm, float* y_H) {
    each_vector(norm.width, [&](long j, auto part) {
        const vec xhat = (load(h_H + j, part) + load(norm.b_H + j, part) - stats.mean) * stats.rstd;
        const vec n = xhat * load(norm.gamma_H + j, part) + load(norm.beta_H + j, part);
        const vec low = at_least(n, -10.0f);
        store(y_H + j, norm.active ? low * gelu_sigmoid(low).s : n, part);
    });
}

// a = GELU(h + b) of rows; a may be h itself.
INLINE void bias_gelu(const float* h_TF, const float* b_F, long T, long F, float* a_TF) {
    for (long t = 0; t < T; t++)
        each_vector(F, [&](long j, auto part) {
            const vec low = at_least(load(h_TF + t * F + j, part) + load(b_F + j, part), -10.0f);
            store(a_TF + t * F + j, low * gelu_sigmoid(low).s, part);
        });
}

// R rows backward: d_RH holds dy and receives dh; y_RH is written, for a product reads it next; the columns' sums are
// added to.
template <int R>
INLINE void norm_gelu_rows_backward(float* d_RH, const float* h_RH, const Stats* stats, const Norm& norm, float* y_RH,
                                    Sums sums) {
    const long H = norm.width;
    vec total[R] = {}, along[R] = {};
    each_vector(H, [&](long j, auto part) {
        const vec b = load(norm.b_H + j, part), gamma = load(norm.gamma_H + j, part);
        const vec beta = load(norm.beta_H + j, part);
        vec dgamma = load(sums.dgamma_H + j, part), dbeta = load(sums.dbeta_H + j, part);
        UNROLL for (int r = 0; r < R; r++) {
            const vec xhat = (load(h_RH + r * H + j, part) + b - stats[r].mean) * stats[r].rstd;
            const vec n = xhat * gamma + beta;
            vec dn = load(d_RH + r * H + j, part), y = n;
            if (norm.active) {
                const vec low = at_least(n, -10.0f), middle = at_most(low, 10.0f);
                const Sigmoid at = gelu_sigmoid(low);
                const vec slope = TWICE_SCALE + 3.0f * TWICE_SCALE * CUBIC * (middle * middle);
                dn *= at.s + middle * at.s * (at.e * at.s) * slope;
                y = low * at.s;
            }
            const vec dxhat = dn * gamma;
            total[r] += dxhat, along[r] += dxhat * xhat;
            dgamma += dn * xhat, dbeta += dn;
            store(y_RH + r * H + j, y, part), store(d_RH + r * H + j, dxhat, part);
        }
        store(sums.dgamma_H + j, dgamma, part), store(sums.dbeta_H + j, dbeta, part);
    });
    float mean[R], slant[R];
    UNROLL for (int r = 0; r < R; r++) mean[r] = sum(total[r]) / H, slant[r] = sum(along[r]) / H;
    each_vector(H, [&](long j, auto part) {
        const vec b = load(norm.b_H + j, part);
        vec db = load(sums.db_H + j, part);
        UNROLL for (int r = 0; r < R; r++) {
            const vec xhat = (load(h_RH + r * H + j, part) + b - stats[r].mean) * stats[r].rstd;
            const vec dh = stats[r].rstd * (load(d_RH + r * H + j, part) - mean[r] - xhat * slant[r]);
            store(d_RH + r * H + j, dh, part);
            db += dh;
        }
        store(sums.db_H + j, db, part);
    });
}

constexpr long GROUP = 4;  // rows that share a pass over the column sums
static void norm_gelu_rows_backward(long rows, float* d_RH, const float* h_RH, const Stats* stats, const Norm& norm,
                                    float* y_RH, Sums sums) {
    long r = 0;
    const long H = norm.width;
    for (; r + GROUP <= rows; r += GROUP)
        norm_gelu_rows_backward<GROUP>(d_RH + r * H, h_RH + r * H, stats + r, norm, y_RH + r * H, sums);
    for (; r < rows; r++) norm_gelu_rows_backward<1>(d_RH + r * H, h_RH + r * H, stats + r, norm, y_RH + r * H, sums);
}

constexpr long FEWEST_ROWS = 16;  // that are worth another thread

static void norm_gelu_forward(const float* h_TH, const Norm& norm, long T, float* y_TH, long threads) {
    const long H = norm.width;
    in_parallel(crew_size(T, FEWEST_ROWS, threads), [&](Crew crew) {
        const Range own = crew.share(T);
        for (long t = own.begin; t < own.end; t++)
            norm_gelu_row(h_TH + t * H, statistics(h_TH + t * H, norm), norm, y_TH + t * H);
    });
}

// Each thread's sums are added in the order of the threads.
static void norm_gelu_backward(const float* dy_TH, const float* h_TH, const Norm& norm, long T, float* dh_TH, Sums out,
                               long threads) {
    const long H = norm.width;
    threads = crew_size(T, FEWEST_ROWS, threads);
    std::vector<float> sums(3 * H * threads);
    in_parallel(threads, [&](Crew crew) {
        std::vector<float> y_GH(GROUP * H);
        float* own_sums = sums.data() + 3 * H * crew.rank;
        const Range own = crew.share(T);
        std::copy(dy_TH + own.begin * H, dy_TH + own.end * H, dh_TH + own.begin * H);
        for (long t = own.begin; t < own.end; t += GROUP) {
            const long rows = std::min(GROUP, own.end - t);
            Stats stats[GROUP];
            for (long r = 0; r < rows; r++) stats[r] = statistics(h_TH + (t + r) * H, norm);
            norm_gelu_rows_backward(rows, dh_TH + t * H, h_TH + t * H, stats, norm, y_GH.data(),
                                    {own_sums, own_sums + H, own_sums + 2 * H});
        }
    });
    for (long j = 0; j < H; j++) {
        out.db_H[j] = out.dgamma_H[j] = out.dbeta_H[j] = 0;
        for (long rank = 0; rank < threads; rank++) {
            const float* of_rank = sums.data() + 3 * H * rank + j;
            out.db_H[j] += of_rank[0], out.dgamma_H[j] += of_rank[H], out.dbeta_H[j] += of_rank[2 * H];
        }
    }
}
