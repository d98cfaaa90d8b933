// The one pass over all scores, in lanes. Included once for each instruction set, after its lanes_*.h.

// The largest score of each block into `largest`; whether any score is no number.
TARGET static bool find_largest(ChoiceCall &call) {
    typedef decltype(Lanes() != Lanes()) Flags;
    Flags broken = {};
    alignas(64) float copy[CHOICE_BLOCK];
    const int64_t blocks = block_total(call);
    for (int64_t block = 0; block < blocks; block++) {
        const float *scores = block_scores(call, block, copy);
        Lanes most = load(scores);
        broken |= most != most;
        UNROLL for (int i = WIDTH; i < CHOICE_BLOCK; i += WIDTH) {
            Lanes next = load(scores + i);
            broken |= next != next;
            most = larger(next, most);
        }
        call.largest[block] = largest(most);
    }
    bool any = false;
    for (int i = 0; i < WIDTH; i++) any |= broken[i] != 0;
    return any;
}
