/* The same loops compiled for several instruction sets, and which of them this processor has. */
#include "level.h"

#include "floats.h"

enum { BLOCK_VALUES = 4096 };

#define MAGNITUDE_8(code) ((code) & 0x7F)
#define MAGNITUDE_16(bits) ((bits) & 0x7FFF)
#define MAGNITUDE_32(bits) ((bits) & 0x7FFFFFFF)
#define MAGNITUDE_64(bits) ((bits) & 0x7FFFFFFFFFFFFFFF)
/* The only NaN of the FNUZ formats is 0x80. */
#define FNUZ(code) ((code) ^ 0x7F)
#define AS_IT_IS(code) (code)

#define IN_LEVEL(name) name##_portable
#define TARGET
#define LANES 2
#include "loops.h"

#ifdef __x86_64__

/* gcc takes half of the registers' width unless it is told; clang cannot be told by an attribute. */
#ifdef __clang__
#define WHOLE_WIDTH
#else
#define WHOLE_WIDTH ",prefer-vector-width=512"
#endif

#define IN_LEVEL(name) name##_avx2
#define TARGET __attribute__((target("avx2")))
#define LANES 4
#include "loops.h"

#define IN_LEVEL(name) name##_avx512
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl" WHOLE_WIDTH)))
#define LANES 8
#include "loops.h"

const level *const levels[] = {&level_portable, &level_avx2, &level_avx512};

int levels_here(void) {
    if (!__builtin_cpu_supports("avx2"))
        return 1;
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
               ? 3
               : 2;
}

#else

const level *const levels[] = {&level_portable};

int levels_here(void) { return 1; }

#endif
