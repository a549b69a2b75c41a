// Router and experts in one call each way: ops/mixture.py. Small batches spend more on calls than on arithmetic.
#pragma once

#include "dispatch.h"
#include "experts.h"
#include "route.h"


// The shape: [experts, where the router's bias is, where the first expert is, chain…].
struct Mixture {
    long experts, bias, first;
    Chain chain;
    Routing routing;

    Mixture(const int64_t* numbers, const Routing& routing)
        : experts(numbers[0]), bias(numbers[1]), first(numbers[2]), chain(numbers + 3), routing(routing) {}
    long inputs() const { return chain.width[0]; }
    long outputs() const { return chain.width[chain.layers + 1]; }
    // Floats that a forward keeps for each row of an expert.
    long kept() const { return std::accumulate(chain.width + 1, chain.width + 1 + chain.layers, 2 * chain.layers); }
};

// Hands out parts of a buffer, each at the start of a cache line; `used` counts, also without a buffer.
template <class T>
struct Arena {
    T* base;
    long used = 0;

    T* take(long count) {
        T* found = base ? base + used : nullptr;
        used += (count + 15) / 16 * 16;
        return found;
    }
};

// What a forward keeps for its backward; q is a tensor of its own.
struct Tape {
    float *z_TE, *gates_TE, *share_E, *rows_NI, *rows_NO, *kept;
    int64_t *index_TK, *row_TK, *slot_N, *offset_F;
    long floats, integers;

    Tape(const Mixture& of, long T, float* floats_base, int64_t* integers_base) {
        const long E = of.experts, N = T * of.routing.k;
        Arena<float> from{floats_base};
        z_TE = from.take(T * E), gates_TE = from.take(T * E), share_E = from.take(E);
        rows_NI = from.take(N * of.inputs()), rows_NO = from.take(N * of.outputs()), kept = from.take(N * of.kept());
        Arena<int64_t> whole{integers_base};
        index_TK = whole.take(N), row_TK = whole.take(N), slot_N = whole.take(N), offset_F = whole.take(E + 1);
        floats = from.used, integers = whole.used;
    }
    Batch batch(const Mixture& of, const float* theta_P) const {
        return {of.chain, rows_NI, theta_P + of.first, of.chain.length, offset_F, of.experts, kept};
    }
};

// What one call works in.
struct MixtureRoom {
    float *drows_NO, *dgates_TE, *dz_TE, *drows_NI, *scratch;
    long floats;

    MixtureRoom(const Mixture& of, long T, bool want_dx, long threads, float* base) {
        const long E = of.experts, N = T * of.routing.k;
        Arena<float> from{base};
        drows_NO = from.take(N * of.outputs()), dgates_TE = from.take(T * E), dz_TE = from.take(T * E);
        scratch = from.take(experts_scratch(of.chain, N, E, threads));
        drows_NI = from.take(want_dx ? N * of.inputs() : 0);
        floats = from.used;
    }
};

// z = x Wᵀ + b
static void router_forward(const float* x_TI, const float* w_EI, const float* b_E, long T, long E, long I, float* z_TE,
                           long threads) {
    in_parallel(crew_size(T, FEWEST_ROUTED, threads), [&](Crew crew) {
        const Range own = crew.share(T);
        product_transposed(own.size(), E, I, {x_TI + own.begin * I, I, 1}, {w_EI, I},
                           {z_TE + own.begin * E, E, Write::set});
        for (long t = own.begin; t < own.end; t++)
            for (long e = 0; e < E; e++) z_TE[t * E + e] += b_E[e];
    });
}

// dW (+)= dzᵀ x, each thread some columns; db (+)= Σ_T dz, in double: it is a sum of all rows.
static void router_gradients(const float* dz_TE, const float* x_TI, long T, long E, long I, bool accumulate,
                             float* dw_EI, float* db_E, long threads) {
    in_parallel(crew_size(T, FEWEST_ROUTED, threads), [&](Crew crew) {
        const Range own = crew.share(I, LANES);
        for (long t = 0; t < T; t += DEPTH) {
            const Out dw{dw_EI + own.begin, I, t || accumulate ? Write::add : Write::set};
            outer_product(E, own.size(), std::min(DEPTH, T - t), {dz_TE + t * E, 1, E}, {x_TI + t * I + own.begin, I},
                          dw);
        }
        const Range outs = crew.share(E);
        for (long e = outs.begin; e < outs.end; e++) {
            double total = accumulate ? db_E[e] : 0.0f;
            for (long t = 0; t < T; t++) total += dz_TE[t * E + e];
            db_E[e] = total;
        }
    });
}

struct MixtureOut {
    float *y_TO, *q_TE, *gates_TE, *aux;
    int64_t* load_E;
};

static void mixture_forward(const Mixture& of, const float* x_TI, const float* theta_P, const float* c_E, long T,
                            long rows, const int64_t* whole_load_E, const Tape& tape, const MixtureRoom& room,
                            const MixtureOut& out, long threads) {
    const long E = of.experts, K = of.routing.k, I = of.inputs();
    router_forward(x_TI, theta_P, theta_P + of.bias, T, E, I, tape.z_TE, threads);
    route_forward(tape.z_TE, c_E, T, E, of.routing, rows, whole_load_E, {out.q_TE, tape.gates_TE, tape.index_TK},
                  tape.share_E, out.aux, threads);
    dispatch_plan(tape.index_TK, T * K, E, tape.slot_N, tape.row_TK, tape.offset_F);
    experts_forward(tape.batch(of, theta_P), room.scratch, tape.rows_NO, threads, [&](Chunk at, Crew crew) {
        fetch_chunk({x_TI, tape.slot_N, K}, I, at, crew, tape.rows_NI);
    });
    combine_forward(tape.rows_NO, tape.gates_TE, tape.index_TK, tape.row_TK, T, E, K, of.outputs(), out.y_TO, threads);
    std::copy_n(tape.gates_TE, T * E, out.gates_TE);  // the caller's own
    for (long e = 0; e < E; e++) out.load_E[e] = tape.offset_F[e + 1] - tape.offset_F[e];
}

// `dgates_TE`, the cotangent of the gates themselves, and `dx_TI` may be null.
static void mixture_backward(const Mixture& of, const float* dy_TO, const float* dgates_TE, float daux,
                             const float* x_TI, const float* theta_P, long T, long rows, const Tape& tape, float* q_TE,
                             const MixtureRoom& room, float* out_P, bool accumulate, float* dx_TI, long threads) {
    const long E = of.experts, K = of.routing.k, I = of.inputs();
    combine_backward(dy_TO, tape.rows_NO, tape.gates_TE, tape.index_TK, tape.row_TK, T, E, K, of.outputs(),
                     room.drows_NO, room.dgates_TE, threads);
    for (long i = 0; dgates_TE && i < T * E; i++) room.dgates_TE[i] += dgates_TE[i];
    experts_backward(tape.batch(of, theta_P), room.drows_NO, room.scratch,
                     {out_P + of.first, of.chain.length, accumulate}, dx_TI ? room.drows_NI : nullptr, threads);
    route_backward(room.dgates_TE, daux, tape.z_TE, {q_TE, tape.gates_TE, tape.index_TK}, tape.share_E, T, E,
                   of.routing, rows, room.dz_TE, threads);
    router_gradients(room.dz_TE, x_TI, T, E, I, accumulate, out_P, out_P + of.bias, threads);
    if (!dx_TI) return;
    dispatch_backward(room.drows_NI, tape.row_TK, T, K, I, dx_TI, threads);
    in_parallel(crew_size(T, FEWEST_ROUTED, threads), [&](Crew crew) {
        const Range own = crew.share(T);
        product(own.size(), I, E, {room.dz_TE + own.begin * E, E, 1}, {theta_P, I},
                {dx_TI + own.begin * I, I, Write::add});
    });
}
