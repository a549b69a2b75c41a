// The experts' chains on their own rows: ops/experts.py.
//
//   forward   h_i = x_i W_iᵀ,  x_{i+1} = GELU(LayerNorm(h_i + b_i)),  …,  y = x W_lastᵀ + b_last
//   backward  last layer first: dx = dh W,  dW = dhᵀ x,  dh of the layer below by norm_gelu's backward, which also
//             gives x again from the h that was kept
//
// Rows are taken in chunks that stay in the caches through the whole chain. Small experts: each thread has its own rows
// and its own chunks. Large ones: all threads work on one chunk, each on its columns of a product or rows of a norm.
// Every sum has one order, whichever thread is first.
#pragma once

#include <numeric>
#include <vector>

#include "crew.h"
#include "norm_gelu.h"
#include "product.h"

constexpr long CHUNK = 96;        // rows
constexpr long SNAP = 6;          // rows: what it costs a thread to begin within an expert
constexpr long FEWEST = 8;        // rows a thread
constexpr long WHOLE = 256;       // rows up to which an expert is never shared: a second copy of its gradients is more
constexpr long STREAM = 1 << 24;  // gradients that no cache holds until they are read
static_assert(CHUNK <= DEPTH);

// Rows of a chunk at most. Few rows have small chunks: an expert seldom has half of a batch, and room is for the largest.
static long chunk_of(long rows, long experts) { return std::min(CHUNK, experts > 1 ? (rows + 1) / 2 : rows); }

// The shape of an expert, where its parameters are in a row of theta, and whether all threads work on one chunk.
struct Chain {
    long layers, length;
    bool together;
    const int64_t *width, *active, *weight, *bias, *gamma, *beta;

    // [layers, length, together, widths…, active…, weights…, biases…, gammas…, betas…]
    explicit Chain(const int64_t* numbers)
        : layers(numbers[0]), length(numbers[1]), together(numbers[2] != 0), width(numbers + 3) {
        active = width + layers + 2;
        weight = active + layers;
        bias = weight + layers + 1;
        gamma = bias + layers + 1;
        beta = gamma + layers;
    }
    long widest() const {
        const long most = *std::max_element(width, width + layers + 2);
        return (most + LANES - 1) / LANES * LANES;
    }
    Norm norm(long i, const float* theta_P) const {
        return {theta_P + bias[i], theta_P + gamma[i], theta_P + beta[i], width[i + 1], active[i] != 0};
    }
    // f(where, how many) for each parameter.
    template <class F>
    void each_parameter(F f) const {
        for (long i = 0; i <= layers; i++) f(weight[i], width[i] * width[i + 1]), f(bias[i], width[i + 1]);
        for (long i = 0; i < layers; i++) f(gamma[i], width[i + 1]), f(beta[i], width[i + 1]);
    }
};

// Where the rows of a batch come from, if they are not there yet: row n is x[slot_n / K].
struct Source {
    const float* x_TI;
    const int64_t* slot_N;
    long k;
};

// Row n belongs to expert e where offset[e] ≤ n < offset[e + 1]. A forward keeps h_NH of one layer after the other, then
// the rows' statistics, likewise.
struct Batch {
    const Chain& chain;
    const float *x_NI, *theta_EP;
    long theta_row;
    const int64_t* offset_F;
    long experts;
    float* kept;

    long rows() const { return offset_F[experts]; }
    long rows(long e) const { return offset_F[e + 1] - offset_F[e]; }
    long chunk() const { return chunk_of(rows(), experts); }
    const float* theta(long e) const { return theta_EP + e * theta_row; }
    float* h_of(long layer) const {
        return kept + rows() * std::accumulate(chain.width + 1, chain.width + 1 + layer, 0L);
    }
    float* h_row(long i, long n) const { return h_of(i) + n * chain.width[i + 1]; }
    Stats* stats_row(long i, long n) const { return reinterpret_cast<Stats*>(h_of(chain.layers)) + i * rows() + n; }
};

// Rows of one expert that go through the chain together.
struct Chunk {
    long expert, first, count;
};

// f(chunk) for the rows begin..end.
template <class F>
static void each_chunk(const Batch& batch, Range rows, F f) {
    for (long e = 0; e < batch.experts; e++) {
        const long end = std::min<long>(rows.end, batch.offset_F[e + 1]);
        for (long n = std::max<long>(rows.begin, batch.offset_F[e]); n < end; n += batch.chunk())
            f(Chunk{e, n, std::min(batch.chunk(), end - n)});
    }
}

// Rows that are copied by the thread that works on them are in its caches.
static void fetch_chunk(const Source& source, long in, Chunk at, Crew crew, float* rows_NI) {
    const Range own = crew.share(at.count);
    for (long n = at.first + own.begin; n < at.first + own.end; n++)
        std::memcpy(rows_NI + n * in, source.x_TI + source.slot_N[n] / source.k * in, in * sizeof(float));
    crew.wait();
}

// x_CH holds the activations of the chunk's layers in turn.
static void forward_chunk(const Batch& batch, Chunk at, Crew crew, float* x_CH, float* y_NO) {
    const Chain& chain = batch.chain;
    const float *theta_P = batch.theta(at.expert), *x = batch.x_NI + at.first * chain.width[0];
    for (long i = 0; i <= chain.layers; i++) {
        const long in = chain.width[i], out = chain.width[i + 1];
        const bool last = i == chain.layers;
        float* h = last ? y_NO + at.first * out : batch.h_row(i, at.first);
        const Range own = crew.share(out, SLAB);
        const Right w{theta_P + chain.weight[i] + own.begin * in, in};
        product_transposed(at.count, own.size(), in, {x, in, 1}, w, {h + own.begin, out, Write::set});
        if (last) {
            const float* b = theta_P + chain.bias[i];
            for (long r = 0; r < at.count; r++)
                for (long j = own.begin; j < own.end; j++) h[r * out + j] += b[j];
            return;
        }
        crew.wait();
        const Norm norm = chain.norm(i, theta_P);
        Stats* stats = batch.stats_row(i, at.first);
        const Range rows = crew.share(at.count);
        for (long r = rows.begin; r < rows.end; r++) {
            stats[r] = statistics(h + r * out, norm);
            norm_gelu_row(h + r * out, stats[r], norm, x_CH + r * out);
        }
        crew.wait();
        x = x_CH;
    }
}

// What a backward works in: two layers' dh, the input of a layer, and each thread's column sums.
struct Room {
    float *dh[2], *x, *sums;
    long widest;

    Room(float* scratch, long widest, long chunk) : widest(widest) {
        dh[0] = scratch, dh[1] = dh[0] + chunk * widest, x = dh[1] + chunk * widest, sums = x + chunk * widest;
    }
    static long length(long widest, long chunk, long ranks) { return 3 * widest * (chunk + ranks); }
    Sums sums_of(long rank) const {
        float* own = sums + 3 * rank * widest;
        return {own, own + widest, own + 2 * widest};
    }
};

// to (+)= Σ_r from_r, in the order of the ranks.
static void add_sums(float* to_H, const float* from_H, long distance, long ranks, Range columns, bool add) {
    for (long j = columns.begin; j < columns.end; j++) {
        float total = from_H[j];
        for (long rank = 1; rank < ranks; rank++) total += from_H[rank * distance + j];
        to_H[j] = add ? to_H[j] + total : total;
    }
}

// dh_i to dh_{i−1}: returns the latter. Writes the gradients of W_i and of the norm and bias below it.
static float* backward_layer(const Batch& batch, Chunk at, Crew crew, long i, const float* dh, const Room& room,
                             float* grad_P, Write write) {
    const Chain& chain = batch.chain;
    const long in = chain.width[i], out = chain.width[i + 1];
    const float* theta_P = batch.theta(at.expert);
    float* below = room.dh[i & 1];
    const Range own = crew.share(in, SLAB);
    const Right w{theta_P + chain.weight[i] + own.begin, in};
    product(at.count, own.size(), out, {dh, out, 1}, w, {below + own.begin, in, Write::set});
    crew.wait();
    const Norm norm = chain.norm(i - 1, theta_P);
    const Stats* stats = batch.stats_row(i - 1, at.first);
    const float* h = batch.h_row(i - 1, at.first);
    const Range rows = crew.share(at.count);
    std::fill_n(room.sums_of(crew.rank).db_H, 3 * room.widest, 0.0f);
    norm_gelu_rows_backward(rows.size(), below + rows.begin * in, h + rows.begin * in, stats + rows.begin, norm,
                            room.x + rows.begin * in, room.sums_of(crew.rank));
    crew.wait();
    const Range outs = crew.share(out, TILE_ROWS);
    const Out dw{grad_P + chain.weight[i] + outs.begin * in, in, write};
    outer_product(outs.size(), in, at.count, {dh + outs.begin, 1, out}, {room.x, in}, dw);
    const Range columns = crew.share(in, LANES);
    const Sums sums = room.sums_of(0);
    const bool add = write == Write::add;
    add_sums(grad_P + chain.bias[i - 1], sums.db_H, 3 * room.widest, crew.size, columns, add);
    add_sums(grad_P + chain.gamma[i - 1], sums.dgamma_H, 3 * room.widest, crew.size, columns, add);
    add_sums(grad_P + chain.beta[i - 1], sums.dbeta_H, 3 * room.widest, crew.size, columns, add);
    crew.wait();
    return below;
}

// Writes the chunk's gradients to grad_P or adds them, and dx_NI where it is wanted.
static void backward_chunk(const Batch& batch, Chunk at, Crew crew, const float* dy_NO, const Room& room, float* grad_P,
                           Write write, float* dx_NI) {
    const Chain& chain = batch.chain;
    const long in = chain.width[0], out = chain.width[1], outputs = chain.width[chain.layers + 1];
    const float* dh = dy_NO + at.first * outputs;
    const Range own = crew.share(outputs, LANES);
    for (long j = own.begin; j < own.end; j++) {
        float total = 0;
        for (long r = 0; r < at.count; r++) total += dh[r * outputs + j];
        float& db = grad_P[chain.bias[chain.layers] + j];
        db = write == Write::add ? db + total : total;
    }
    for (long i = chain.layers; i > 0; i--) dh = backward_layer(batch, at, crew, i, dh, room, grad_P, write);
    const Range outs = crew.share(out, TILE_ROWS), ins = crew.share(in, SLAB);
    const Right x{batch.x_NI + at.first * in, in}, w{batch.theta(at.expert) + chain.weight[0] + ins.begin, in};
    const Out dw{grad_P + chain.weight[0] + outs.begin * in, in, write};
    outer_product(outs.size(), in, at.count, {dh + outs.begin, 1, out}, x, dw);
    if (dx_NI)
        product(at.count, ins.size(), out, {dh, out, 1}, w, {dx_NI + at.first * in + ins.begin, in, Write::set});
    crew.wait();
}

static bool whole_experts(long rows, long experts) { return experts > 1 && rows <= WHOLE; }

// Where the rows of thread t begin: an equal part, or at an expert's first row where that is near.
static long share_begin(const Batch& batch, long t, long threads) {
    const long even = batch.rows() * t / threads;
    long best = even, near = SNAP;
    for (long e = 0; e <= batch.experts && 0 < t && t < threads; e++)
        if (const long off = std::abs(batch.offset_F[e] - even); off <= near) best = batch.offset_F[e], near = off;
    return best;
}

static Range share(const Batch& batch, long t, long threads) {
    return {share_begin(batch, t, threads), share_begin(batch, t + 1, threads)};
}

// How many rows the busiest thread has.
static long busiest(const Batch& batch, const std::vector<long>& owner, long threads) {
    std::vector<long> rows(threads);
    for (long e = 0; e < batch.experts; e++) rows[owner[e]] += batch.rows(e);
    return *std::max_element(rows.begin(), rows.end());
}

// The thread of each expert, where they are whole: neighbours, since their parameters are updated by one thread too;
// but where that leaves threads idle, the busiest expert first, each to whom has the fewest rows so far.
static std::vector<long> owners(const Batch& batch, long threads) {
    std::vector<long> near(batch.experts), even(batch.experts), order(batch.experts), given(threads);
    for (long e = 0; e < batch.experts; e++)
        near[e] = std::min(threads - 1, (batch.offset_F[e] + batch.offset_F[e + 1]) * threads / (2 * batch.rows()));
    std::iota(order.begin(), order.end(), 0L);
    std::stable_sort(order.begin(), order.end(), [&](long a, long b) { return batch.rows(a) > batch.rows(b); });
    for (long e : order) {
        even[e] = std::min_element(given.begin(), given.end()) - given.begin();
        given[even[e]] += batch.rows(e);
    }
    return busiest(batch, near, threads) - busiest(batch, even, threads) < SNAP ? near : even;
}

// f(chunk) for the rows of one thread, of several that do not share chunks.
template <class F>
static void each_own_chunk(const Batch& batch, Crew all, F f) {
    if (all.size == 1 || !whole_experts(batch.rows(), batch.experts))
        return each_chunk(batch, share(batch, all.rank, all.size), f);
    const std::vector<long> owner = owners(batch, all.size);
    for (long e = 0; e < batch.experts; e++)
        if (owner[e] == all.rank) each_chunk(batch, {batch.offset_F[e], batch.offset_F[e + 1]}, f);
}

static long crew_size(const Batch& batch, long threads) {
    return batch.chain.together ? threads : crew_size(batch.rows(), FEWEST, threads);
}

// before(chunk, crew) comes before the forward of each chunk.
template <class F>
static void experts_forward(const Batch& batch, float* scratch, float* y_NO, long threads, F before) {
    in_parallel(crew_size(batch, threads), [&](Crew all) {
        const bool together = batch.chain.together;
        const Crew crew = together ? all : Crew{0, 1};
        float* x_CH = together ? scratch : scratch + all.rank * batch.chunk() * batch.chain.widest();
        const auto forward = [&](Chunk at) {
            before(at, crew);
            forward_chunk(batch, at, crew, x_CH, y_NO);
        };
        together ? each_chunk(batch, {0, batch.rows()}, forward) : each_own_chunk(batch, all, forward);
    });
}

// Where a backward's gradients go.
struct Gradients {
    float* out_EP;
    long row;
    bool accumulate;
};

// An expert without rows has a gradient of zero.
static void zero_starved(const Batch& batch, Crew all, const Gradients& grads) {
    for (long e = all.rank; e < batch.experts && !grads.accumulate; e += all.size)
        if (batch.offset_F[e] == batch.offset_F[e + 1])
            batch.chain.each_parameter(
                [&](long where, long length) { std::fill_n(grads.out_EP + e * grads.row + where, length, 0.0f); });
}

static Write first_write(const Batch& batch, const Gradients& grads) {
    if (grads.accumulate) return Write::add;
    return batch.chain.together && batch.experts * batch.chain.length >= STREAM ? Write::stream : Write::set;
}

// All threads on each chunk.
static void backward_together(const Batch& batch, Crew all, const float* dy_NO, float* scratch, const Gradients& grads,
                              float* dx_NI) {
    const Room room(scratch, batch.chain.widest(), batch.chunk());
    each_chunk(batch, {0, batch.rows()}, [&](Chunk at) {
        const Write write = at.first == batch.offset_F[at.expert] ? first_write(batch, grads) : Write::add;
        backward_chunk(batch, at, all, dy_NO, room, grads.out_EP + at.expert * grads.row, write, dx_NI);
    });
}

// to_P += from_P, each thread a part of it.
static void add_parameters(const Chain& chain, Crew all, float* to_P, const float* from_P) {
    chain.each_parameter([&](long where, long count) {
        const Range own = all.share(count, LANES);
        for (long j = where + own.begin; j < where + own.end; j++) to_P[j] += from_P[j];
    });
}

// Each thread on its own rows. One that begins within an expert keeps that expert's gradients apart; they are added
// when all are done, in the order of the threads.
static void backward_apart(const Batch& batch, Crew all, const float* dy_NO, float* scratch, const Gradients& grads,
                           float* dx_NI) {
    const int64_t* offset_F = batch.offset_F;
    const long widest = batch.chain.widest(), room_length = Room::length(widest, batch.chunk(), 1);
    const auto room = [&](long rank) { return scratch + rank * room_length; };
    const auto apart = [&](long rank) { return room(all.size) + (rank - 1) * batch.chain.length; };
    const bool whole = whole_experts(batch.rows(), batch.experts);
    const Range rows = whole ? Range{0, batch.rows()} : share(batch, all.rank, all.size);
    each_own_chunk(batch, all, [&](Chunk at) {
        const bool within = offset_F[at.expert] < rows.begin;
        const bool first = at.first == std::max<long>(offset_F[at.expert], rows.begin);
        const Write write = !first ? Write::add : within ? Write::set : first_write(batch, grads);
        float* grad_P = within ? apart(all.rank) : grads.out_EP + at.expert * grads.row;
        backward_chunk(batch, at, {0, 1}, dy_NO, Room(room(all.rank), widest, batch.chunk()), grad_P, write, dx_NI);
    });
    all.wait();
    for (long rank = 1; !whole && rank < all.size; rank++) {
        const Range other = share(batch, rank, all.size);
        const long e = std::upper_bound(offset_F, offset_F + batch.experts + 1, other.begin) - offset_F - 1;
        if (other.size() && offset_F[e] < other.begin)
            add_parameters(batch.chain, all, grads.out_EP + e * grads.row, apart(rank));
    }
}

static void experts_backward(const Batch& batch, const float* dy_NO, float* scratch, const Gradients& grads,
                             float* dx_NI, long threads) {
    in_parallel(crew_size(batch, threads), [&](Crew all) {
        zero_starved(batch, all, grads);
        const auto backward = batch.chain.together ? backward_together : backward_apart;
        backward(batch, all, dy_NO, scratch, grads, dx_NI);
    });
}

// Floats that a forward or a backward works in.
static long experts_scratch(const Chain& chain, long rows, long experts, long threads) {
    const long widest = chain.widest(), chunk = chunk_of(rows, experts);
    if (chain.together) return Room::length(widest, chunk, threads);
    const long apart = whole_experts(rows, experts) ? 0 : threads - 1;
    return threads * Room::length(widest, chunk, 1) + apart * chain.length;
}
