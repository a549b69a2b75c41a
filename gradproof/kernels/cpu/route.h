// The router: ops/route.py, where the equations are.
#pragma once

#include <cmath>
#include <vector>

#include "crew.h"
#include "softmax.h"

constexpr long FEWEST_ROUTED = 256;  // rows that are worth another thread

struct Routing {
    long k;
    bool sigmoid, renormalise;
    double balance, z_loss;
};

static float sigmoid(float z) { return 1.0f / (1.0f + std::exp(-z)); }
static float log_sigmoid(float z) { return std::min(z, 0.0f) - std::log1p(std::exp(-std::abs(z))); }

// NaN comes first, as in torch.sort; of equals the lower index, which is met earlier.
static bool above(float a, float b) { return a > b || (std::isnan(a) && !std::isnan(b)); }

// The K largest, largest first.
static void choose(const float* score_E, long experts, long k, int64_t* index_K) {
    for (long i = 0; i < k; i++) {
        long best = -1;
        for (long e = 0; e < experts; e++) {
            if (std::find(index_K, index_K + i, e) != index_K + i) continue;
            if (best < 0 || above(score_E[e], score_E[best])) best = e;
        }
        index_K[i] = best;
    }
}

// Sums over rows: the load, q and logsumexp(z)².
struct Totals {
    std::vector<int64_t> load_E;
    std::vector<double> q_E;
    double squares = 0;

    explicit Totals(long experts) : load_E(experts), q_E(experts) {}
    void add(const Totals& other) {
        for (size_t e = 0; e < load_E.size(); e++) load_E[e] += other.load_E[e], q_E[e] += other.q_E[e];
        squares += other.squares;
    }
};

struct Routed {
    float *q_TE, *gates_TE;
    int64_t* index_TK;
};

static double square_of_logsumexp(Softmax of) {
    const double value = static_cast<double>(of.most) + of.log_total;
    return value * value;
}

// One row; work_3E is room for l, scores and a softmax that is not kept.
static void route_row(const float* z_E, const float* c_E, long E, const Routing& routing, float* q_E, float* gates_E,
                      int64_t* index_K, float* work_3E, Totals& totals) {
    float *l_E = work_3E, *score_E = work_3E + E, *other_E = work_3E + 2 * E;
    for (long e = 0; e < E; e++) l_E[e] = routing.sigmoid ? log_sigmoid(z_E[e]) : z_E[e];
    const Softmax of_l = softmax(l_E, E, q_E);
    totals.squares += square_of_logsumexp(routing.sigmoid && routing.z_loss ? softmax(z_E, E, other_E) : of_l);
    for (long e = 0; e < E; e++) score_E[e] = routing.sigmoid ? sigmoid(z_E[e]) : q_E[e];
    for (long e = 0; e < E; e++) other_E[e] = score_E[e] + (c_E ? c_E[e] : 0.0f);
    choose(other_E, E, routing.k, index_K);
    std::fill_n(gates_E, E, 0.0f);
    if (routing.renormalise) {
        for (long i = 0; i < routing.k; i++) other_E[i] = l_E[index_K[i]];
        softmax(other_E, routing.k, score_E);
        for (long i = 0; i < routing.k; i++) gates_E[index_K[i]] = score_E[i];
    } else {
        for (long i = 0; i < routing.k; i++) gates_E[index_K[i]] = score_E[index_K[i]];
    }
    for (long i = 0; i < routing.k; i++) totals.load_E[index_K[i]]++;
    for (long e = 0; e < E; e++) totals.q_E[e] += q_E[e];
}

// `whole_load_E` is that of the whole batch of `rows` rows, or null where these T are the whole.
static void route_forward(const float* z_TE, const float* c_E, long T, long E, const Routing& routing, long rows,
                          const int64_t* whole_load_E, const Routed& out, float* share_E, float* aux, long threads) {
    threads = crew_size(T, FEWEST_ROUTED, threads);
    std::vector<Totals> each(threads, Totals(E));
    in_parallel(threads, [&](Crew crew) {
        std::vector<float> work(3 * E);
        Totals totals(E);
        const Range own = crew.share(T);
        for (long t = own.begin; t < own.end; t++)
            route_row(z_TE + t * E, c_E, E, routing, out.q_TE + t * E, out.gates_TE + t * E,
                      out.index_TK + t * routing.k, work.data(), totals);
        each[crew.rank] = totals;
    });
    Totals all(E);
    for (const Totals& one : each) all.add(one);
    double weighed = 0;
    for (long e = 0; e < E; e++) {
        share_E[e] = static_cast<float>(whole_load_E ? whole_load_E[e] : all.load_E[e]) / (rows * routing.k);
        weighed += share_E[e] * all.q_E[e];
    }
    double loss = 0;
    if (routing.balance) loss += routing.balance * E / rows * weighed;
    if (routing.z_loss) loss += routing.z_loss / rows * all.squares;
    *aux = loss;
}

// dl += p·(dp − ⟨p, dp⟩)
static void add_softmax_backward(const float* p_E, const float* dp_E, long E, float* dl_E) {
    float along = 0;
    for (long e = 0; e < E; e++) along += p_E[e] * dp_E[e];
    for (long e = 0; e < E; e++) dl_E[e] += p_E[e] * (dp_E[e] - along);
}

// One row; work_2E is room for a cotangent and a softmax, dq_E is the balance term's cotangent of q.
static void route_row_backward(const float* dgates_E, const float* z_E, const float* q_E, const float* gates_E,
                               const int64_t* index_K, const float* dq_E, float z_factor, long E,
                               const Routing& routing, float* work_2E, float* dz_E) {
    float *dw_E = work_2E, *p_E = work_2E + E;
    std::fill_n(dz_E, E, 0.0f);
    std::fill_n(dw_E, E, 0.0f);
    for (long i = 0; i < routing.k; i++) dw_E[index_K[i]] = dgates_E[index_K[i]];
    if (routing.renormalise)
        add_softmax_backward(gates_E, dw_E, E, dz_E);
    else if (!routing.sigmoid)
        add_softmax_backward(q_E, dw_E, E, dz_E);
    else
        for (long e = 0; e < E; e++) dz_E[e] = gates_E[e] * dw_E[e];
    if (routing.balance) add_softmax_backward(q_E, dq_E, E, dz_E);
    if (routing.sigmoid)
        for (long e = 0; e < E; e++) dz_E[e] *= sigmoid(-z_E[e]);
    if (routing.z_loss) {
        const Softmax of_z = softmax(z_E, E, p_E);
        for (long e = 0; e < E; e++) dz_E[e] += z_factor * (of_z.most + of_z.log_total) * p_E[e];
    }
}

static void route_backward(const float* dgates_TE, float daux, const float* z_TE, const Routed& saved,
                           const float* share_E, long T, long E, const Routing& routing, long rows, float* dz_TE,
                           long threads) {
    std::vector<float> dq_E(E);
    for (long e = 0; e < E; e++) dq_E[e] = daux * routing.balance * E / rows * share_E[e];
    const float z_factor = daux * routing.z_loss * 2 / rows;
    in_parallel(crew_size(T, FEWEST_ROUTED, threads), [&](Crew crew) {
        std::vector<float> work(2 * E);
        const Range own = crew.share(T);
        for (long t = own.begin; t < own.end; t++)
            route_row_backward(dgates_TE + t * E, z_TE + t * E, saved.q_TE + t * E, saved.gates_TE + t * E,
                               saved.index_TK + t * routing.k, dq_E.data(), z_factor, E, routing, work.data(),
                               dz_TE + t * E);
    });
}
