// Eight float lanes: AVX2, FMA and F16C.
// Can be included again in the same namespace after lanes_end.h: the macros come back, the functions are there.

#define TARGET __attribute__((target("avx2,fma,f16c")))
#define WIDTH 8
#define TILE_ROWS 3
#define TRANSPOSED_KEYS 16

#ifndef LANES_AVX2_H
#define LANES_AVX2_H

typedef __m256 Lanes;

INLINE Lanes load(const float *from) { return _mm256_loadu_ps(from); }
INLINE void store(float *to, Lanes x) { _mm256_storeu_ps(to, x); }
INLINE Lanes all(float x) { return _mm256_set1_ps(x); }
INLINE Lanes multiply(Lanes a, Lanes b) { return _mm256_mul_ps(a, b); }
INLINE Lanes add(Lanes a, Lanes b) { return _mm256_add_ps(a, b); }
INLINE Lanes subtract(Lanes a, Lanes b) { return _mm256_sub_ps(a, b); }
INLINE Lanes divide(Lanes a, Lanes b) { return _mm256_div_ps(a, b); }
INLINE Lanes multiply_add(Lanes a, Lanes b, Lanes c) { return _mm256_fmadd_ps(a, b, c); }

// A lane of `b` that is not a number stays so.
INLINE Lanes larger(Lanes a, Lanes b) { return _mm256_max_ps(a, b); }

INLINE float largest(Lanes x) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

// x * 2^n, with n in the low bits of `n`.
INLINE Lanes scale_by_power(Lanes x, Lanes n) {
    __m256i power = _mm256_slli_epi32(_mm256_castps_si256(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), power));
}

INLINE Lanes widen(const float *from) { return load(from); }
INLINE Lanes widen(const uint16_t *from) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from)); }

INLINE __m256i two_rows(const uint16_t *low, const uint16_t *high) {
    __m128i first = _mm_loadu_si128((const __m128i *)low), second = _mm_loadu_si128((const __m128i *)high);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
}

INLINE __m256 two_rows(const float *low, const float *high) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low)), _mm_loadu_ps(high), 1);
}

// TRANSPOSED_KEYS rows of 8 elements, `stride` elements apart, to 8 rows of keys, BLOCK_KEYS floats apart.
INLINE void transpose(const uint16_t *from, int64_t stride, float *to) {
    __m256i row[8], pair[8], four[8];
    alignas(32) uint16_t turned[8][TRANSPOSED_KEYS];
    UNROLL for (int i = 0; i < 8; i++) row[i] = two_rows(from + i * stride, from + (i + 8) * stride);
    UNROLL for (int i = 0; i < 4; i++) {
        pair[i] = _mm256_unpacklo_epi16(row[2 * i], row[2 * i + 1]);
        pair[i + 4] = _mm256_unpackhi_epi16(row[2 * i], row[2 * i + 1]);
    }
    UNROLL for (int i = 0; i < 8; i += 2) {
        four[i] = _mm256_unpacklo_epi32(pair[i], pair[i + 1]);
        four[i + 1] = _mm256_unpackhi_epi32(pair[i], pair[i + 1]);
    }
    UNROLL for (int i = 0; i < 4; i++) {
        int low = i / 2 * 4 + i % 2;
        _mm256_store_si256((__m256i *)turned[2 * i], _mm256_unpacklo_epi64(four[low], four[low + 2]));
        _mm256_store_si256((__m256i *)turned[2 * i + 1], _mm256_unpackhi_epi64(four[low], four[low + 2]));
    }
    // From memory the conversion needs no shuffle port, which is busy enough above.
    UNROLL for (int i = 0; i < 8; i++) {
        store(to + i * BLOCK_KEYS, widen(turned[i]));
        store(to + i * BLOCK_KEYS + 8, widen(turned[i] + 8));
    }
}

INLINE void transpose(const float *from, int64_t stride, float *to) {
    UNROLL for (int part = 0; part < 4; part++) {  // 8 keys by 4 columns each
        const float *corner = from + part / 2 * 8 * stride + part % 2 * 4;
        float *target = to + part / 2 * 8 + part % 2 * 4 * BLOCK_KEYS;
        __m256 row[4];
        UNROLL for (int i = 0; i < 4; i++) row[i] = two_rows(corner + i * stride, corner + (i + 4) * stride);
        __m256 a = _mm256_unpacklo_ps(row[0], row[1]), b = _mm256_unpacklo_ps(row[2], row[3]);
        __m256 c = _mm256_unpackhi_ps(row[0], row[1]), d = _mm256_unpackhi_ps(row[2], row[3]);
        store(target, _mm256_shuffle_ps(a, b, 0x44));
        store(target + BLOCK_KEYS, _mm256_shuffle_ps(a, b, 0xee));
        store(target + 2 * BLOCK_KEYS, _mm256_shuffle_ps(c, d, 0x44));
        store(target + 3 * BLOCK_KEYS, _mm256_shuffle_ps(c, d, 0xee));
    }
}

// bfloat16 is the upper half of a float32.
INLINE Lanes widen_brain(const uint16_t *from) {
    __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
}

INLINE Lanes widen_bytes(const int8_t *from) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)from)));
}

// Bits 4 * index to 4 * index + 3 of each of WIDTH 32-bit words, index 0 to 7. Reads up to three bytes behind them:
// a load from a byte further on takes the place of a shift, and loads are what the processor has to spare.
INLINE Lanes widen_nibbles(const void *from, int index) {
    __m256i words = _mm256_loadu_si256((const __m256i *)((const char *)from + index / 2));
    if (index % 2) words = _mm256_srli_epi32(words, 4);
    return _mm256_cvtepi32_ps(_mm256_and_si256(words, _mm256_set1_epi32(15)));
}

#endif
