// The kernels as plain C functions, which Python calls through ctypes.
#include "adamw.h"
#include "cross_entropy.h"
#include "dispatch.h"
#include "experts.h"
#include "ffn.h"
#include "lesson.h"
#include "mixture.h"
#include "norm_gelu.h"
#include "reading.h"
#include "route.h"

extern "C" {

int64_t gradproof_experts_scratch(const int64_t* chain, int64_t rows, int64_t experts, int64_t threads) {
    return experts_scratch(Chain(chain), rows, experts, threads);
}

void gradproof_experts_forward(const int64_t* chain, const float* x_NI, const float* theta_EP, int64_t theta_row,
                               const int64_t* offset_F, int64_t experts, float* kept, float* scratch, float* y_NO,
                               int64_t threads) {
    const Chain shape(chain);
    const Batch batch{shape, x_NI, theta_EP, theta_row, offset_F, experts, kept};
    experts_forward(batch, scratch, y_NO, threads, [](Chunk, Crew) {});
}

void gradproof_experts_backward(const int64_t* chain, const float* x_NI, const float* theta_EP, int64_t theta_row,
                                const int64_t* offset_F, int64_t experts, float* kept, float* scratch,
                                const float* dy_NO, float* out_EP, int64_t out_row, int64_t accumulate, float* dx_NI,
                                int64_t threads) {
    const Chain shape(chain);
    const Batch batch{shape, x_NI, theta_EP, theta_row, offset_F, experts, kept};
    experts_backward(batch, dy_NO, scratch, {out_EP, out_row, accumulate != 0}, dx_NI, threads);
}

void gradproof_norm_gelu_forward(const float* h_TH, const float* b_H, const float* gamma_H, const float* beta_H,
                                 int64_t active, int64_t T, int64_t H, float* y_TH, int64_t threads) {
    norm_gelu_forward(h_TH, {b_H, gamma_H, beta_H, H, active != 0}, T, y_TH, threads);
}

void gradproof_norm_gelu_backward(const float* dy_TH, const float* h_TH, const float* b_H, const float* gamma_H,
                                  const float* beta_H, int64_t active, int64_t T, int64_t H, float* dh_TH, float* db_H,
                                  float* dgamma_H, float* dbeta_H, int64_t threads) {
    const Norm norm{b_H, gamma_H, beta_H, H, active != 0};
    norm_gelu_backward(dy_TH, h_TH, norm, T, dh_TH, {db_H, dgamma_H, dbeta_H}, threads);
}

void gradproof_ffn_forward(const float* h_TF, const float* b_F, int64_t T, int64_t F, float* a_TF, int64_t threads) {
    ffn_forward(h_TF, b_F, T, F, a_TF, threads);
}

void gradproof_ffn_backward(float* d_TF, float* h_TF, const float* b_F, int64_t T, int64_t F, float* db_F,
                            int64_t threads) {
    ffn_backward(d_TF, h_TF, b_F, T, F, db_F, threads);
}

int64_t gradproof_reading_forward(const int64_t* token_BS, int64_t B, int64_t S, const float* theta_P,
                                  const int64_t* numbers, float* y_BO, int64_t threads) {
    return reading_forward(token_BS, B, S, theta_P, numbers, y_BO, threads);
}

void gradproof_route_forward(const float* z_TE, const float* c_E, int64_t T, int64_t E, int64_t K, int64_t sigmoid,
                             int64_t renormalise, double balance, double z_loss, int64_t rows,
                             const int64_t* whole_load_E, float* q_TE, float* gates_TE, int64_t* index_TK,
                             float* share_E, float* aux, int64_t threads) {
    const Routing routing{K, sigmoid != 0, renormalise != 0, balance, z_loss};
    route_forward(z_TE, c_E, T, E, routing, rows, whole_load_E, {q_TE, gates_TE, index_TK}, share_E, aux, threads);
}

void gradproof_route_backward(const float* dgates_TE, const float* daux, const float* z_TE, float* q_TE,
                              float* gates_TE, int64_t* index_TK, const float* share_E, int64_t T, int64_t E,
                              int64_t K, int64_t sigmoid, int64_t renormalise, double balance, double z_loss,
                              int64_t rows, float* dz_TE, int64_t threads) {
    const Routing routing{K, sigmoid != 0, renormalise != 0, balance, z_loss};
    const Routed saved{q_TE, gates_TE, index_TK};
    route_backward(dgates_TE, *daux, z_TE, saved, share_E, T, E, routing, rows, dz_TE, threads);
}

int64_t gradproof_dispatch_plan(const int64_t* index_N, int64_t N, int64_t E, int64_t* slot_N, int64_t* row_N,
                                int64_t* offset_F) {
    return dispatch_plan(index_N, N, E, slot_N, row_N, offset_F);
}

void gradproof_dispatch_forward(const float* x_TI, const int64_t* slot_N, int64_t N, int64_t K, int64_t I,
                                float* rows_NI, int64_t threads) {
    dispatch_forward(x_TI, slot_N, N, K, I, rows_NI, threads);
}

void gradproof_dispatch_backward(const float* drows_NI, const int64_t* row_TK, int64_t T, int64_t K, int64_t I,
                                 float* dx_TI, int64_t threads) {
    dispatch_backward(drows_NI, row_TK, T, K, I, dx_TI, threads);
}

void gradproof_combine_forward(const float* rows_NO, const float* gates_TE, const int64_t* index_TK,
                               const int64_t* row_TK, int64_t T, int64_t E, int64_t K, int64_t O, float* y_TO,
                               int64_t threads) {
    combine_forward(rows_NO, gates_TE, index_TK, row_TK, T, E, K, O, y_TO, threads);
}

void gradproof_combine_backward(const float* dy_TO, const float* rows_NO, const float* gates_TE,
                                const int64_t* index_TK, const int64_t* row_TK, int64_t T, int64_t E, int64_t K,
                                int64_t O, float* drows_NO, float* dgates_TE, int64_t threads) {
    combine_backward(dy_TO, rows_NO, gates_TE, index_TK, row_TK, T, E, K, O, drows_NO, dgates_TE, threads);
}

int64_t gradproof_cross_entropy_forward(const float* z_TC, const int64_t* target_T, const float* weight_C,
                                        int64_t given, double total, const int64_t* ignore, int64_t T, int64_t C,
                                        float* scale_T, float* loss, int64_t threads) {
    return cross_entropy_forward(z_TC, target_T, weight_C, given ? &total : nullptr, ignore, T, C, scale_T, loss,
                                 threads);
}

void gradproof_cross_entropy_backward(const float* dloss, const float* scale_T, const float* z_TC,
                                      const int64_t* target_T, int64_t T, int64_t C, float* dz_TC, int64_t threads) {
    cross_entropy_backward(*dloss, scale_T, z_TC, target_T, T, C, dz_TC, threads);
}

void gradproof_adamw_step(float* p_P, const float* g_P, float* m_P, float* v_P, const bool* decayed_B, int64_t blocks,
                          const float* count, const float* rate, const float* divisor, const float* skip, double beta1,
                          double beta2, double eps, double decay, int64_t threads) {
    if (skip && *skip > 0) return;
    const AdamW adamw(*count, *rate, divisor ? *divisor : 1.0, beta1, beta2, eps, decay);
    adamw_step(p_P, g_P, m_P, v_P, decayed_B, blocks, adamw, threads);
}

double gradproof_adamw_norm(const float* g_P, int64_t P, int64_t threads) {
    return std::sqrt(sum_of_squares(g_P, P, threads));
}

void gradproof_update_step(float* p_P, const float* g_P, float* m_P, float* v_P, const bool* decayed_B, int64_t blocks,
                           float* count, float* skips, const float* rate, const float* scale, const float* loss,
                           double clip, double beta1, double beta2, double eps, double decay, float* norm,
                           float* skipped, int64_t threads) {
    const Ending given{*rate, *scale, *loss, clip, beta1, beta2, eps, decay};
    update_step(p_P, g_P, m_P, v_P, decayed_B, blocks, given, count, skips, norm, skipped, threads);
}

// [floats and integers of a tape, floats that a forward works in, and a backward with dx].
void gradproof_mixture_sizes(const int64_t* mixture, int64_t T, int64_t K, int64_t threads, int64_t* sizes) {
    const Mixture of(mixture, {K, false, false, 0, 0});
    const Tape tape(of, T, nullptr, nullptr);
    sizes[0] = tape.floats, sizes[1] = tape.integers;
    for (int64_t want_dx : {0, 1}) sizes[2 + want_dx] = MixtureRoom(of, T, want_dx, threads, nullptr).floats;
}

void gradproof_mixture_forward(const int64_t* mixture, int64_t K, int64_t sigmoid, int64_t renormalise, double balance,
                               double z_loss, const float* x_TI, const float* theta_P, const float* c_E, int64_t T,
                               int64_t rows, const int64_t* whole_load_E, float* floats, int64_t* integers, float* work,
                               float* y_TO, float* q_TE, float* gates_TE, float* aux, int64_t* load_E,
                               int64_t threads) {
    const Mixture of(mixture, {K, sigmoid != 0, renormalise != 0, balance, z_loss});
    const MixtureRoom room(of, T, false, threads, work);
    const MixtureOut out{y_TO, q_TE, gates_TE, aux, load_E};
    mixture_forward(of, x_TI, theta_P, c_E, T, rows, whole_load_E, Tape(of, T, floats, integers), room, out, threads);
}

void gradproof_mixture_backward(const int64_t* mixture, int64_t K, int64_t sigmoid, int64_t renormalise, double balance,
                                double z_loss, const float* dy_TO, const float* dgates_TE, const float* daux,
                                const float* x_TI, const float* theta_P, int64_t T, int64_t rows, float* floats,
                                int64_t* integers, float* q_TE, float* work, float* out_P, int64_t accumulate,
                                float* dx_TI, int64_t threads) {
    const Mixture of(mixture, {K, sigmoid != 0, renormalise != 0, balance, z_loss});
    const MixtureRoom room(of, T, dx_TI != nullptr, threads, work);
    mixture_backward(of, dy_TO, dgates_TE, *daux, x_TI, theta_P, T, rows, Tape(of, T, floats, integers), q_TE, room,
                     out_P, accumulate != 0, dx_TI, threads);
}

// How many threads take a call of the experts, whether they share each product, whether experts are whole, whether
// gradients are streamed past the caches, the rows of a chunk, and whether an expert can have several.
void gradproof_experts_path(const int64_t* chain, int64_t rows, int64_t experts, int64_t threads, int64_t* path) {
    const Chain shape(chain);
    std::vector<int64_t> offset(experts + 1, rows);
    const Batch batch{shape, nullptr, nullptr, 0, offset.data(), experts, nullptr};
    path[0] = crew_size(batch, threads), path[1] = shape.together, path[2] = whole_experts(rows, experts);
    path[3] = first_write(batch, {nullptr, 0, false}) == Write::stream;
    path[4] = batch.chunk(), path[5] = rows > batch.chunk();
}

// How many threads share so much work of a kind: parameters, logits, floats that are moved, rows of a router, of a
// norm, sequences.
int64_t gradproof_crew(int64_t kind, int64_t items, int64_t threads) {
    const long fewest[] = {FEWEST_BLOCKS * BLOCK, FEWEST_LOGITS, FEWEST_FLOATS, FEWEST_ROUTED, FEWEST_ROWS, 1};
    return crew_size(items, fewest[kind], threads);
}

// `numbers` are loss, norm, entropy and skipped.
int64_t gradproof_lesson_step(const int64_t* mixture, int64_t K, int64_t sigmoid, int64_t renormalise, double balance,
                              double z_loss, float* p_P, float* g_P, float* m_P, float* v_P, const bool* decayed_B,
                              int64_t blocks, float* count, float* skips, const float* rate, const float* scale,
                              double clip, double beta1, double beta2, double eps, double decay, const float* x_TI,
                              const int64_t* target_T, const float* c_E, int64_t T, float* floats, int64_t* integers,
                              float* work, float* y_TO, float* dy_TO, float* scale_T, float* q_TE, float* gates_TE,
                              int64_t* load_E, float* numbers, int64_t threads) {
    const Mixture of(mixture, {K, sigmoid != 0, renormalise != 0, balance, z_loss});
    const State state{p_P, g_P, m_P, v_P, decayed_B, blocks, count, skips};
    const Ending given{*rate, *scale, 0, clip, beta1, beta2, eps, decay};
    const Report out{y_TO,   dy_TO,   scale_T,     q_TE,        gates_TE,
                     load_E, numbers, numbers + 1, numbers + 2, numbers + 3};
    return lesson_step(of, state, given, x_TI, target_T, c_E, T, Tape(of, T, floats, integers),
                       MixtureRoom(of, T, false, threads, work), out, threads);
}
}
