// Attention of a few query rows over a long cache, for the processors of one machine. Plain C interface.
//
// See attention_job.h for the arguments, attention_kernel.h for the computation, and the lanes_*.h for what
// differs between instruction sets. Needs no library, not even OpenMP's: the caller hands in its function.

#include "attention_job.h"
#include "instructions.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#ifndef INFINITY
#define INFINITY __builtin_inff()
#endif

namespace portable {
#include "lanes_portable.h"
}

#undef TARGET
#define TARGET
INLINE float portable_single(float x) { return x; }
INLINE float portable_single(uint16_t x) { return portable::single_from_half(x); }

namespace portable {
#include "attention_kernel.h"
}

#if defined(__x86_64__)
namespace avx2 {
#include "lanes_avx2.h"
#include "attention_kernel.h"
}

namespace avx512 {
#include "lanes_avx512.h"
#include "attention_kernel.h"
}
#endif

enum Outcome { DONE, WORKSPACE_TOO_SMALL, BAD_ARGUMENTS, SEES_NOTHING, NO_SUCH_INSTRUCTIONS };

static int64_t take(int64_t &total, int64_t floats) {
    int64_t offset = total;
    total += round_up(floats, 16);
    return offset;
}

// `longest` and `earliest` bound the positions that are seen.
static Layout lay_out(const Call &call, int64_t longest, int64_t earliest) {
    Layout layout;
    int64_t folded = call.group * call.rows, rows = call.kv_heads * folded, total = 0;
    layout.value_width = round_up(call.value_size, 16);
    layout.tail_width = round_up(call.rows, BLOCK_KEYS);
    layout.first_segment = earliest / SEGMENT_KEYS;
    layout.segments = (longest + SEGMENT_KEYS - 1) / SEGMENT_KEYS - layout.first_segment;
    layout.scaled = take(total, rows * call.key_size);
    layout.path = take(total, call.rows * call.rows);
    layout.seen = take(total, call.rows * 2);
    layout.first = take(total, call.rows * 2);
    layout.remaining = take(total, call.kv_heads * 2);
    layout.sums = take(total, rows * layout.segments * layout.value_width);
    layout.peaks = take(total, rows * layout.segments);
    layout.totals = take(total, rows * layout.segments);
    int64_t size = 0;
    layout.block_keys = take(size, call.key_size * BLOCK_KEYS);
    layout.block_values = take(size, BLOCK_KEYS * layout.value_width);
    layout.tail_scores = take(size, folded * layout.tail_width);
    layout.tail_values = take(size, call.rows * layout.value_width);
    layout.lanes = take(size, folded * SUM_LANES);
    layout.staging = take(size, 32 * call.key_size);
    layout.scratch_size = size;
    layout.scratch = take(total, size * call.threads);
    layout.total = total + 16;  // to align the start
    return layout;
}

// Which new rows each row sees, in order, and from which position on. False: some row sees nothing.
static bool trace_paths(Job &job) {
    const Call &call = job.call;
    for (int64_t row = 0; row < call.rows; row++) {
        int32_t *path = job.path(row);
        int64_t count = 0;
        for (int64_t other = 0; other < call.rows; other++)
            if (call.visibility ? call.visibility[row * call.rows + other] : other <= row)
                path[count++] = (int32_t)other;
        int64_t positions = call.prefix + count;
        if (positions == 0) return false;
        int64_t first = call.window > 0 ? bigger(0, positions - call.window) : 0;
        job.seen()[row] = count;
        job.first()[row] = first;
        job.longest = row ? bigger(job.longest, positions) : positions;
        job.earliest = row ? smaller(job.earliest, first) : first;
        job.latest = row ? bigger(job.latest, first) : first;
    }
    return true;
}

// Find out what the rows see, and lay the workspace out for it. False: some row sees nothing.
static bool aim_rows(Job &job) {
    if (!trace_paths(job)) return false;
    // The parts before the partial results stay where they are.
    job.layout = lay_out(job.call, job.longest, job.earliest);
    return true;
}

static void scale_queries(Job &job) {
    const Call &call = job.call;
    float factor = call.scale * 1.4426950408889634f;  // the kernel takes powers of two
    for (int64_t head = 0; head < call.kv_heads; head++)
        for (int64_t row = 0; row < job.folded; row++) {
            const float *from = call.query + head * call.query_head + row / call.rows * call.query_group +
                                row % call.rows * call.query_row;
            float *to = job.scaled(head) + row * call.key_size;
            for (int64_t i = 0; i < call.key_size; i++) to[i] = from[i] * factor;
        }
}

extern "C" {

#define EXPORT __attribute__((visibility("default")))

// Raised whenever Call or the meaning of a function changes.
EXPORT int tokenswift_attention_interface() { return 1; }

EXPORT int tokenswift_attention_instructions() { return processor::best_instructions(); }

// Bytes that tokenswift_attention needs for this call, for any visibility.
EXPORT int64_t tokenswift_attention_workspace(const Call *call) {
    // A row sees at least none and at most all of the new rows.
    int64_t earliest = call->window > 0 ? bigger(0, call->prefix - call->window) : 0;
    return lay_out(*call, call->prefix + call->rows, earliest).total * (int64_t)sizeof(float);
}

EXPORT int tokenswift_attention(const Call *call) {
    if (call->kv_heads < 1 || call->group < 1 || call->rows < 1 || call->key_size < 1 || call->value_size < 1 ||
        call->prefix < 0 || call->window < 0 || call->threads < 1)
        return BAD_ARGUMENTS;
    if (tokenswift_attention_workspace(call) > call->workspace_bytes) return WORKSPACE_TOO_SMALL;
    int best = processor::best_instructions(), instructions = call->instructions < 0 ? best : call->instructions;
    if (instructions > best) return NO_SUCH_INSTRUCTIONS;

    Job job;
    job.call = *call;
    job.memory = (float *)(((uintptr_t)call->workspace + 63) / 64 * 64);
    job.folded = call->group * call->rows;
    job.next = job.entered = 0;
    int64_t earliest = call->window > 0 ? bigger(0, call->prefix - call->window) : 0;
    job.layout = lay_out(*call, call->prefix + call->rows, earliest);
    if (!aim_rows(job)) return SEES_NOTHING;
    scale_queries(job);
    for (int64_t head = 0; head < call->kv_heads; head++) job.remaining()[head] = job.layout.segments;

    void (*work)(void *) = portable::work;
#if defined(__x86_64__)
    if (instructions == 1) work = avx2::work;
    if (instructions == 2) work = avx512::work;
#endif
    int64_t threads = smaller(call->threads, call->kv_heads * job.layout.segments);
    if (threads > 1 && call->parallel)
        call->parallel(work, &job, (unsigned)threads, 0);
    else
        work(&job);
    return DONE;
}
}
