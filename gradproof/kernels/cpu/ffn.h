// Bias and GELU of rows, between the two products of a feed-forward layer: ops/ffn.py.
//
//   n = h + b,  a = GELU(n);   dh = GELU′(n)·da,  db = Σ_T dh
#pragma once

#include <vector>

#include "norm_gelu.h"

static void ffn_forward(const float* h_TF, const float* b_F, long T, long F, float* a_TF, long threads) {
    in_parallel(crew_size(T, FEWEST_ROWS, threads), [&](Crew crew) {
        const Range own = crew.share(T);
        bias_gelu(h_TF + own.begin * F, b_F, own.size(), F, a_TF + own.begin * F);
    });
}

// R rows: d_RF holds da and receives dh, h_RF receives a, which a product reads next; the columns' sums are added to.
template <int R>
INLINE void ffn_rows_backward(float* d_RF, float* h_RF, const float* b_F, long F, float* db_F) {
    each_vector(F, [&](long j, auto part) {
        const vec b = load(b_F + j, part);
        vec db = load(db_F + j, part);
        UNROLL for (int r = 0; r < R; r++) {
            const vec low = at_least(load(h_RF + r * F + j, part) + b, -10.0f), middle = at_most(low, 10.0f);
            const Sigmoid at = gelu_sigmoid(low);
            const vec slope = TWICE_SCALE + 3.0f * TWICE_SCALE * CUBIC * (middle * middle);
            const vec dh = load(d_RF + r * F + j, part) * (at.s + middle * at.s * (at.e * at.s) * slope);
            db += dh;
            store(d_RF + r * F + j, dh, part), store(h_RF + r * F + j, low * at.s, part);
        }
        store(db_F + j, db, part);
    });
}

// Each thread's sums are added in the order of the threads.
static void ffn_backward(float* d_TF, float* h_TF, const float* b_F, long T, long F, float* db_F, long threads) {
    threads = crew_size(T, FEWEST_ROWS, threads);
    std::vector<float> sums(F * threads);
    in_parallel(threads, [&](Crew crew) {
        const Range own = crew.share(T);
        float* own_sums = sums.data() + F * crew.rank;
        long t = own.begin;
        for (; t + GROUP <= own.end; t += GROUP)
            ffn_rows_backward<GROUP>(d_TF + t * F, h_TF + t * F, b_F, F, own_sums);
        for (; t < own.end; t++) ffn_rows_backward<1>(d_TF + t * F, h_TF + t * F, b_F, F, own_sums);
    });
    for (long j = 0; j < F; j++) {
        db_F[j] = 0;
        for (long rank = 0; rank < threads; rank++) db_F[j] += sums[F * rank + j];
    }
}
