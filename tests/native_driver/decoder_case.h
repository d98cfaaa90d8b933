// A pass of a random small model over a chain or a tree: finite, and each row with the bits that it has when its
// path is read token by token.

#pragma once

#include "cases.h"
#include "linear_case.h"

struct RandomLayer {
    std::unique_ptr<float[]> before_attention, before_feed_forward, head_scale;
    Matrix query_key_value, attention_output, gate, up, down;
    DecoderLayer layer = {};

    RandomLayer(const DecoderModel &model, bool head_norms, int64_t positions) {
        int64_t all_heads = model.heads + 2 * model.kv_heads, attended = model.heads * model.size;
        before_attention = any_floats(model.width);
        before_feed_forward = any_floats(model.width);
        if (head_norms) head_scale = any_floats((model.heads + model.kv_heads) * model.size);
        query_key_value = Matrix(all_heads * model.size, model.width, 1);
        attention_output = Matrix(model.width, attended, 1);
        gate = Matrix(model.hidden, model.width, 1);
        up = Matrix(model.hidden, model.width, 1);
        down = Matrix(model.width, model.hidden, 1);
        layer.before_attention = before_attention.get();
        layer.before_feed_forward = before_feed_forward.get();
        layer.head_scale = head_scale.get();
        layer.query_key_value = query_key_value.weights;
        layer.attention_output = attention_output.weights;
        layer.gate = gate.weights;
        layer.up = up.weights;
        layer.down = down.weights;
        layer.window = pick(0, 2) ? 0 : pick(1, positions);
        layer.scale = 0.2f;
    }
};

// Keys or values of all layers, a copy for each pass; behind the prefix no numbers.
struct LayerStores {
    int64_t count;         // elements of a layer
    int64_t element;       // bytes of one
    std::vector<std::unique_ptr<char[]>> layers;
    std::vector<void *> pointers;

    LayerStores(int64_t layer_count, int64_t count, int64_t element) : count(count), element(element) {
        for (int64_t i = 0; i < layer_count; i++) layers.push_back(exactly<char>(count * element));
        point();
    }
    LayerStores(const LayerStores &other) : count(other.count), element(other.element) {
        for (auto &layer : other.layers) layers.push_back(copied(layer.get(), count * element));
        point();
    }
    void point() {
        for (auto &layer : layers) pointers.push_back(layer.get());
    }
    void fill(int64_t first, int64_t size) {
        for (auto &layer : layers)
            for (int64_t i = first; i < first + size; i++) {
                if (element == 2) {
                    uint16_t half = any_half();
                    memcpy(layer.get() + i * 2, &half, 2);
                } else {
                    float single = any_float();
                    memcpy(layer.get() + i * 4, &single, 4);
                }
            }
    }
    const char *at(int64_t layer, int64_t place) const { return layers[layer].get() + place * element; }
};

// What a pass gives back.
struct Passed {
    LayerStores keys, values;
    std::unique_ptr<float[]> states, queries, logits;
};

struct DecoderCase : Case {
    DecoderModel model = {};
    std::vector<std::unique_ptr<RandomLayer>> layers;
    std::vector<DecoderLayer> structs;
    std::unique_ptr<float[]> final_scale;
    Matrix output;
    DecoderPass pass = {};
    std::vector<int64_t> depth;
    std::unique_ptr<uint8_t[]> visibility;
    std::unique_ptr<float[]> states, cosine, sine;  // the rotations by depth
    std::unique_ptr<LayerStores> keys, values;
    bool wants_queries;

    DecoderCase() {
        make_model();
        make_rows();
        int64_t capacity = pass.prefix + pass.rows, size = model.size;
        bool head_norms = pick(0, 1);
        for (int64_t i = 0; i < model.layer_count; i++) {
            layers.emplace_back(new RandomLayer(model, head_norms, capacity));
            structs.push_back(layers.back()->layer);
        }
        model.layers = structs.data();
        pass.model = &model;
        pass.half = (int32_t)pick(0, 1);
        pass.key_row = size + pick(0, 3);
        pass.value_row = size + pick(0, 3);
        pass.key_head = (capacity - 1) * pass.key_row + size;
        pass.value_head = (capacity - 1) * pass.value_row + size;
        keys = make_stores(pass.key_head, pass.key_row);
        values = make_stores(pass.value_head, pass.value_row);
        wants_queries = pick(0, 1);
    }

    void make_model() {
        model.layer_count = pick(1, 3);
        model.kv_heads = pick(1, 3);
        model.heads = model.kv_heads * pick(1, 4);
        model.size = pick(0, 1) ? 16 * pick(1, 3) : 2 * pick(1, 20);
        model.width = pick(0, 2) ? 16 * pick(1, 6) : pick(1, 90);
        model.hidden = pick(0, 2) ? 16 * pick(1, 20) : pick(1, 300);
        model.epsilon = 1e-5f;
        final_scale = any_floats(model.width);
        model.final_scale = final_scale.get();
        output = Matrix(pick(1, 300), model.width, 1);
        model.output = output.weights;
    }

    void make_rows() {
        int64_t rows = pass.rows = pick(1, 40), half = model.size / 2;
        pass.prefix = pick(0, 3) ? pick(0, 1200) : pick(0, 3);
        pass.logits_rows = pick(0, 1) ? rows : pick(0, rows);
        pass.threads = (int32_t)pick(1, 3);
        visibility = exactly<uint8_t>(rows * rows);
        memset(visibility.get(), 0, rows * rows);
        bool chain = pick(0, 1);
        for (int64_t row = 0; row < rows; row++) {
            int64_t parent = chain ? row - 1 : pick(-1, row - 1);
            if (parent >= 0) memcpy(visibility.get() + row * rows, visibility.get() + parent * rows, rows);
            visibility[row * rows + row] = 1;
            depth.push_back(parent < 0 ? 0 : depth[parent] + 1);
        }
        pass.visibility = chain && pick(0, 1) ? nullptr : visibility.get();
        states = any_floats(rows * model.width);
        cosine = exactly<float>(rows * half);
        sine = exactly<float>(rows * half);
        for (int64_t i = 0; i < rows * half; i++) {
            float angle = any_float(4);
            cosine[i] = cosf(angle);
            sine[i] = sinf(angle);
        }
    }

    std::unique_ptr<LayerStores> make_stores(int64_t head_step, int64_t row_step) {
        int64_t count = model.kv_heads * head_step;
        std::unique_ptr<LayerStores> made(new LayerStores(model.layer_count, count, pass.half ? 2 : 4));
        for (int64_t head = 0; head < model.kv_heads; head++)
            made->fill(head * head_step, pass.prefix * row_step);
        return made;
    }

    // The rows `which`, which see each other in order or as `visible`, into `passed`, behind `prefix` rows.
    const char *read(Passed &passed, const std::vector<int64_t> &which, int64_t prefix, const uint8_t *visible,
                     int64_t logits_rows, int instructions) {
        int64_t rows = (int64_t)which.size(), width = model.width, half = model.size / 2;
        DecoderPass now = pass;
        passed.states = exactly<float>(rows * width);
        passed.queries = exactly<float>(wants_queries ? model.layer_count * model.heads * rows * model.size : 0);
        passed.logits = exactly<float>(logits_rows * output.weights.outputs);
        auto cosines = exactly<float>(rows * half), sines = exactly<float>(rows * half);
        for (int64_t i = 0; i < rows; i++) {
            memcpy(passed.states.get() + i * width, states.get() + which[i] * width, sizeof(float) * width);
            memcpy(cosines.get() + i * half, cosine.get() + depth[which[i]] * half, sizeof(float) * half);
            memcpy(sines.get() + i * half, sine.get() + depth[which[i]] * half, sizeof(float) * half);
        }
        now.states = passed.states.get();
        now.cosine = cosines.get();
        now.sine = sines.get();
        now.keys = passed.keys.pointers.data();
        now.values = passed.values.pointers.data();
        now.visibility = visible;
        now.rows = rows;
        now.prefix = prefix;
        now.queries = passed.queries.get();
        now.logits = passed.logits.get();
        now.logits_rows = logits_rows;
        now.parallel = run_on_threads;
        now.thread_number = thread_number;
        now.thread_count = thread_count;
        now.instructions = instructions;
        now.workspace_bytes = tokenswift_decoder_workspace(&now);
        auto workspace = exactly<char>(now.workspace_bytes);
        now.workspace = workspace.get();
        return tokenswift_decoder(&now) ? "refused" : nullptr;
    }

    const char *run(int instructions) override {
        std::vector<int64_t> all;
        for (int64_t row = 0; row < pass.rows; row++) all.push_back(row);
        Passed together = {*keys, *values, nullptr, nullptr, nullptr};
        if (read(together, all, pass.prefix, pass.visibility, pass.logits_rows, instructions)) return "refused";
        result.assign(together.states.get(), together.states.get() + pass.rows * model.width);
        result.insert(result.end(), together.logits.get(),
                      together.logits.get() + pass.logits_rows * output.weights.outputs);
        for (float number : result)
            if (!isfinite(number)) return "not finite";
        for (int64_t layer = 0; layer < model.layer_count; layer++)
            for (int64_t head = 0; head < model.kv_heads; head++)
                if (!same_rows(together.keys, *keys, layer, head * pass.key_head, head * pass.key_head,
                               pass.prefix * pass.key_row) ||
                    !same_rows(together.values, *values, layer, head * pass.value_head, head * pass.value_head,
                               pass.prefix * pass.value_row))
                    return "changed the prefix";
        return read_alone(together, pick(0, pass.rows - 1), instructions);
    }

    static bool same_rows(const LayerStores &a, const LayerStores &b, int64_t layer, int64_t a_at, int64_t b_at,
                          int64_t size) {
        return same_bits(a.at(layer, a_at), b.at(layer, b_at), size * a.element);
    }

    // Read what `row` sees, one token at a time, and compare all that comes out.
    const char *read_alone(const Passed &together, int64_t row, int instructions) {
        Passed alone = {*keys, *values, nullptr, nullptr, nullptr};
        int64_t rows = pass.rows, width = model.width, size = model.size, vocabulary = output.weights.outputs;
        for (int64_t other = 0; other <= row; other++) {
            if (!visibility[row * rows + other]) continue;
            int64_t from = pass.prefix + other, to = pass.prefix + depth[other];
            if (read(alone, {other}, to, nullptr, 1, instructions)) return "refused";
            if (!same_bits(alone.states.get(), together.states.get() + other * width, sizeof(float) * width))
                return "a row has other states alone";
            int64_t logits_row = other - (rows - pass.logits_rows);
            if (logits_row >= 0 && !same_bits(alone.logits.get(), together.logits.get() + logits_row * vocabulary,
                                              sizeof(float) * vocabulary))
                return "a row has other logits alone";
            for (int64_t layer = 0; layer < model.layer_count; layer++) {
                for (int64_t head = 0; head < model.kv_heads; head++) {
                    int64_t key = head * pass.key_head, value = head * pass.value_head;
                    if (!same_rows(alone.keys, together.keys, layer, key + to * pass.key_row,
                                   key + from * pass.key_row, size))
                        return "a row has another key alone";
                    if (!same_rows(alone.values, together.values, layer, value + to * pass.value_row,
                                   value + from * pass.value_row, size))
                        return "a row has another value alone";
                }
                for (int64_t head = 0; wants_queries && head < model.heads; head++) {
                    int64_t at = layer * model.heads + head;
                    if (!same_bits(alone.queries.get() + at * size, together.queries.get() + (at * rows + other) * size,
                                   sizeof(float) * size))
                        return "a row has another query alone";
                }
            }
        }
        return nullptr;
    }
};
