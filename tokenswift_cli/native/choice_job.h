// One look at the scores of a whole vocabulary: what can be chosen of it. Knows no instruction set.

#pragma once

#include "attention_job.h"

// Tokens that share a word of bits, and whose largest score is found first.
#define CHOICE_BLOCK 64

struct ChoiceCall {
    const float *logits;            // [size]
    const int64_t *window;          // [window_size], ids to penalise, in any order and as often as they like
    const uint64_t *suppressed;     // [blocks], a bit for each id that cannot be chosen; null: none
    uint64_t *penalized;            // [blocks], all zero before and after
    float *largest;                 // [2 * blocks]
    int64_t *token_ids;             // [size], gets the ids that are left, ascending
    float *scores;                  // [size], gets their scores
    int64_t size, window_size;
    int64_t at_least;               // drop only what is below so many of the best; 0: however few are left
    float penalty, temperature;     // above zero
    float log_min_p;                // drop what is below the best plus this; -infinity: nothing
    int32_t instructions;           // -1: the best this processor has
    int64_t count;                  // result: ids that are left
    float best;                     // result: the best score before the temperature; NaN if any score is
    int32_t reserved;
};

static inline int64_t block_total(const ChoiceCall &call) { return round_up(call.size, CHOICE_BLOCK) / CHOICE_BLOCK; }

// The scores of a block before the temperature: the logits themselves where nothing is to be done to them, else a copy.
// Behind the last id there is nothing to choose.
static inline const float *block_scores(const ChoiceCall &call, int64_t block, float *copy) {
    const int64_t first = block * CHOICE_BLOCK, known = smaller(CHOICE_BLOCK, call.size - first);
    const uint64_t suppressed = call.suppressed ? call.suppressed[block] : 0;
    uint64_t penalized = call.penalized[block];
    if (!(suppressed | penalized) && known == CHOICE_BLOCK) return call.logits + first;
    memcpy(copy, call.logits + first, known * sizeof(float));
    for (int64_t i = known; i < CHOICE_BLOCK; i++) copy[i] = -__builtin_inff();
    for (; penalized; penalized &= penalized - 1) {
        float &score = copy[__builtin_ctzll(penalized)];
        score = score > 0 ? score / call.penalty : score * call.penalty;
    }
    for (uint64_t left = suppressed; left; left &= left - 1) copy[__builtin_ctzll(left)] = -__builtin_inff();
    return copy;
}
