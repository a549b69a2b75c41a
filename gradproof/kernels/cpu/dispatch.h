// Rows sorted by expert, and back: ops/dispatch.py and ops/combine.py.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "crew.h"
#include "vector.h"

constexpr long FEWEST_FLOATS = 1 << 15;  // that are worth another thread

// A counting sort of the slots by expert, stable. Returns a slot whose expert does not exist, or −1.
static long dispatch_plan(const int64_t* index_N, long N, long E, int64_t* slot_N, int64_t* row_N, int64_t* offset_F) {
    std::fill_n(offset_F, E + 1, 0);
    for (long n = 0; n < N; n++) {
        if (index_N[n] < 0 || index_N[n] >= E) return n;
        offset_F[index_N[n] + 1]++;
    }
    for (long e = 0; e < E; e++) offset_F[e + 1] += offset_F[e];
    std::vector<int64_t> next_E(offset_F, offset_F + E);
    for (long n = 0; n < N; n++) {
        row_N[n] = next_E[index_N[n]]++;
        slot_N[row_N[n]] = n;
    }
    return -1;
}

// rows_n = x[slot_n / K]
static void dispatch_forward(const float* x_TI, const int64_t* slot_N, long N, long K, long I, float* rows_NI,
                             long threads) {
    in_parallel(crew_size(N * I, FEWEST_FLOATS, threads), [&](Crew crew) {
        const Range own = crew.share(N);
        for (long n = own.begin; n < own.end; n++)
            std::memcpy(rows_NI + n * I, x_TI + slot_N[n] / K * I, I * sizeof(float));
    });
}

// dx_t = Σ_k drows[row_tk], in the order of k
static void dispatch_backward(const float* drows_NI, const int64_t* row_TK, long T, long K, long I, float* dx_TI,
                              long threads) {
    in_parallel(crew_size(T * K * I, FEWEST_FLOATS, threads), [&](Crew crew) {
        const Range own = crew.share(T);
        for (long t = own.begin; t < own.end; t++) {
            float* dx_I = dx_TI + t * I;
            std::memcpy(dx_I, drows_NI + row_TK[t * K] * I, I * sizeof(float));
            for (long k = 1; k < K; k++) {
                const float* drow_I = drows_NI + row_TK[t * K + k] * I;
                for (long i = 0; i < I; i++) dx_I[i] += drow_I[i];
            }
        }
    });
}

// y_t = Σ_k w_tk·rows[row_tk], in the order of k
static void combine_forward(const float* rows_NO, const float* gates_TE, const int64_t* index_TK, const int64_t* row_TK,
                            long T, long E, long K, long O, float* y_TO, long threads) {
    in_parallel(crew_size(T * K * O, FEWEST_FLOATS, threads), [&](Crew crew) {
        const Range own = crew.share(T);
        for (long t = own.begin; t < own.end; t++)
            for (long k = 0; k < K; k++) {
                const float gate = gates_TE[t * E + index_TK[t * K + k]];
                const float* row_O = rows_NO + row_TK[t * K + k] * O;
                float* y_O = y_TO + t * O;
                for (long o = 0; o < O; o++) y_O[o] = (k ? y_O[o] : 0.0f) + gate * row_O[o];
            }
    });
}

// drows[row_tk] = w_tk·dy_t;  dw_tk = ⟨dy_t, rows[row_tk]⟩, 0 off S
static void combine_backward(const float* dy_TO, const float* rows_NO, const float* gates_TE, const int64_t* index_TK,
                             const int64_t* row_TK, long T, long E, long K, long O, float* drows_NO, float* dgates_TE,
                             long threads) {
    in_parallel(crew_size(T * K * O, FEWEST_FLOATS, threads), [&](Crew crew) {
        const Range own = crew.share(T);
        std::fill(dgates_TE + own.begin * E, dgates_TE + own.end * E, 0.0f);
        for (long t = own.begin; t < own.end; t++)
            for (long k = 0; k < K; k++) {
                const long e = index_TK[t * K + k], row = row_TK[t * K + k];
                const float gate = gates_TE[t * E + e];
                vec along{};
                each_vector(O, [&](long o, auto part) {
                    const vec dy = load(dy_TO + t * O + o, part);
                    store(drows_NO + row * O + o, gate * dy, part);
                    along += dy * load(rows_NO + row * O + o, part);
                });
                dgates_TE[t * E + e] = sum(along);
            }
    });
}
