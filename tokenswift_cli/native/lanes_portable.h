// Four float lanes in plain C++: any compiler with GCC's vector types, any processor.
// Can be included again in the same namespace after lanes_end.h: the macros come back, the functions are there.

#define TARGET
#define WIDTH 4
#define TILE_ROWS 4
#define TRANSPOSED_KEYS 8

#ifndef LANES_PORTABLE_H
#define LANES_PORTABLE_H

typedef float Lanes __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t Bits __attribute__((vector_size(16)));

INLINE Lanes load(const float *from) { return *(const Lanes *)from; }
INLINE void store(float *to, Lanes x) { *(Lanes *)to = x; }
INLINE Lanes all(float x) { return Lanes{x, x, x, x}; }
INLINE Lanes multiply(Lanes a, Lanes b) { return a * b; }
INLINE Lanes add(Lanes a, Lanes b) { return a + b; }
INLINE Lanes subtract(Lanes a, Lanes b) { return a - b; }
INLINE Lanes divide(Lanes a, Lanes b) { return a / b; }

INLINE Lanes multiply_add(Lanes a, Lanes b, Lanes c) {
#if defined(__FP_FAST_FMAF) || defined(TOKENSWIFT_EXACT_FMA)
    for (int i = 0; i < WIDTH; i++) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
#else
    return a * b + c;
#endif
}

// A lane of `b` that is not a number stays so.
INLINE Lanes larger(Lanes a, Lanes b) {
    for (int i = 0; i < WIDTH; i++) b[i] = a[i] > b[i] ? a[i] : b[i];
    return b;
}

INLINE float largest(Lanes x) {
    float a = x[0] > x[1] ? x[0] : x[1], b = x[2] > x[3] ? x[2] : x[3];
    return a > b ? a : b;
}

// x * 2^n, with n in the low bits of `n`.
INLINE Lanes scale_by_power(Lanes x, Lanes n) {
    Bits power = (Bits)((Bits)n << 23);
    return (Lanes)((Bits)x + power);
}

INLINE float single_from_half(uint16_t half) {
    uint32_t rest = half & 0x7fffu, bits = rest << 13;
    float x;
    memcpy(&x, &bits, 4);
    x *= 0x1p112f;  // moves the exponent to single precision's bias, subnormals included
    memcpy(&bits, &x, 4);
    if (rest >= 0x7c00u) bits |= 0x7f800000u;  // infinity and NaN
    bits |= (uint32_t)(half & 0x8000u) << 16;
    memcpy(&x, &bits, 4);
    return x;
}

INLINE Lanes widen(const float *from) { return load(from); }
INLINE Lanes widen(const uint16_t *from) {
    return Lanes{single_from_half(from[0]), single_from_half(from[1]), single_from_half(from[2]),
                 single_from_half(from[3])};
}

// TRANSPOSED_KEYS rows of 8 elements, `stride` elements apart, to 8 rows of keys, BLOCK_KEYS floats apart.
template <typename Stored>
INLINE void transpose(const Stored *from, int64_t stride, float *to) {
    for (int key = 0; key < TRANSPOSED_KEYS; key++) {
        float row[8];
        store(row, widen(from + key * stride));
        store(row + 4, widen(from + key * stride + 4));
        for (int i = 0; i < 8; i++) to[i * BLOCK_KEYS + key] = row[i];
    }
}

// bfloat16 is the upper half of a float32.
INLINE Lanes widen_brain(const uint16_t *from) {
    Bits bits = {(int32_t)((uint32_t)from[0] << 16), (int32_t)((uint32_t)from[1] << 16),
                 (int32_t)((uint32_t)from[2] << 16), (int32_t)((uint32_t)from[3] << 16)};
    return (Lanes)bits;
}

INLINE Lanes widen_bytes(const int8_t *from) {
    return Lanes{(float)from[0], (float)from[1], (float)from[2], (float)from[3]};
}

// Bits 4 * index to 4 * index + 3 of each of WIDTH 32-bit words, index 0 to 7.
INLINE Lanes widen_nibbles(const void *from, int index) {
    Bits words;
    memcpy(&words, from, sizeof(words));
    words = (words >> 4 * index) & 15;
    return Lanes{(float)words[0], (float)words[1], (float)words[2], (float)words[3]};
}

#endif
