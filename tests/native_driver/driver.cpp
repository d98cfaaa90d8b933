// Runs all native code on random shapes without Python, for the sanitizers: every array has exactly the size that the
// interface promises to stay within. Each case runs with each instruction set of this processor, and those that fuse
// multiplication and addition must agree to the bit; compiled with TOKENSWIFT_EXACT_FMA the portable one does too.
//
// Usage: driver SEED ATTENTIONS MATRICES PASSES CHOICES ROWS

#include "native.cpp"

#include "attention_case.h"
#include "choice_case.h"
#include "decoder_case.h"
#include "linear_case.h"
#include "rows_case.h"

#if defined(__FP_FAST_FMAF) || defined(TOKENSWIFT_EXACT_FMA)
static const int FIRST_FUSED = 0;
#else
static const int FIRST_FUSED = 1;
#endif

template <typename Kind>
static bool holds(const char *name, int seed, int rounds) {
    for (int round = 0; round < rounds; round++) {
        generator.seed((unsigned)(seed + round));  // so that one round can be repeated alone
        Kind random;
        std::vector<float> fused;
        for (int instructions = 0; instructions <= processor::best_instructions(); instructions++) {
            const char *wrong = random.run(instructions);
            if (instructions == FIRST_FUSED) fused = random.result;
            if (!wrong && instructions > FIRST_FUSED &&
                !(fused.size() == random.result.size() &&
                  same_bits(fused.data(), random.result.data(), sizeof(float) * fused.size())))
                wrong = "other bits than with lesser instructions";
            if (!wrong) continue;
            printf("%s of seed %d, instructions %d: %s\n", name, seed + round, instructions, wrong);
            return false;
        }
    }
    return true;
}

int main(int count, char **words) {
    if (count != 7) return 2;
    int seed = atoi(words[1]);
    bool fine = holds<AttentionCase>("attention", seed, atoi(words[2]));
    fine = holds<LinearCase>("matrix", seed, atoi(words[3])) && fine;
    fine = holds<DecoderCase>("pass", seed, atoi(words[4])) && fine;
    fine = holds<ChoiceCase>("choice", seed, atoi(words[5])) && fine;
    fine = holds<RowsCase>("rows", seed, atoi(words[6])) && fine;
    if (fine) puts("fine");
    return !fine;
}
