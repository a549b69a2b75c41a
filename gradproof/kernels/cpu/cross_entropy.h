// Cross-entropy of logits against class indices: ops/cross_entropy.py.
//
//   L = −Σ_t scale_t·log_softmax(z_t)[y_t],  scale_t = w_t/W;   dz = dL·scale_t·(softmax(z_t) − onehot(y_t))
#pragma once

#include <vector>

#include "crew.h"
#include "softmax.h"

constexpr long FEWEST_LOGITS = 2048;  // that are worth another thread

// Writes scale_T and the loss. `total` is W, or null where the sum of the weights is. Rows whose target is `*ignore`
// have no weight. Returns a row whose target is out of range, or −1.
static long cross_entropy_forward(const float* z_TC, const int64_t* target_T, const float* weight_C,
                                  const double* total, const int64_t* ignore, long T, long C, float* scale_T,
                                  float* loss, long threads) {
    double weights = 0;
    for (long t = 0; t < T; t++) {
        if (ignore && target_T[t] == *ignore) {
            scale_T[t] = 0;
            continue;
        }
        if (target_T[t] < 0 || target_T[t] >= C) return t;
        scale_T[t] = weight_C ? weight_C[target_T[t]] : 1.0f;
        weights += scale_T[t];
    }
    const float counted = total ? *total : weights;
    const float whole = counted == 0 ? 1 : counted;  // no row has any weight: neither loss nor gradient
    threads = crew_size(T * C, FEWEST_LOGITS, threads);
    std::vector<double> each(threads);
    in_parallel(threads, [&](Crew crew) {
        std::vector<float> p_C(C);
        const Range own = crew.share(T);
        double part = 0;
        for (long t = own.begin; t < own.end; t++) {
            if (ignore && target_T[t] == *ignore) continue;
            scale_T[t] /= whole;
            const Softmax of = softmax(z_TC + t * C, C, p_C.data());
            part -= scale_T[t] * (z_TC[t * C + target_T[t]] - of.most - of.log_total);
        }
        each[crew.rank] = part;
    });
    double all = 0;
    for (double one : each) all += one;
    *loss = all;
    return -1;
}

static void cross_entropy_backward(float dloss, const float* scale_T, const float* z_TC, const int64_t* target_T,
                                   long T, long C, float* dz_TC, long threads) {
    in_parallel(crew_size(T * C, FEWEST_LOGITS, threads), [&](Crew crew) {
        const Range own = crew.share(T);
        for (long t = own.begin; t < own.end; t++) {
            float* dz_C = dz_TC + t * C;
            softmax(z_TC + t * C, C, dz_C);
            if (target_T[t] >= 0 && target_T[t] < C) dz_C[target_T[t]] -= 1.0f;  // others are ignored: scale is 0
            for (long c = 0; c < C; c++) dz_C[c] *= dloss * scale_T[t];
        }
    });
}
