// One forward pass of a Llama-like decoder: what the caller gives. Knows no instruction set.

#pragma once

#include "attention_job.h"
#include "linear_weights.h"

struct DecoderLayer {
    const float *before_attention;     // [d], scale of the norm
    const float *before_feed_forward;  // [d]
    const float *head_scale;           // [query heads + KV heads, size], norms of queries and keys; null without
    Weights query_key_value;           // d -> (query heads + 2 KV heads) * size
    Weights attention_output;          // query heads * size -> d
    Weights gate, up;                  // d -> hidden
    Weights down;                      // hidden -> d
    int64_t window;                    // positions a row sees at most, itself included; 0: all
    float scale;                       // on the attention's scores
    float reserved;
};

struct DecoderModel {
    const DecoderLayer *layers;
    int64_t layer_count;
    const float *final_scale;          // [d]
    Weights output;                    // d -> vocabulary
    int64_t width, heads, kv_heads, size, hidden;
    float epsilon;
    float reserved;
};

// Which of OpenMP's threads runs, and of how many: the runtime may give fewer than asked for.
typedef int ThreadQuestion();

struct DecoderPass {
    const DecoderModel *model;
    float *states;                     // [rows, d]: the embedded tokens, and at the end the last layer's output
    const float *cosine, *sine;        // [rows, size / 2]
    void *const *keys, *const *values; // by layer, [KV heads, capacity, size]
    int64_t key_head, key_row, value_head, value_row;  // strides in elements, of all layers
    const uint8_t *visibility;         // [rows, rows]; null: causal order
    int64_t rows, prefix;
    float *queries;                    // [layers, query heads, rows, size], rotated; null: not wanted
    float *logits;                     // [logits_rows, vocabulary] of the last rows
    int64_t logits_rows;
    void *workspace;
    int64_t workspace_bytes;
    Parallel *parallel;                // as in Call; null: the calling thread alone
    ThreadQuestion *thread_number, *thread_count;
    int32_t half;                      // keys and values are float16
    int32_t threads;
    int32_t instructions;              // -1: the best this processor has
};

// A meeting of all threads between two phases of a pass.
struct Barrier {
    int64_t arrived, generation;
};

struct DecoderLayout {
    int64_t projected, attended, activated;           // shared: [rows, ...]
    int64_t counters;                                 // of the phases
    int64_t attention;                                // workspace of the attention
    int64_t scratch, scratch_size;                    // per thread
    int64_t normed, sums, gate, up, linear;           // inside a thread's scratch
    int64_t total;
};

struct DecoderJob {
    DecoderPass pass;
    DecoderLayout layout;
    float *memory;
    Job attention;
    Barrier barrier;

    float *at(int64_t offset) const { return memory + offset; }
    int64_t *counter(int64_t phase) const { return (int64_t *)at(layout.counters) + phase; }
};

#define PHASES_PER_LAYER 4  // those that share work by a counter
#define PIECE_PANELS 8      // most panels of a matrix that a thread takes at once; a multiple of GROUP_PANELS
