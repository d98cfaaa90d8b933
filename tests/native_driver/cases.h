// What all cases share: random numbers, arrays of exact sizes, threads, and what a case is.

#pragma once

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

static float any_float(float size = 2) { return std::uniform_real_distribution<float>(-size, size)(generator); }

// A number of 16 bits: sign, an exponent from 2^-7 to 2^0, and any fraction.
static uint16_t any_half() { return (uint16_t)(pick(0, 1) << 15 | pick(8, 15) << 10 | pick(0, 1023)); }
static uint16_t any_brain() { return (uint16_t)(pick(0, 1) << 15 | pick(120, 127) << 7 | pick(0, 127)); }

// An array of exactly `size` elements, so that a step outside is seen; and none for none. Every byte is set, so that
// what was forgotten to be written is no number.
template <typename Element>
static std::unique_ptr<Element[]> exactly(int64_t size) {
    std::unique_ptr<Element[]> made(size ? new Element[size] : nullptr);
    if (size) memset(made.get(), 0xff, sizeof(Element) * size);
    return made;
}

template <typename Element>
static std::unique_ptr<Element[]> copied(const Element *from, int64_t size) {
    std::unique_ptr<Element[]> made = exactly<Element>(size);
    if (size) memcpy(made.get(), from, sizeof(Element) * size);
    return made;
}

static std::unique_ptr<float[]> any_floats(int64_t size, float most = 2) {
    std::unique_ptr<float[]> made = exactly<float>(size);
    for (int64_t i = 0; i < size; i++) made[i] = any_float(most);
    return made;
}

// Stand in for OpenMP's functions. As there, there may be fewer threads than are asked for.
static thread_local int own_number = 0, own_count = 1;

static int thread_number() { return own_number; }
static int thread_count() { return own_count; }

static void run_on_threads(void (*work)(void *), void *data, unsigned asked, unsigned) {
    int count = (int)pick(pick(0, 3) ? asked : 1, asked);
    std::vector<std::thread> others;
    for (int i = 0; i < count; i++) {
        auto run = [=] {
            own_number = i;
            own_count = count;
            work(data);
        };
        if (i + 1 < count)
            others.emplace_back(run);
        else
            run();
    }
    for (auto &other : others) other.join();
    own_number = 0;
    own_count = 1;
}

// One random call. It can be run with each instruction set.
struct Case {
    virtual ~Case() {}
    // Null, or what is wrong; the result is left in `result`.
    virtual const char *run(int instructions) = 0;
    std::vector<float> result;
};

static bool close_to(const std::vector<double> &expected, const std::vector<float> &actual, double allowed) {
    for (size_t i = 0; i < expected.size(); i++)
        if (!(fabs(expected[i] - actual[i]) < allowed)) return false;
    return expected.size() == actual.size();
}

static bool same_bits(const void *a, const void *b, int64_t bytes) { return !bytes || memcmp(a, b, bytes) == 0; }
