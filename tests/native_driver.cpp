// Runs the kernel on random shapes without Python, for the sanitizers: every array has exactly the size that
// the interface promises to stay within. Compares with double precision. Usage: driver SEED ROUNDS

#include "attention.cpp"

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

// Stands in for GOMP_parallel.
static void run_on_threads(void (*work)(void *), void *data, unsigned count, unsigned) {
    std::vector<std::thread> others;
    for (unsigned i = 1; i < count; i++) others.emplace_back(work, data);
    work(data);
    for (auto &other : others) other.join();
}

struct Store {
    bool half;
    std::unique_ptr<float[]> single;
    std::unique_ptr<uint16_t[]> halves;

    Store(bool half, int64_t size) : half(half) {
        std::uniform_real_distribution<float> any(-2, 2);
        if (half) {
            halves.reset(new uint16_t[size]);
            // Sign, an exponent from 2^-7 to 2^0, and any fraction.
            for (int64_t i = 0; i < size; i++)
                halves[i] = (uint16_t)(pick(0, 1) << 15 | pick(8, 15) << 10 | pick(0, 1023));
        } else {
            single.reset(new float[size]);
            for (int64_t i = 0; i < size; i++) single[i] = any(generator);
        }
    }
    const void *data() const { return half ? (const void *)halves.get() : single.get(); }
    double at(int64_t i) const { return half ? portable::single_from_half(halves[i]) : single[i]; }
};

static double check_one(int instructions) {
    Call call = {};
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
    call.instructions = instructions;
    call.key_row = call.key_size + pick(0, 3);
    call.value_row = call.value_size + pick(0, 3);
    int64_t capacity = call.prefix + call.rows;
    // The last row of the last head ends with its last element.
    int64_t key_count = (capacity - 1) * call.key_row + call.key_size;
    int64_t value_count = (capacity - 1) * call.value_row + call.value_size;
    call.key_head = key_count;
    call.value_head = value_count;
    Store keys(call.half, call.kv_heads * key_count), values(call.half, call.kv_heads * value_count);
    call.keys = keys.data();
    call.values = values.data();

    int64_t folded = call.group * call.rows, queries = call.kv_heads * folded;
    Store query(false, queries * call.key_size);
    call.query = query.single.get();
    call.query_row = call.key_size;
    call.query_group = call.rows * call.key_size;
    call.query_head = folded * call.key_size;
    std::unique_ptr<float[]> output(new float[queries * call.value_size]);
    call.output = output.get();
    call.output_row = call.value_size;
    call.output_group = call.rows * call.value_size;
    call.output_head = folded * call.value_size;
    std::unique_ptr<uint8_t[]> visibility(new uint8_t[call.rows * call.rows]);
    bool causal = pick(0, 2) == 0;
    for (int64_t row = 0; row < call.rows; row++)
        for (int64_t other = 0; other < call.rows; other++)
            visibility[row * call.rows + other] = causal ? other <= row : row == other || pick(0, 2) == 0;
    call.visibility = causal ? nullptr : visibility.get();
    call.workspace_bytes = tokenswift_attention_workspace(&call);
    std::unique_ptr<char[]> workspace(new char[call.workspace_bytes]);
    call.workspace = workspace.get();
    if (tokenswift_attention(&call)) return 1e9;

    double worst = 0;
    for (int64_t r = 0; r < queries; r++) {
        int64_t head = r / folded, row = r % call.rows;
        std::vector<int64_t> seen;
        for (int64_t i = 0; i < call.prefix; i++) seen.push_back(i);
        for (int64_t i = 0; i < call.rows; i++)
            if (visibility[row * call.rows + i]) seen.push_back(call.prefix + i);
        if (call.window && (int64_t)seen.size() > call.window) seen.erase(seen.begin(), seen.end() - call.window);
        std::vector<double> weights;
        double peak = -1e300, total = 0;
        for (int64_t i : seen) {
            double score = 0;
            for (int64_t k = 0; k < call.key_size; k++)
                score += query.at(r * call.key_size + k) * keys.at(head * key_count + i * call.key_row + k);
            weights.push_back(score * call.scale);
            peak = fmax(peak, weights.back());
        }
        for (double &weight : weights) total += weight = exp(weight - peak);
        for (int64_t j = 0; j < call.value_size; j++) {
            double expected = 0;
            for (size_t i = 0; i < seen.size(); i++)
                expected += weights[i] / total * values.at(head * value_count + seen[i] * call.value_row + j);
            double error = fabs(expected - output[r * call.value_size + j]);
            worst = error > worst || error != error ? error : worst;
        }
    }
    return worst;
}

int main(int count, char **words) {
    if (count != 3) return 2;
    generator.seed((unsigned)atoi(words[1]));
    for (int round = 0; round < atoi(words[2]); round++) {
        int instructions = (int)pick(0, processor::best_instructions());
        double error = check_one(instructions);
        if (!(error < 2e-5)) {
            printf("round %d, instructions %d: error %g\n", round, instructions, error);
            return 1;
        }
    }
    puts("fine");
    return 0;
}
