// What can be chosen of a random row of scores, compared with the same float32 operations one after another; and the
// numbers behind the noise.

#pragma once

#include "cases.h"

struct ChoiceCase : Case {
    ChoiceCall call = {};
    std::unique_ptr<float[]> row;
    std::unique_ptr<int64_t[]> window;
    std::unique_ptr<uint64_t[]> suppressed;
    int64_t blocks;

    ChoiceCase() {
        const int64_t size = call.size = pick(0, 3) ? pick(1, 200) : pick(1, 3000), skipped = pick(0, 3);
        blocks = block_total(call);
        row = exactly<float>(skipped + size);
        for (int64_t i = 0; i < size; i++) row[skipped + i] = any_score();
        call.logits = row.get() + skipped;
        call.window_size = pick(0, 2) ? pick(0, 90) : 0;
        window = exactly<int64_t>(call.window_size);
        for (int64_t i = 0; i < call.window_size; i++) window[i] = pick(0, size - 1);
        call.window = window.get();
        if (pick(0, 1)) {
            suppressed = exactly<uint64_t>(blocks);
            memset(suppressed.get(), 0, blocks * sizeof(uint64_t));
            for (int64_t i = pick(0, 30); i > 0; i--) suppress(pick(0, size - 1));
            for (int64_t i = 0; i < size && pick(0, 20) == 0; i++) suppress(i);
        }
        call.suppressed = suppressed.get();
        call.at_least = pick(0, 2) ? 0 : pick(1, size + 3);
        call.penalty = pick(0, 3) ? 0.8f + 0.1f * pick(0, 9) : 1.0f;
        call.temperature = pick(0, 1) ? 1.0f : 0.3f + 0.1f * pick(0, 14);
        call.log_min_p = pick(0, 1) ? -0.5f * pick(0, 10) : -INFINITY;
    }

    // Often one of a few, so that some are equal; now and then something odd.
    static float any_score() {
        if (pick(0, 3000) == 0) return pick(0, 1) ? NAN : INFINITY;
        if (pick(0, 30) == 0) return -INFINITY;
        return pick(0, 1) ? 0.5f * pick(-9, 9) : any_float(9);
    }

    void suppress(int64_t id) { suppressed[id / 64] |= (uint64_t)1 << id % 64; }
    bool is_suppressed(int64_t id) const { return suppressed && suppressed[id / 64] >> id % 64 & 1; }

    std::vector<float> expected_scores() const {
        std::vector<float> scores(call.logits, call.logits + call.size);
        std::vector<char> seen(call.size);
        for (int64_t i = 0; i < call.window_size; i++) seen[window[i]] = 1;
        for (int64_t i = 0; i < call.size; i++) {
            if (seen[i]) scores[i] = scores[i] > 0 ? scores[i] / call.penalty : scores[i] * call.penalty;
            if (is_suppressed(i)) scores[i] = -INFINITY;
        }
        return scores;
    }

    const char *run(int instructions) override {
        auto penalized = exactly<uint64_t>(blocks);
        memset(penalized.get(), 0, blocks * sizeof(uint64_t));
        auto largest = exactly<float>(2 * blocks), scores = exactly<float>(call.size);
        auto token_ids = exactly<int64_t>(call.size);
        call.penalized = penalized.get();
        call.largest = largest.get();
        call.scores = scores.get();
        call.token_ids = token_ids.get();
        call.instructions = instructions;
        if (tokenswift_choice(&call)) return "refused";
        for (int64_t i = 0; i < blocks; i++)
            if (penalized[i]) return "left a bit behind";
        result.assign(scores.get(), scores.get() + call.count);
        result.push_back(call.best);
        for (int64_t i = 0; i < call.count; i++) result.push_back((float)token_ids[i]);
        const char *wrong = check(token_ids.get(), scores.get());
        return wrong ? wrong : check_noise(token_ids.get());
    }

    const char *check(const int64_t *token_ids, const float *scores) const {
        std::vector<float> wanted = expected_scores();
        float best = -INFINITY;
        for (float score : wanted) best = best != best || score != score ? NAN : score > best ? score : best;
        if (!isfinite(best)) {
            if (call.count) return "chooses where nothing can be chosen";
            return call.best == best || (call.best != call.best && best != best) ? nullptr : "another best score";
        }
        if (call.best != best) return "another best score";
        for (float &score : wanted) score /= call.temperature;
        // What must be kept: from here on, and of the best whatever equals the last that was asked for.
        float lowest = best / call.temperature + call.log_min_p, least = lowest;
        if (call.at_least) {
            std::vector<float> sorted = wanted;
            std::sort(sorted.begin(), sorted.end(), std::greater<float>());
            least = std::max(lowest, sorted[smaller(call.at_least, call.size) - 1]);
        }
        int64_t place = 0;
        for (int64_t i = 0; i < call.size; i++) {
            if (place < call.count && token_ids[place] == i) {
                if (!same_bits(&wanted[i], scores + place, sizeof(float))) return "another score";
                if (wanted[i] < lowest) return "kept what is too low";
                place++;
            } else if (wanted[i] >= least) {
                return "dropped what is high enough";
            }
        }
        return place == call.count ? nullptr : "ids out of order";
    }

    const char *check_noise(const int64_t *token_ids) const {
        auto uniforms = exactly<double>(call.count);
        tokenswift_uniforms(0xfedcba9876543210u + call.size, token_ids, call.count, uniforms.get());
        for (int64_t i = 0; i < call.count; i++)
            if (!(uniforms[i] > 0 && uniforms[i] < 1)) return "a random number outside 0 to 1";
        return nullptr;
    }
};
