// Threads that share work. Who does what depends on their number alone, so the bits do too.
#pragma once

#include <omp.h>

#include <algorithm>

struct Range {
    long begin, end;
    long size() const { return end - begin; }
};

struct Crew {
    long rank, size;

    void wait() const {
        if (size > 1) {
#pragma omp barrier
        }
    }
    // This one's part of 0..total, in whole units.
    Range share(long total, long unit = 1) const {
        const long units = (total + unit - 1) / unit;
        return {std::min(total, units * rank / size * unit), std::min(total, units * (rank + 1) / size * unit)};
    }
};

// How many threads are worth their start, where each has at least `fewest` items.
static inline long crew_size(long items, long fewest, long threads) { return std::clamp(items / fewest, 1L, threads); }

// f(crew) in each of `threads` threads.
template <class F>
static void in_parallel(long threads, F f) {
    if (threads == 1) return f(Crew{0, 1});
#pragma omp parallel num_threads(threads)
    f(Crew{omp_get_thread_num(), omp_get_num_threads()});
}
