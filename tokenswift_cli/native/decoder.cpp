// A whole forward pass of a Llama-like decoder over the cache. Plain C interface.
//
// See decoder_job.h for the arguments and decoder_kernel.h for the computation.

#include "decoder_job.h"

#include <sched.h>

#if defined(__x86_64__)
static inline void pause_briefly() { __builtin_ia32_pause(); }
#else
static inline void pause_briefly() {}
#endif

// Nearest float16, ties to even, as everybody rounds.
static inline uint16_t half_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) {  // subnormal: adding 0.5 leaves the rounded digits in the low bits
        float shifted;
        memcpy(&shifted, &magnitude, 4);
        shifted += 0.5f;
        memcpy(&bits, &shifted, 4);
        return (uint16_t)(sign | (bits - 0x3f000000));
    }
    uint32_t odd = magnitude >> 13 & 1;
    return (uint16_t)(sign | ((magnitude - 0x38000000 + 0xfff + odd) >> 13));
}

// Point the attention at a layer; nobody computes attention now.
static void aim_attention(DecoderJob &job, int64_t index) {
    const DecoderPass &pass = job.pass;
    const DecoderLayer &layer = pass.model->layers[index];
    Job &attention = job.attention;
    attention.call.keys = pass.keys[index];
    attention.call.values = pass.values[index];
    if (attention.call.window != layer.window) {
        attention.call.window = layer.window;
        aim_rows(attention);
    }
    attention.next = attention.entered = 0;
    for (int64_t head = 0; head < attention.call.kv_heads; head++)
        attention.remaining()[head] = attention.layout.segments;
}

namespace portable {
#include "lanes_portable.h"
#include "decoder_kernel.h"
#include "lanes_end.h"
}

#if defined(__x86_64__)
namespace avx2 {
#include "lanes_avx2.h"
#include "decoder_kernel.h"
#include "lanes_end.h"
}

namespace avx512 {
#include "lanes_avx512.h"
#include "decoder_kernel.h"
#include "lanes_end.h"
}
#endif

// How many floats a matrix needs of the sums of its input's blocks, for so many rows.
static int64_t sums_of(const Weights &weights, int64_t rows) {
    return rows * block_count(weights);
}

static Call attention_call(const DecoderPass &pass) {
    const DecoderModel &model = *pass.model;
    Call call = {};
    call.key_head = pass.key_head;
    call.key_row = pass.key_row;
    call.value_head = pass.value_head;
    call.value_row = pass.value_row;
    call.visibility = pass.visibility;
    call.kv_heads = model.kv_heads;
    call.group = model.heads / model.kv_heads;
    call.rows = pass.rows;
    call.key_size = call.value_size = model.size;
    call.output_head = call.group * model.size;
    call.output_group = model.size;
    call.output_row = model.heads * model.size;
    call.prefix = pass.prefix;
    call.half = pass.half;
    call.threads = pass.threads;
    return call;
}

static DecoderLayout lay_out_pass(const DecoderPass &pass) {
    const DecoderModel &model = *pass.model;
    DecoderLayout layout;
    int64_t total = 0, rows = pass.rows, sums = sums_of(model.output, pass.logits_rows);
    for (int64_t index = 0; index < model.layer_count; index++) {
        const DecoderLayer &layer = model.layers[index];
        const Weights *all[] = {&layer.query_key_value, &layer.attention_output, &layer.gate, &layer.up, &layer.down};
        for (const Weights *weights : all) sums = bigger(sums, sums_of(*weights, rows));
    }
    Call call = attention_call(pass);
    layout.projected = take(total, rows * (model.heads + 2 * model.kv_heads) * model.size);
    layout.attended = take(total, rows * model.heads * model.size);
    layout.activated = take(total, rows * model.hidden);
    layout.counters = take(total, 2 * (model.layer_count * PHASES_PER_LAYER + 1));
    layout.attention = take(total, lay_out(call, pass.prefix + rows, 0).total);
    int64_t size = 0;
    layout.normed = take(size, rows * model.width);
    layout.sums = take(size, sums);
    layout.gate = take(size, rows * PIECE_PANELS * PANEL);
    layout.up = take(size, rows * PIECE_PANELS * PANEL);
    layout.linear = take(size, LINEAR_SCRATCH);
    layout.scratch_size = size;
    layout.scratch = take(total, size * pass.threads);
    layout.total = total + 16;  // to align the start
    return layout;
}

static bool is_sound(const DecoderPass &pass) {
    const DecoderModel &model = *pass.model;
    return model.layer_count > 0 && model.kv_heads > 0 && model.heads > 0 && model.heads % model.kv_heads == 0 &&
           model.size > 0 && model.size % 2 == 0 && pass.rows > 0 && pass.prefix >= 0 && pass.logits_rows >= 0 &&
           pass.logits_rows <= pass.rows && pass.threads > 0;
}

extern "C" {

// Raised whenever DecoderPass or the meaning of a function changes.
EXPORT int tokenswift_decoder_interface() { return 1; }

// Bytes that tokenswift_decoder needs for this pass.
EXPORT int64_t tokenswift_decoder_workspace(const DecoderPass *pass) {
    return lay_out_pass(*pass).total * (int64_t)sizeof(float);
}

EXPORT int tokenswift_decoder(const DecoderPass *pass) {
    if (!is_sound(*pass)) return BAD_ARGUMENTS;
    int best = processor::best_instructions(), instructions = pass->instructions < 0 ? best : pass->instructions;
    if (instructions > best) return NO_SUCH_INSTRUCTIONS;

    DecoderJob job;
    job.pass = *pass;
    job.layout = lay_out_pass(*pass);
    if (job.layout.total * (int64_t)sizeof(float) > pass->workspace_bytes) return WORKSPACE_TOO_SMALL;
    job.memory = (float *)(((uintptr_t)pass->workspace + 63) / 64 * 64);
    job.barrier = {};
    memset(job.counter(0), 0, sizeof(int64_t) * (pass->model->layer_count * PHASES_PER_LAYER + 1));

    Job &attention = job.attention;
    attention.call = attention_call(*pass);
    attention.call.output = job.at(job.layout.attended);
    attention.memory = job.at(job.layout.attention);
    attention.folded = attention.call.group * attention.call.rows;
    attention.layout = lay_out(attention.call, pass->prefix + pass->rows, 0);
    if (!aim_rows(attention)) return SEES_NOTHING;

    void (*run)(void *) = portable::decode;
#if defined(__x86_64__)
    if (instructions == 1) run = avx2::decode;
    if (instructions == 2) run = avx512::decode;
#endif
    if (pass->threads > 1 && pass->parallel)
        pass->parallel(run, &job, (unsigned)pass->threads, 0);
    else
        run(&job);
    return DONE;
}
}
