// Vectors of floats: as wide as the machine's registers, in GCC's vector extension.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));
typedef vec unaligned_vec __attribute__((aligned(4), may_alias));

#define UNROLL _Pragma("GCC unroll 16")
#define INLINE static inline __attribute__((always_inline))

INLINE ivec lane_numbers() {
    ivec lanes;
    UNROLL for (int i = 0; i < LANES; i++) lanes[i] = i;
    return lanes;
}

// How much of a vector is inside its row: all of it, or the first `count` lanes. Lanes outside are read as zero.
struct Full {};
struct Part {
    long count;
};

INLINE vec load(const float* p, Full = {}) { return *reinterpret_cast<const unaligned_vec*>(p); }
INLINE void store(float* p, vec v, Full = {}) { *reinterpret_cast<unaligned_vec*>(p) = v; }
INLINE vec inside(vec v, Full) { return v; }

#if defined(__AVX512F__)
INLINE __mmask16 mask(Part part) { return static_cast<__mmask16>((1u << part.count) - 1); }
INLINE vec load(const float* p, Part part) { return reinterpret_cast<vec>(_mm512_maskz_loadu_ps(mask(part), p)); }
INLINE void store(float* p, vec v, Part part) { _mm512_mask_storeu_ps(p, mask(part), reinterpret_cast<__m512>(v)); }
#else
INLINE vec load(const float* p, Part part) {
    float lanes[LANES] = {};
    std::memcpy(lanes, p, part.count * sizeof(float));
    return load(lanes);
}
INLINE void store(float* p, vec v, Part part) {
    float lanes[LANES];
    store(lanes, v);
    std::memcpy(p, lanes, part.count * sizeof(float));
}
#endif
INLINE vec inside(vec v, Part part) { return lane_numbers() < static_cast<int32_t>(part.count) ? v : vec{}; }

// f(j, Full or Part) for each vector of a row.
template <class F>
INLINE void each_vector(long width, F f) {
    long j = 0;
    for (; j + LANES <= width; j += LANES) f(j, Full{});
    if (j < width) f(j, Part{width - j});
}

INLINE float sum(vec v) {
    UNROLL for (int half = LANES / 2; half; half /= 2) v += __builtin_shuffle(v, lane_numbers() ^ half);
    return v[0];
}

// Comparisons are false for NaN, which therefore passes.
INLINE vec at_most(vec v, float bound) { return v > bound ? vec{} + bound : v; }
INLINE vec at_least(vec v, float bound) { return v < bound ? vec{} + bound : v; }

// 2ᶠ⁺ⁿ for |f| ≤ ½ and integers n of −126..127, to 1 ulp. `shifted` is n + ROUNDER: its low bits hold n, which moved to
// the exponent makes 2ⁿ. NaN passes.
constexpr float ROUNDER = 12582912.0f;  // 1.5·2²³: a float added to it is rounded to an integer
INLINE vec power_of_two(vec f, vec shifted) {
    vec p = f * 1.535334426e-4f + 1.339887368e-3f;
    p = p * f + 9.618437423e-3f;
    p = p * f + 5.550332473e-2f;
    p = p * f + 2.402264791e-1f;
    p = p * f + 6.931472029e-1f;
    const ivec exponent = (reinterpret_cast<ivec>(shifted) + 127) << 23;
    return (p * f + 1.0f) * reinterpret_cast<vec>(exponent);
}

// 2ˣ for x in [−126, 127].
INLINE vec exp2(vec x) {
    const vec shifted = x + ROUNDER;
    return power_of_two(x - (shifted - ROUNDER), shifted);
}

// eˣ for x in [−87, 88]: x = n·ln 2 + r, where n·ln 2 is taken off in two parts, the first without rounding.
INLINE vec exp(vec x) {
    const vec shifted = x * 1.44269504f + ROUNDER, n = shifted - ROUNDER;
    const vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    return power_of_two(r * 1.44269504f, shifted);
}

// 1/x for x of 1 to 10³⁸, to 1 ulp.
INLINE vec reciprocal(vec x) {
#if defined(__AVX512F__)
    const vec guess = reinterpret_cast<vec>(_mm512_rcp14_ps(reinterpret_cast<__m512>(x)));
    return guess + guess * (1.0f - x * guess);
#else
    return 1.0f / x;
#endif
}

INLINE vec square_root(vec x) {
#if defined(__AVX512F__)
    return reinterpret_cast<vec>(_mm512_sqrt_ps(reinterpret_cast<__m512>(x)));
#else
    UNROLL for (int i = 0; i < LANES; i++) x[i] = std::sqrt(x[i]);
    return x;
#endif
}
