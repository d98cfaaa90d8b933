// Runs the packed matrices on random shapes without Python, for the sanitizers: every array has exactly the size that
// the interface promises to stay within. Compares with double precision. Usage: driver SEED ROUNDS

#include "linear.cpp"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <memory>
#include <random>
#include <thread>
#include <vector>

static std::mt19937 generator;

static int64_t pick(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(generator);
}

static float any_float() { return std::uniform_real_distribution<float>(-2, 2)(generator); }

// Stands in for GOMP_parallel.
static void run_on_threads(void (*work)(void *), void *data, unsigned count, unsigned) {
    std::vector<std::thread> others;
    for (unsigned i = 1; i < count; i++) others.emplace_back(work, data);
    work(data);
    for (auto &other : others) other.join();
}

// An array of exactly `size` elements, so that a step outside is seen; and none for none.
template <typename Element>
static std::unique_ptr<Element[]> exactly(int64_t size) {
    return std::unique_ptr<Element[]>(size ? new Element[size] : nullptr);
}

struct Matrix {
    Weights weights = {};
    std::unique_ptr<char[]> storage;
    std::unique_ptr<float[]> bias;
    std::vector<double> values;  // [outputs, inputs]

    Matrix() {
        weights.format = (Format)pick(0, 4);
        weights.block = (int32_t)pick(1, 2) * 16;
        weights.outputs = pick(0, 3) ? pick(1, 90) : pick(1, 17);
        weights.inputs = has_scales(weights) ? weights.block * pick(1, 9) : pick(1, 200);
        weights.has_minimum = has_scales(weights) && pick(0, 1);
        values.resize(weights.outputs * weights.inputs);
        storage = exactly<char>(tokenswift_pack_bytes(&weights));
        int outcome = has_scales(weights) ? pack_blocks() : pack_rows();
        if (outcome) abort();
        weights.data = storage.get();
        if (pick(0, 1)) {
            bias = exactly<float>(weights.outputs);
            for (int64_t i = 0; i < weights.outputs; i++) bias[i] = any_float();
        }
        weights.bias = bias.get();
    }

    int pack_rows() {
        int64_t count = weights.outputs * weights.inputs;
        if (weights.format == Format::SINGLES) {
            auto source = exactly<float>(count);
            for (int64_t i = 0; i < count; i++) values[i] = source[i] = any_float();
            return tokenswift_pack_rows(&weights, source.get(), storage.get());
        }
        bool half = weights.format == Format::HALVES;
        auto source = exactly<uint16_t>(count);
        for (int64_t i = 0; i < count; i++) {
            // Sign, an exponent from 2^-7 to 2^0, and any fraction.
            source[i] = (uint16_t)(half ? pick(0, 1) << 15 | pick(8, 15) << 10 | pick(0, 1023)
                                        : pick(0, 1) << 15 | pick(120, 127) << 7 | pick(0, 127));
            uint32_t bits = (uint32_t)source[i] << 16;
            float single;
            memcpy(&single, &bits, 4);
            values[i] = half ? portable::single_from_half(source[i]) : single;
        }
        return tokenswift_pack_rows(&weights, source.get(), storage.get());
    }

    int pack_blocks() {
        int64_t count = weights.outputs * weights.inputs, blocks = count / weights.block;
        auto levels = exactly<uint8_t>(count);
        auto scales = exactly<float>(blocks), minima = exactly<float>(weights.has_minimum ? blocks : 0);
        for (int64_t i = 0; i < blocks; i++) {
            scales[i] = any_float() / 16;
            if (weights.has_minimum) minima[i] = any_float();
        }
        for (int64_t i = 0; i < count; i++) {
            levels[i] = (uint8_t)(weights.format == Format::NIBBLES ? pick(0, 15) : pick(-128, 127));
            double level = weights.format == Format::NIBBLES ? levels[i] : (int8_t)levels[i];
            values[i] = level * scales[i / weights.block] + (minima ? minima[i / weights.block] : 0);
        }
        return tokenswift_pack_blocks(&weights, levels.get(), scales.get(), minima.get(), storage.get());
    }
};

static double check_one(int instructions) {
    Matrix matrix;
    const Weights &weights = matrix.weights;
    LinearCall call = {};
    call.weights = &weights;
    call.rows = pick(0, 3) ? pick(1, 20) : pick(1, 140);
    call.x_stride = weights.inputs + pick(0, 3);
    call.y_stride = weights.outputs + pick(0, 3);
    call.threads = (int32_t)pick(1, 4);
    call.parallel = run_on_threads;
    call.add = (int32_t)pick(0, 1);
    call.instructions = instructions;
    // The last row ends with its last element.
    auto x = exactly<float>((call.rows - 1) * call.x_stride + weights.inputs);
    auto y = exactly<float>((call.rows - 1) * call.y_stride + weights.outputs);
    std::vector<double> expected(call.rows * weights.outputs);
    for (int64_t row = 0; row < call.rows; row++) {
        for (int64_t k = 0; k < weights.inputs; k++) x[row * call.x_stride + k] = any_float();
        for (int64_t o = 0; o < weights.outputs; o++) {
            float before = any_float();
            if (call.add) y[row * call.y_stride + o] = before;
            double sum = (call.add ? before : 0) + (weights.bias ? weights.bias[o] : 0);
            for (int64_t k = 0; k < weights.inputs; k++)
                sum += x[row * call.x_stride + k] * matrix.values[o * weights.inputs + k];
            expected[row * weights.outputs + o] = sum;
        }
    }
    call.x = x.get();
    call.y = y.get();
    call.workspace_bytes = tokenswift_linear_workspace(&call);
    auto workspace = exactly<char>(call.workspace_bytes);
    call.workspace = workspace.get();
    if (tokenswift_linear(&call)) return 1e9;

    double worst = 0;
    for (int64_t row = 0; row < call.rows; row++)
        for (int64_t o = 0; o < weights.outputs; o++) {
            double error = fabs(expected[row * weights.outputs + o] - y[row * call.y_stride + o]);
            worst = error > worst || error != error ? error : worst;
        }
    return worst;
}

int main(int count, char **words) {
    if (count != 3) return 2;
    generator.seed((unsigned)atoi(words[1]));
    for (int round = 0; round < atoi(words[2]); round++) {
        int instructions = (int)pick(0, processor::best_instructions());
        double error = check_one(instructions);
        // Sums of up to 288 products of at most 2 * 18.
        if (!(error < 2e-3)) {
            printf("round %d, instructions %d: error %g\n", round, instructions, error);
            return 1;
        }
    }
    puts("fine");
    return 0;
}
