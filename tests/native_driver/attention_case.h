// The attention of a random shape, compared with double precision.

#pragma once

#include "cases.h"

struct Store {
    bool half;
    std::unique_ptr<float[]> single;
    std::unique_ptr<uint16_t[]> halves;

    Store(bool half, int64_t size) : half(half) {
        if (!half) {
            single = any_floats(size);
            return;
        }
        halves = exactly<uint16_t>(size);
        for (int64_t i = 0; i < size; i++) halves[i] = any_half();
    }
    const void *data() const { return half ? (const void *)halves.get() : single.get(); }
    double at(int64_t i) const { return half ? portable::single_from_half(halves[i]) : single[i]; }
};

struct AttentionCase : Case {
    Call call = {};
    std::unique_ptr<Store> query, keys, values;
    std::unique_ptr<uint8_t[]> visibility;
    std::vector<double> expected;

    AttentionCase() {
        call.kv_heads = pick(1, 3);
        call.group = pick(1, 4);
        call.rows = pick(1, 32);
        call.key_size = pick(1, 130);
        call.value_size = pick(1, 130);
        call.prefix = pick(0, 3) ? pick(0, 1600) : pick(0, 70);
        call.window = pick(0, 2) ? 0 : pick(1, call.prefix + call.rows);
        call.scale = 0.2f;
        call.half = (int32_t)pick(0, 1);
        call.threads = (int32_t)pick(1, 4);
        call.parallel = run_on_threads;
        call.key_row = call.key_size + pick(0, 3);
        call.value_row = call.value_size + pick(0, 3);
        int64_t capacity = call.prefix + call.rows;
        // The last row of the last head ends with its last element.
        call.key_head = (capacity - 1) * call.key_row + call.key_size;
        call.value_head = (capacity - 1) * call.value_row + call.value_size;
        keys.reset(new Store(call.half, call.kv_heads * call.key_head));
        values.reset(new Store(call.half, call.kv_heads * call.value_head));
        call.keys = keys->data();
        call.values = values->data();

        int64_t folded = call.group * call.rows;
        query.reset(new Store(false, call.kv_heads * folded * call.key_size));
        call.query = query->single.get();
        call.query_row = call.key_size;
        call.query_group = call.rows * call.key_size;
        call.query_head = folded * call.key_size;
        call.output_row = call.value_size;
        call.output_group = call.rows * call.value_size;
        call.output_head = folded * call.value_size;
        visibility = exactly<uint8_t>(call.rows * call.rows);
        bool causal = pick(0, 2) == 0;
        for (int64_t row = 0; row < call.rows; row++)
            for (int64_t other = 0; other < call.rows; other++)
                visibility[row * call.rows + other] = causal ? other <= row : row == other || pick(0, 2) == 0;
        call.visibility = causal ? nullptr : visibility.get();
        for (int64_t i = 0; i < call.kv_heads * folded; i++) expect_row(i, i / folded, i % call.rows);
    }

    // Query `i`, which belongs to `head` and `row`.
    void expect_row(int64_t i, int64_t head, int64_t row) {
        std::vector<int64_t> seen;
        for (int64_t k = 0; k < call.prefix; k++) seen.push_back(k);
        for (int64_t k = 0; k < call.rows; k++)
            if (visibility[row * call.rows + k]) seen.push_back(call.prefix + k);
        if (call.window && (int64_t)seen.size() > call.window) seen.erase(seen.begin(), seen.end() - call.window);
        std::vector<double> weights, sums(call.value_size);
        double peak = -1e300, total = 0;
        for (int64_t position : seen) {
            double score = 0;
            for (int64_t k = 0; k < call.key_size; k++)
                score += query->at(i * call.key_size + k) * keys->at(head * call.key_head + position * call.key_row + k);
            weights.push_back(score * call.scale);
            peak = fmax(peak, weights.back());
        }
        for (double &weight : weights) total += weight = exp(weight - peak);
        for (size_t place = 0; place < seen.size(); place++)
            for (int64_t j = 0; j < call.value_size; j++)
                sums[j] += weights[place] / total * values->at(head * call.value_head + seen[place] * call.value_row + j);
        expected.insert(expected.end(), sums.begin(), sums.end());
    }

    const char *run(int instructions) override {
        int64_t count = (int64_t)expected.size();
        auto output = exactly<float>(count);
        call.output = output.get();
        call.instructions = instructions;
        call.workspace_bytes = tokenswift_attention_workspace(&call);
        auto workspace = exactly<char>(call.workspace_bytes);
        call.workspace = workspace.get();
        if (tokenswift_attention(&call)) return "refused";
        result.assign(output.get(), output.get() + count);
        return close_to(expected, result, 2e-5) ? nullptr : "far from double precision";
    }
};
