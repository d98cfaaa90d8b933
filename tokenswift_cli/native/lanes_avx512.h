// Sixteen float lanes: AVX-512 F and BW.
// Can be included again in the same namespace after lanes_end.h: the macros come back, the functions are there.

#define TARGET __attribute__((target("avx512f,avx512bw,avx2,fma,f16c")))
#define WIDTH 16
#define TILE_ROWS 6
#define TRANSPOSED_KEYS 32

#ifndef LANES_AVX512_H
#define LANES_AVX512_H

typedef __m512 Lanes;

INLINE Lanes load(const float *from) { return _mm512_loadu_ps(from); }
INLINE void store(float *to, Lanes x) { _mm512_storeu_ps(to, x); }
INLINE Lanes all(float x) { return _mm512_set1_ps(x); }
INLINE Lanes multiply(Lanes a, Lanes b) { return _mm512_mul_ps(a, b); }
INLINE Lanes add(Lanes a, Lanes b) { return _mm512_add_ps(a, b); }
INLINE Lanes subtract(Lanes a, Lanes b) { return _mm512_sub_ps(a, b); }
INLINE Lanes divide(Lanes a, Lanes b) { return _mm512_div_ps(a, b); }
INLINE Lanes multiply_add(Lanes a, Lanes b, Lanes c) { return _mm512_fmadd_ps(a, b, c); }

// A lane of `b` that is not a number stays so.
INLINE Lanes larger(Lanes a, Lanes b) { return _mm512_max_ps(a, b); }
INLINE float largest(Lanes x) { return _mm512_reduce_max_ps(x); }

// x * 2^n, with n in the low bits of `n`.
INLINE Lanes scale_by_power(Lanes x, Lanes n) {
    __m512i power = _mm512_slli_epi32(_mm512_castps_si512(n), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), power));
}

INLINE Lanes widen(const float *from) { return load(from); }
INLINE Lanes widen(const uint16_t *from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
}

// 16 bytes from each of four rows that are `apart` bytes from each other.
INLINE __m512i four_rows(const char *from, int64_t apart) {
    __m512i rows = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)from));
    rows = _mm512_inserti32x4(rows, _mm_loadu_si128((const __m128i *)(from + apart)), 1);
    rows = _mm512_inserti32x4(rows, _mm_loadu_si128((const __m128i *)(from + 2 * apart)), 2);
    return _mm512_inserti32x4(rows, _mm_loadu_si128((const __m128i *)(from + 3 * apart)), 3);
}

// TRANSPOSED_KEYS rows of 8 elements, `stride` elements apart, to 8 rows of keys, BLOCK_KEYS floats apart.
INLINE void transpose(const uint16_t *from, int64_t stride, float *to) {
    __m512i row[8], pair[8], four[8];
    alignas(64) uint16_t turned[8][TRANSPOSED_KEYS];
    UNROLL for (int i = 0; i < 8; i++) row[i] = four_rows((const char *)(from + i * stride), 16 * stride);
    UNROLL for (int i = 0; i < 4; i++) {
        pair[i] = _mm512_unpacklo_epi16(row[2 * i], row[2 * i + 1]);
        pair[i + 4] = _mm512_unpackhi_epi16(row[2 * i], row[2 * i + 1]);
    }
    UNROLL for (int i = 0; i < 8; i += 2) {
        four[i] = _mm512_unpacklo_epi32(pair[i], pair[i + 1]);
        four[i + 1] = _mm512_unpackhi_epi32(pair[i], pair[i + 1]);
    }
    UNROLL for (int i = 0; i < 4; i++) {
        int low = i / 2 * 4 + i % 2;
        _mm512_store_si512((__m512i *)turned[2 * i], _mm512_unpacklo_epi64(four[low], four[low + 2]));
        _mm512_store_si512((__m512i *)turned[2 * i + 1], _mm512_unpackhi_epi64(four[low], four[low + 2]));
    }
    // From memory the conversion needs no shuffle port, which is busy enough above.
    UNROLL for (int i = 0; i < 8; i++) {
        store(to + i * BLOCK_KEYS, widen(turned[i]));
        store(to + i * BLOCK_KEYS + 16, widen(turned[i] + 16));
    }
}

INLINE void transpose(const float *from, int64_t stride, float *to) {
    UNROLL for (int part = 0; part < 4; part++) {  // 16 keys by 4 columns each
        const float *corner = from + part / 2 * 16 * stride + part % 2 * 4;
        float *target = to + part / 2 * 16 + part % 2 * 4 * BLOCK_KEYS;
        __m512 row[4];
        UNROLL for (int i = 0; i < 4; i++)
            row[i] = _mm512_castsi512_ps(four_rows((const char *)(corner + i * stride), 16 * stride));
        __m512 a = _mm512_unpacklo_ps(row[0], row[1]), b = _mm512_unpacklo_ps(row[2], row[3]);
        __m512 c = _mm512_unpackhi_ps(row[0], row[1]), d = _mm512_unpackhi_ps(row[2], row[3]);
        store(target, _mm512_shuffle_ps(a, b, 0x44));
        store(target + BLOCK_KEYS, _mm512_shuffle_ps(a, b, 0xee));
        store(target + 2 * BLOCK_KEYS, _mm512_shuffle_ps(c, d, 0x44));
        store(target + 3 * BLOCK_KEYS, _mm512_shuffle_ps(c, d, 0xee));
    }
}

// bfloat16 is the upper half of a float32.
INLINE Lanes widen_brain(const uint16_t *from) {
    __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
}

INLINE Lanes widen_bytes(const int8_t *from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from)));
}

// Bits 4 * index to 4 * index + 3 of each of WIDTH 32-bit words, index 0 to 7. Reads up to three bytes behind them:
// a load from a byte further on takes the place of a shift, and loads are what the processor has to spare. The
// permutation looks at the low four bits of a lane only.
INLINE Lanes widen_nibbles(const void *from, int index) {
    __m512i words = _mm512_loadu_si512((const char *)from + index / 2);
    if (index % 2) words = _mm512_srli_epi32(words, 4);
    return _mm512_permutexvar_ps(words, _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
}

#endif
