// A matrix packed for multiplication by few rows, and one call of it. Knows no instruction set.
//
// 16 outputs stand side by side in a panel, so that lanes run across outputs. Inputs come in blocks:
//
//   Singles, Halves, Brains   [panel][k][16] float32, float16, bfloat16
//   Nibbles                   [panel][block] of 16 scales, 16 minima (if any), then for every 8 inputs 16 words of
//                             32 bits, bits 4j to 4j + 3 of word o the level of output o and the j-th input
//   Bytes                     [panel][block] of 16 scales, 16 minima (if any), then [k][16] int8 levels
//
// A weight of the last two is scale * level + minimum, scales and minima float32. Panels are stored in whole groups,
// what no output fills is zero. SPARE_BYTES follow, because a kernel may read a little further than it looks.

#pragma once

#include "attention_job.h"

enum class Format : int32_t { SINGLES, HALVES, BRAINS, NIBBLES, BYTES };

#define PANEL 16
#define GROUP_PANELS 4
#define SPARE_BYTES 64

// A sum over inputs is a sum over blocks of sums over a block, both in ascending order. Changing this changes results
// in the last bits. The formats with scales have blocks of their own, 16 or 32.
#define PLAIN_BLOCK 32

struct Weights {
    const void *data;       // packed, best at a multiple of 64
    const float *bias;      // [outputs], or null
    int64_t outputs, inputs;
    Format format;
    int32_t block;          // inputs that share a scale; unused without scales
    int32_t has_minimum;    // of Nibbles and Bytes: else all minima are zero, and not stored
    int32_t reserved;
};

static inline bool has_scales(const Weights &weights) {
    return weights.format == Format::NIBBLES || weights.format == Format::BYTES;
}

static inline int64_t block_length(const Weights &weights) {
    return has_scales(weights) ? weights.block : PLAIN_BLOCK;
}

// How many sums block_sums makes of a row.
static inline int64_t block_count(const Weights &weights) {
    return weights.has_minimum && has_scales(weights) ? weights.inputs / weights.block : 0;
}

static inline int64_t panel_count(const Weights &weights) { return (weights.outputs + PANEL - 1) / PANEL; }

// Bytes of 8 inputs of a panel.
static inline int64_t eight_bytes(Format format) {
    const int64_t bits[] = {32, 16, 16, 4, 8};
    return bits[(int)format] * PANEL;
}

// Bytes of the scales and minima in front of a block's levels.
static inline int64_t scale_bytes(const Weights &weights) {
    if (!has_scales(weights)) return 0;
    return (int64_t)sizeof(float) * PANEL * (weights.has_minimum ? 2 : 1);
}

static inline int64_t panel_bytes(const Weights &weights) {
    if (!has_scales(weights)) return eight_bytes(weights.format) * weights.inputs / 8;
    int64_t block = scale_bytes(weights) + eight_bytes(weights.format) * weights.block / 8;
    return weights.inputs / weights.block * block;
}

static inline int64_t stored_panels(const Weights &weights) {
    return round_up(panel_count(weights), GROUP_PANELS);
}

static inline int64_t packed_bytes(const Weights &weights) {
    return stored_panels(weights) * panel_bytes(weights) + SPARE_BYTES;
}

static inline bool is_sound(const Weights &weights) {
    if (weights.outputs < 1 || weights.inputs < 1) return false;
    if ((int)weights.format < 0 || weights.format > Format::BYTES) return false;
    if (!has_scales(weights)) return true;
    return (weights.block == 16 || weights.block == 32) && weights.inputs % weights.block == 0;
}

// y = x W^T + bias, or y += that. Strides count elements; the elements of a row lie side by side.
struct LinearCall {
    const Weights *weights;
    const float *x;             // [rows, inputs]
    int64_t x_stride, rows;
    float *y;                   // [rows, outputs]
    int64_t y_stride;
    void *workspace;
    int64_t workspace_bytes;
    Parallel *parallel;         // as in Call
    int32_t threads;
    int32_t add;
    int32_t instructions;       // -1: the best this processor has
    int32_t reserved;
};

// How a multiplication is cut; none of it changes a bit of the result. GROUP_PANELS are stored and worked on together,
// enough sums to wait for none.
#define STRETCH_INPUTS 64   // of a group, widened for all rows; fits half a first-level cache
#define PASS_ROWS 128       // whose sums are kept at once
#define LINEAR_SCRATCH (PANEL * GROUP_PANELS * (STRETCH_INPUTS + PASS_ROWS))  // floats that a thread needs
