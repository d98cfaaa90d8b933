// A packed matrix of a random format, and its multiplication by some rows, compared with double precision.

#pragma once

#include "cases.h"

struct Matrix {
    Weights weights = {};
    std::unique_ptr<char[]> storage;
    std::unique_ptr<float[]> bias;
    std::vector<double> values;  // [outputs, inputs]

    Matrix() {}

    // In any format that the number of inputs allows; the weights are at most `most`, about.
    Matrix(int64_t outputs, int64_t inputs, float most) {
        weights.outputs = outputs;
        weights.inputs = inputs;
        weights.block = inputs % 32 ? 16 : (int32_t)pick(1, 2) * 16;
        weights.format = (Format)pick(0, inputs % 16 ? 2 : 4);
        weights.has_minimum = has_scales(weights) && pick(0, 1);
        values.resize(outputs * inputs);
        storage = exactly<char>(tokenswift_pack_bytes(&weights));
        if (has_scales(weights) ? pack_blocks(most) : pack_rows(most)) abort();
        weights.data = storage.get();
        if (pick(0, 1)) bias = any_floats(outputs);
        weights.bias = bias.get();
    }

    int pack_rows(float most) {
        int64_t count = weights.outputs * weights.inputs;
        if (weights.format == Format::SINGLES) {
            auto source = any_floats(count, most);
            values.assign(source.get(), source.get() + count);
            return tokenswift_pack_rows(&weights, source.get(), storage.get());
        }
        bool half = weights.format == Format::HALVES;
        auto source = exactly<uint16_t>(count);
        for (int64_t i = 0; i < count; i++) {
            source[i] = half ? any_half() : any_brain();
            uint32_t bits = (uint32_t)source[i] << 16;
            float single;
            memcpy(&single, &bits, 4);
            values[i] = half ? portable::single_from_half(source[i]) : single;
        }
        return tokenswift_pack_rows(&weights, source.get(), storage.get());
    }

    int pack_blocks(float most) {
        int64_t count = weights.outputs * weights.inputs, blocks = count / weights.block;
        bool nibbles = weights.format == Format::NIBBLES;
        auto levels = exactly<uint8_t>(count);
        auto scales = any_floats(blocks, most / (nibbles ? 16 : 128));
        auto minima = any_floats(weights.has_minimum ? blocks : 0, most);
        for (int64_t i = 0; i < count; i++) {
            levels[i] = (uint8_t)(nibbles ? pick(0, 15) : pick(-128, 127));
            double level = nibbles ? levels[i] : (int8_t)levels[i];
            values[i] = level * scales[i / weights.block] + (minima ? minima[i / weights.block] : 0);
        }
        return tokenswift_pack_blocks(&weights, levels.get(), scales.get(), minima.get(), storage.get());
    }
};

struct LinearCase : Case {
    Matrix matrix;
    LinearCall call = {};
    std::unique_ptr<float[]> x, before;
    std::vector<double> expected;

    static int64_t any_inputs() { return pick(0, 2) ? 16 * pick(1, 18) : pick(1, 200); }

    LinearCase() : matrix(pick(0, 3) ? pick(1, 90) : pick(1, 17), any_inputs(), 2) {
        const Weights &weights = matrix.weights;
        call.weights = &weights;
        call.rows = pick(0, 3) ? pick(1, 20) : pick(1, 140);
        call.x_stride = weights.inputs + pick(0, 3);
        call.y_stride = weights.outputs + pick(0, 3);
        call.threads = (int32_t)pick(1, 4);
        call.parallel = run_on_threads;
        call.add = (int32_t)pick(0, 1);
        x = any_floats((call.rows - 1) * call.x_stride + weights.inputs);
        before = any_floats(room());
        call.x = x.get();
        for (int64_t row = 0; row < call.rows; row++)
            for (int64_t o = 0; o < weights.outputs; o++) {
                double sum = (call.add ? before[row * call.y_stride + o] : 0) + (weights.bias ? weights.bias[o] : 0);
                for (int64_t k = 0; k < weights.inputs; k++)
                    sum += x[row * call.x_stride + k] * matrix.values[o * weights.inputs + k];
                expected.push_back(sum);
            }
    }

    // The last row ends with its last element.
    int64_t room() const { return (call.rows - 1) * call.y_stride + matrix.weights.outputs; }

    const char *run(int instructions) override {
        auto y = copied(before.get(), room());
        call.y = y.get();
        call.instructions = instructions;
        call.workspace_bytes = tokenswift_linear_workspace(&call);
        auto workspace = exactly<char>(call.workspace_bytes);
        call.workspace = workspace.get();
        if (tokenswift_linear(&call)) return "refused";
        result.clear();
        for (int64_t row = 0; row < call.rows; row++) {
            const float *from = y.get() + row * call.y_stride, *end = from + matrix.weights.outputs;
            result.insert(result.end(), from, end);
            int64_t rest = row + 1 < call.rows ? call.y_stride - matrix.weights.outputs : 0;
            if (!same_bits(end, before.get() + (end - y.get()), sizeof(float) * rest)) return "wrote beside the outputs";
        }
        return close_to(expected, result, 2e-3) ? nullptr : "far from double precision";
    }
};
