// Softmax of a row: p = exp(z − m)/Σ, m = max z, Σ = Σ exp(z − m); log Σ exp(z) = m + log Σ.
#pragma once

#include "vector.h"

struct Softmax {
    float most, log_total;
};

// Writes p_E. NaN anywhere in the row makes all of it NaN, as do infinities.
static Softmax softmax(const float* z_E, long width, float* p_E) {
    float most = z_E[0];
    for (long e = 1; e < width; e++) most = z_E[e] > most ? z_E[e] : most;
    vec totals{};
    each_vector(width, [&](long j, auto part) {
        const vec shifted = load(z_E + j, part) - most;
        const vec p = inside(shifted < -87.0f ? vec{} : exp(shifted), part);
        totals += p;
        store(p_E + j, p, part);
    });
    const float total = sum(totals);
    each_vector(width, [&](long j, auto part) { store(p_E + j, load(p_E + j, part) / total, part); });
    return {most, std::log(total)};
}
