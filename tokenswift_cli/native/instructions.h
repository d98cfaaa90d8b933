// Which of the compiled instruction sets this processor has.

#pragma once

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace processor {

// 0: portable, 1: AVX2, 2: AVX-512.
static int find_instructions() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    unsigned a, b, c, d;
    bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1);
    if (avx2 && f16c)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") ? 2 : 1;
#endif
    return 0;
}

// Asked once: in a virtual machine each question takes microseconds.
static int best_instructions() {
    static int found = -1;
    int known = __atomic_load_n(&found, __ATOMIC_RELAXED);
    if (known < 0) {
        known = find_instructions();
        __atomic_store_n(&found, known, __ATOMIC_RELAXED);
    }
    return known;
}

}
