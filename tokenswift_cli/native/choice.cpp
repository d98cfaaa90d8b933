// Which tokens of a vocabulary can be chosen, after suppression, penalty, temperature and min-p; and the random numbers
// behind their noise. Plain C interface.
//
// See choice_job.h for the arguments. Every score has the bits of the same operations in float32 one after another.

#include "instructions.h"

#include "choice_job.h"

#include <algorithm>
#include <functional>

namespace portable {
#include "lanes_portable.h"
#include "choice_kernel.h"
#include "lanes_end.h"
}

#if defined(__x86_64__)
namespace avx2 {
#include "lanes_avx2.h"
#include "choice_kernel.h"
#include "lanes_end.h"
}

namespace avx512 {
#include "lanes_avx512.h"
#include "choice_kernel.h"
#include "lanes_end.h"
}
#endif

enum class ChoiceOutcome : int { DONE, BAD_ARGUMENTS, NO_SUCH_INSTRUCTIONS };

static bool is_sound(const ChoiceCall &call) {
    const float infinity = __builtin_inff();
    bool sound = call.size > 0 && call.window_size >= 0 && call.at_least >= 0 && call.log_min_p <= 0 &&
                 call.penalty > 0 && call.penalty < infinity && call.temperature > 0 && call.temperature < infinity;
    for (int64_t i = 0; sound && i < call.window_size; i++)
        sound = call.window[i] >= 0 && call.window[i] < call.size;
    return sound;
}

// Scores below it are dropped. `largest` of the blocks is known, and that the best is finite.
static float lowest_to_keep(const ChoiceCall &call) {
    const float infinity = __builtin_inff();
    const int64_t blocks = block_total(call);
    float lowest = call.log_min_p == -infinity ? -infinity : call.best / call.temperature + call.log_min_p;
    if (call.at_least > 0 && call.at_least <= blocks) {
        // So many blocks hold a score at least as large.
        float *sorted = call.largest + blocks, *place = sorted + call.at_least - 1;
        std::copy(call.largest, sorted, sorted);
        std::nth_element(sorted, place, sorted + blocks, std::greater<float>());
        lowest = std::max(lowest, *place / call.temperature);
    }
    return lowest;
}

// Ids and scores of what is left. Division keeps order, so that most blocks need no look.
static void keep_from(ChoiceCall &call, float lowest) {
    float copy[CHOICE_BLOCK];
    const int64_t blocks = block_total(call);
    int64_t count = 0;
    for (int64_t block = 0; block < blocks; block++) {
        if (!(call.largest[block] / call.temperature >= lowest)) continue;
        const float *scores = block_scores(call, block, copy);
        const int64_t first = block * CHOICE_BLOCK, known = smaller(CHOICE_BLOCK, call.size - first);
        for (int64_t i = 0; i < known; i++) {
            float score = scores[i] / call.temperature;
            if (!(score >= lowest)) continue;
            call.token_ids[count] = first + i;
            call.scores[count++] = score;
        }
    }
    call.count = count;
}

// The finaliser of SplitMix64.
static inline uint64_t mix(uint64_t value) {
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
    value = (value ^ value >> 27) * 0x94d049bb133111ebu;
    return value ^ value >> 31;
}

extern "C" {

// Raised whenever ChoiceCall, its meaning, or the noise changes.
EXPORT int tokenswift_choice_interface() { return 1; }

// What can be chosen: count, ids and scores. None where the best score is NaN or infinite.
EXPORT int tokenswift_choice(ChoiceCall *call) {
    if (!is_sound(*call)) return (int)ChoiceOutcome::BAD_ARGUMENTS;
    int best = processor::best_instructions(), instructions = call->instructions < 0 ? best : call->instructions;
    if (instructions > best) return (int)ChoiceOutcome::NO_SUCH_INSTRUCTIONS;
    bool (*find)(ChoiceCall &) = portable::find_largest;
#if defined(__x86_64__)
    if (instructions == 1) find = avx2::find_largest;
    if (instructions == 2) find = avx512::find_largest;
#endif
    for (int64_t i = 0; i < call->window_size; i++)
        call->penalized[call->window[i] / CHOICE_BLOCK] |= (uint64_t)1 << call->window[i] % CHOICE_BLOCK;
    bool broken = find(*call);
    call->best = broken ? __builtin_nanf("") : *std::max_element(call->largest, call->largest + block_total(*call));
    call->count = 0;
    if (__builtin_isfinite(call->best)) keep_from(*call, lowest_to_keep(*call));
    for (int64_t i = 0; i < call->window_size; i++) call->penalized[call->window[i] / CHOICE_BLOCK] = 0;
    return (int)ChoiceOutcome::DONE;
}

// Of each id a number between 0 and 1, both excluded, from the counter stream that starts at `key`: 32 random bits, and
// one half of the last so that neither end is met.
EXPORT void tokenswift_uniforms(uint64_t key, const int64_t *token_ids, int64_t count, double *uniforms) {
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = mix(key + ((uint64_t)token_ids[i] + 1) * 0x9e3779b97f4a7c15u) >> 32;
        uniforms[i] = ((double)bits + 0.5) * 0x1p-32;
    }
}
}
