// One call of the attention: what the caller gave and what the threads share. Knows no instruction set.

#pragma once

#include <stdint.h>
#include <string.h>

#define INLINE TARGET static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

// The order of all sums follows from these two and from the keys' positions, never from the number of rows,
// threads, or lanes. Changing either changes results in the last bits.
#define SEGMENT_KEYS 512  // partial results are merged at multiples of this
#define BLOCK_KEYS 64     // one step of the running softmax; divides SEGMENT_KEYS
#define SUM_LANES 16      // the weights of a block are summed in so many lanes, on any processor

typedef void Parallel(void (*work)(void *), void *data, unsigned threads, unsigned flags);

// Strides count elements; the elements of a row lie side by side.
struct Call {
    const float *query;                      // [KV heads, group, rows, key size]
    int64_t query_head, query_group, query_row;
    const void *keys, *values;               // [KV heads, capacity, key size or value size]
    int64_t key_head, key_row, value_head, value_row;
    float *output;                           // [KV heads, group, rows, value size]
    int64_t output_head, output_group, output_row;
    const uint8_t *visibility;               // [rows, rows], which new row sees which; null: causal order
    int64_t kv_heads, group, rows, key_size, value_size;
    int64_t prefix;                          // rows of the cache before the new ones
    int64_t window;                          // positions a row sees at most, itself included; 0: all
    void *workspace;
    int64_t workspace_bytes;
    Parallel *parallel;                      // GOMP_parallel of the program's OpenMP; null: no threads
    float scale;
    int32_t half;                            // keys and values are float16, not float32
    int32_t threads;
    int32_t instructions;                    // -1: the best this processor has
};

// How the workspace is divided, in floats from its start, each part a whole number of cache lines.
struct Layout {
    int64_t value_width, tail_width;                     // padded value size, padded number of new rows
    int64_t first_segment, segments;
    int64_t scaled, path, seen, first, remaining;        // shared
    int64_t sums, peaks, totals;                         // per head and segment, each row's partial result
    int64_t scratch, scratch_size;                       // per thread
    int64_t block_keys, block_values, tail_scores, tail_values, lanes, staging;  // inside a thread's scratch
    int64_t total;
};

struct Job {
    Call call;
    Layout layout;
    float *memory;
    int64_t folded;         // group * rows
    int64_t longest;        // positions that the deepest row sees
    int64_t earliest;       // first position that any row sees
    int64_t latest;         // first position that every row sees, as far as its window goes
    int64_t next;           // next piece of work
    int64_t entered;        // threads at work so far

    float *at(int64_t offset) const { return memory + offset; }
    float *scaled(int64_t head) const { return at(layout.scaled) + head * folded * call.key_size; }
    int32_t *path(int64_t row) const { return (int32_t *)at(layout.path) + row * call.rows; }
    int64_t *seen() const { return (int64_t *)at(layout.seen); }
    int64_t *first() const { return (int64_t *)at(layout.first); }
    int64_t *remaining() const { return (int64_t *)at(layout.remaining); }
    int64_t part(int64_t head, int64_t segment) const { return (head * layout.segments + segment) * folded; }
};

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t bigger(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t round_up(int64_t x, int64_t step) { return (x + step - 1) / step * step; }
