// AdamW in one pass over the flat buffers: ops/adamw.py, where the equations are.
#pragma once

#include <cmath>
#include <vector>

#include "crew.h"
#include "vector.h"

constexpr long BLOCK = 64;               // parameters that decay, or not, together
constexpr long FEWEST_BLOCKS = 1 << 8;  // that are worth another thread

struct AdamW {
    // From doubles: 1 − β would lose its digits in float. `step` is lr/(1 − β₁ᵗ), `inverse_root` 1/√(1 − β₂ᵗ).
    float keep, new1, old2, new2, eps, inverse_divisor, step, inverse_root;

    AdamW(double count, double rate, double divisor, double beta1, double beta2, double eps, double decay)
        : keep(1 - rate * decay),
          new1(1 - beta1),
          old2(beta2),
          new2(1 - beta2),
          eps(eps),
          inverse_divisor(1 / divisor),
          step(rate / (1 - std::pow(beta1, count))),
          inverse_root(1 / std::sqrt(1 - std::pow(beta2, count))) {}

    void block(float* p, const float* g, float* m, float* v, bool decayed) const {
        const float kept = decayed ? keep : 1.0f;
        UNROLL for (long i = 0; i < BLOCK; i += LANES) {
            const vec grad = load(g + i) * inverse_divisor, before = load(m + i);
            const vec mean = before + new1 * (grad - before), square = old2 * load(v + i) + new2 * grad * grad;
            store(m + i, mean), store(v + i, square);
            store(p + i, kept * load(p + i) - step * mean / (square_root(square) * inverse_root + eps));
        }
    }
};

static void adamw_step(float* p_P, const float* g_P, float* m_P, float* v_P, const bool* decayed_B, long blocks,
                       const AdamW& adamw, long threads) {
    in_parallel(crew_size(blocks, FEWEST_BLOCKS, threads), [&](Crew crew) {
        const Range own = crew.share(blocks);
        for (long b = own.begin; b < own.end; b++)
            adamw.block(p_P + b * BLOCK, g_P + b * BLOCK, m_P + b * BLOCK, v_P + b * BLOCK, decayed_B[b]);
    });
}

static double squares(const float* g, long count) {
    double total = 0;
#pragma omp simd reduction(+ : total)
    for (long i = 0; i < count; i++) total += static_cast<double>(g[i]) * g[i];
    return total;
}

// Σ g², in double: no overflow, and the same bits for the same number of threads.
static double sum_of_squares(const float* g_P, long P, long threads) {
    threads = crew_size(P, FEWEST_BLOCKS * BLOCK, threads);
    std::vector<double> each(threads);
    in_parallel(threads, [&](Crew crew) {
        const Range own = crew.share(P, BLOCK);
        each[crew.rank] = squares(g_P + own.begin, own.size());
    });
    double all = 0;
    for (double one : each) all += one;
    return all;
}

// What the end of a step reads, and what it reports: ops/update.py.
struct Ending {
    double rate, scale, loss, clip;  // clip 0: none
    double beta1, beta2, eps, decay;
};

// Writes norm and skipped, moves the buffers and counters. The threads meet once, between norm and update; each adds up
// the squares of all in one order.
static void update_step(float* p_P, const float* g_P, float* m_P, float* v_P, const bool* decayed_B, long blocks,
                        const Ending& given, float* count, float* skips, float* norm, float* skipped, long threads) {
    threads = crew_size(blocks, FEWEST_BLOCKS, threads);
    const double step_number = *count + 1.0;
    std::vector<double> each(threads);
    in_parallel(threads, [&](Crew crew) {
        const Range own = crew.share(blocks);
        each[crew.rank] = squares(g_P + own.begin * BLOCK, own.size() * BLOCK);
        crew.wait();
        double all = 0;
        for (double one : each) all += one;
        const double length = std::sqrt(all) / given.scale;
        const bool skip = !std::isfinite(static_cast<float>(length)) || !std::isfinite(given.loss);
        if (crew.rank == 0) {
            *norm = length, *skipped = skip;
            *(skip ? skips : count) += 1;
        }
        if (skip) return;
        const double longer = given.clip > 0 ? std::max(1.0, (length + 1e-6) / given.clip) : 1.0;
        const AdamW adamw(step_number, given.rate, given.scale * longer, given.beta1, given.beta2, given.eps,
                          given.decay);
        for (long b = own.begin; b < own.end; b++)
            adamw.block(p_P + b * BLOCK, g_P + b * BLOCK, m_P + b * BLOCK, v_P + b * BLOCK, decayed_B[b]);
    });
}
