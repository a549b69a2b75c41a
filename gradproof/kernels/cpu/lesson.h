// A step of training in one call: ops/lesson.py. Of small batches the way between the calls costs as much as half of them.
#pragma once

#include "adamw.h"
#include "cross_entropy.h"
#include "mixture.h"

// What a step moves, and where it leaves the gradient.
struct State {
    float *p_P, *g_P, *m_P, *v_P;
    const bool* decayed_B;
    long blocks;
    float *count, *skips;
};

// What it works in, and what it reports.
struct Report {
    float *y_TO, *dy_TO, *scale_T, *q_TE, *gates_TE;
    int64_t* load_E;
    float *loss, *norm, *entropy, *skipped;
};

// −Σ q log q over the rows, by row.
static double mean_entropy(const float* q_TE, long T, long E) {
    double total = 0;
    for (long i = 0; i < T * E; i++) total -= q_TE[i] == 0 ? 0 : q_TE[i] * std::log(q_TE[i]);
    return total / T;
}

// Returns a row whose target is out of range, and has moved nothing then; or −1.
static long lesson_step(const Mixture& of, const State& state, Ending given, const float* x_TI, const int64_t* target_T,
                        const float* c_E, long T, const Tape& tape, const MixtureRoom& room, const Report& out,
                        long threads) {
    float aux;
    mixture_forward(of, x_TI, state.p_P, c_E, T, T, nullptr, tape, room,
                    {out.y_TO, out.q_TE, out.gates_TE, &aux, out.load_E}, threads);
    const double rows = T;
    const long wrong = cross_entropy_forward(out.y_TO, target_T, nullptr, &rows, nullptr, T, of.outputs(), out.scale_T,
                                             out.loss, threads);
    if (wrong >= 0) return wrong;
    *out.loss += aux;
    *out.entropy = mean_entropy(out.q_TE, T, of.experts);
    cross_entropy_backward(given.scale, out.scale_T, out.y_TO, target_T, T, of.outputs(), out.dy_TO, threads);
    mixture_backward(of, out.dy_TO, nullptr, given.scale, x_TI, state.p_P, T, T, tape, out.q_TE, room, state.g_P, false,
                     nullptr, threads);
    given.loss = *out.loss;
    update_step(state.p_P, state.g_P, state.m_P, state.v_P, state.decayed_B, state.blocks, given, state.count,
                state.skips, out.norm, out.skipped, threads);
    return -1;
}
