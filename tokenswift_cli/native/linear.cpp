// Packing of matrices, and their multiplication by a few rows. Plain C interface.
//
// See linear_weights.h for formats and arguments, linear_kernel.h for the computation.

#ifndef TOKENSWIFT_LINEAR
#define TOKENSWIFT_LINEAR

#include "instructions.h"
#include "linear_weights.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// One call, as the threads share it.
struct LinearJob {
    LinearCall call;
    const float *sums;
    float *scratch;     // LINEAR_SCRATCH floats for each thread
    int64_t piece;      // panels that a thread takes at once
    int64_t next;       // first panel that nobody took
    int64_t entered;    // threads at work so far
};

namespace portable {
#include "lanes_portable.h"
#include "linear_kernel.h"
#include "linear_work.h"
#include "lanes_end.h"
}

#if defined(__x86_64__)
namespace avx2 {
#include "lanes_avx2.h"
#include "linear_kernel.h"
#include "linear_work.h"
#include "lanes_end.h"
}

namespace avx512 {
#include "lanes_avx512.h"
#include "linear_kernel.h"
#include "linear_work.h"
#include "lanes_end.h"
}
#endif

enum class LinearOutcome : int { DONE, WORKSPACE_TOO_SMALL, BAD_ARGUMENTS, NO_SUCH_INSTRUCTIONS };

// Floats of the sums in front of the threads' scratch.
static int64_t linear_sums(const LinearCall &call) {
    return round_up(call.rows * block_count(*call.weights), PANEL);
}

// Element k of output o, at its place in the panels.
template <typename Stored>
static void pack_plain(const Weights &weights, const Stored *source, Stored *storage) {
    for (int64_t panel = 0; panel < stored_panels(weights); panel++)
        for (int64_t k = 0; k < weights.inputs; k++)
            for (int64_t lane = 0; lane < PANEL; lane++, storage++) {
                int64_t output = panel * PANEL + lane;
                *storage = output < weights.outputs ? source[output * weights.inputs + k] : (Stored)0;
            }
}

// The levels of one block of one panel; `levels` are [16, block].
static void pack_levels(const Weights &weights, const uint8_t *levels, char *to) {
    for (int64_t k = 0; k < weights.block; k++)
        for (int64_t lane = 0; lane < PANEL; lane++) {
            uint8_t level = levels[lane * weights.block + k];
            if (weights.format == Format::BYTES) {
                to[k * PANEL + lane] = (char)level;
            } else {
                uint32_t word;
                char *place = to + (k / 8 * PANEL + lane) * sizeof(word);
                memcpy(&word, place, sizeof(word));
                word |= (uint32_t)level << 4 * (k % 8);
                memcpy(place, &word, sizeof(word));
            }
        }
}

extern "C" {

#define EXPORT __attribute__((visibility("default")))

// Raised whenever Weights, LinearCall, a format or the meaning of a function changes.
EXPORT int tokenswift_linear_interface() { return 1; }

EXPORT int tokenswift_linear_instructions() { return processor::best_instructions(); }

// Bytes of the packed matrix; -1 if it cannot be packed so.
EXPORT int64_t tokenswift_pack_bytes(const Weights *weights) {
    return is_sound(*weights) ? packed_bytes(*weights) : -1;
}

// Pack `source`, [outputs, inputs] of the format's own type, into `storage`.
EXPORT int tokenswift_pack_rows(const Weights *weights, const void *source, void *storage) {
    if (!is_sound(*weights) || has_scales(*weights)) return (int)LinearOutcome::BAD_ARGUMENTS;
    if (weights->format == Format::SINGLES)
        pack_plain(*weights, (const uint32_t *)source, (uint32_t *)storage);
    else
        pack_plain(*weights, (const uint16_t *)source, (uint16_t *)storage);
    memset((char *)storage + packed_bytes(*weights) - SPARE_BYTES, 0, SPARE_BYTES);
    return (int)LinearOutcome::DONE;
}

// Pack `levels`, [outputs, inputs] of one byte each, with `scales` and `minima`, [outputs, inputs / block]. Null minima
// are zeros. Nibbles above 15 are refused.
EXPORT int tokenswift_pack_blocks(const Weights *weights, const uint8_t *levels, const float *scales,
                                  const float *minima, void *storage) {
    if (!is_sound(*weights) || !has_scales(*weights)) return (int)LinearOutcome::BAD_ARGUMENTS;
    const int64_t block = weights->block, blocks = weights->inputs / block;
    const int64_t level_bytes = eight_bytes(weights->format) * block / 8;
    char *to = (char *)storage;
    for (int64_t panel = 0; panel < stored_panels(*weights); panel++)
        for (int64_t i = 0; i < blocks; i++) {
            float scale[PANEL] = {}, minimum[PANEL] = {};
            uint8_t own[PANEL * 32] = {};
            int64_t known = smaller(PANEL, weights->outputs - panel * PANEL);
            for (int64_t lane = 0; lane < known; lane++) {
                int64_t at = (panel * PANEL + lane) * blocks + i;
                scale[lane] = scales[at];
                minimum[lane] = minima ? minima[at] : 0.0f;
                memcpy(own + lane * block, levels + at * block, block);
                if (weights->format == Format::NIBBLES)
                    for (int64_t k = 0; k < block; k++)
                        if (own[lane * block + k] > 15) return (int)LinearOutcome::BAD_ARGUMENTS;
            }
            memcpy(to, scale, sizeof(scale));
            if (weights->has_minimum) memcpy(to + sizeof(scale), minimum, sizeof(minimum));
            to += scale_bytes(*weights);
            memset(to, 0, level_bytes);
            pack_levels(*weights, own, to);
            to += level_bytes;
        }
    memset(to, 0, SPARE_BYTES);
    return (int)LinearOutcome::DONE;
}

// Bytes that tokenswift_linear needs for this call.
EXPORT int64_t tokenswift_linear_workspace(const LinearCall *call) {
    int64_t floats = linear_sums(*call) + LINEAR_SCRATCH * (int64_t)call->threads + 16;  // 16 to align the start
    return floats * (int64_t)sizeof(float);
}

EXPORT int tokenswift_linear(const LinearCall *call) {
    if (!is_sound(*call->weights) || call->rows < 1 || call->threads < 1) return (int)LinearOutcome::BAD_ARGUMENTS;
    if (tokenswift_linear_workspace(call) > call->workspace_bytes) return (int)LinearOutcome::WORKSPACE_TOO_SMALL;
    int best = processor::best_instructions(), instructions = call->instructions < 0 ? best : call->instructions;
    if (instructions > best) return (int)LinearOutcome::NO_SUCH_INSTRUCTIONS;

    void (*run)(void *) = portable::multiply_pieces;
    void (*sum)(const Weights &, const float *, int64_t, int64_t, float *) = portable::block_sums;
#if defined(__x86_64__)
    if (instructions == 1) run = avx2::multiply_pieces, sum = avx2::block_sums;
    if (instructions == 2) run = avx512::multiply_pieces, sum = avx512::block_sums;
#endif
    float *memory = (float *)(((uintptr_t)call->workspace + 63) / 64 * 64);
    LinearJob job = {};
    job.call = *call;
    job.sums = memory;
    job.scratch = memory + linear_sums(*call);
    // Small enough that no thread waits long for the last one, and whole groups.
    int64_t share = panel_count(*call->weights) / (4 * (int64_t)call->threads);
    job.piece = bigger(GROUP_PANELS, share / GROUP_PANELS * GROUP_PANELS);
    sum(*call->weights, call->x, call->rows, call->x_stride, memory);
    if (call->threads > 1 && call->parallel)
        call->parallel(run, &job, (unsigned)call->threads, 0);
    else
        run(&job);
    return (int)LinearOutcome::DONE;
}
}

#endif
