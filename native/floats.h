/* The number formats, one value at a time and without branches, so that compilers make vectors of them.
 *
 * Every function takes and gives bits. Infinity and NaN of a float32 are 0x7F800000 and all magnitudes above it.
 */
#ifndef COLDCTL_FLOATS_H
#define COLDCTL_FLOATS_H

#include <float.h>
#include <stdint.h>
#include <string.h>

#if FLT_EVAL_METHOD != 0
#error "float arithmetic is wider than float here: results would be rounded twice"
#endif
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "weights are little-endian, and these kernels read them as the processor does"
#endif

#define INLINE static inline __attribute__((always_inline))

/* Values at any address: those of a file are seldom aligned to their size. */
typedef uint16_t bits16 __attribute__((aligned(1), may_alias));
typedef uint32_t bits32 __attribute__((aligned(1), may_alias));
typedef uint64_t bits64 __attribute__((aligned(1), may_alias));
typedef int64_t index64 __attribute__((aligned(1), may_alias));
typedef float float32 __attribute__((aligned(1), may_alias));

#define SIGN 0x80000000u
#define INFINITE 0x7F800000u
#define QUIET_NAN 0x7FC00000u
/* The exponent field of 2^n. */
#define POWER_OF_TWO(n) ((uint32_t)(127 + (n)) << 23)

INLINE float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

INLINE uint32_t from_bf16(uint16_t bits) { return (uint32_t)bits << 16; }

INLINE uint32_t from_f32(uint32_t bits) { return bits; }

/* A small float whose exponent and mantissa are in place, but whose exponent is still `rebias` too low. Its subnormals
 * are read as if they were normal, with a leading one that is then subtracted. `first_normal` and `first_nonfinite`
 * are magnitudes before the rebias. */
INLINE uint32_t rebiased(uint32_t magnitude, int rebias, uint32_t first_normal, uint32_t first_nonfinite) {
    const uint32_t up = (uint32_t)rebias << 23;
    uint32_t normal = magnitude + up;
    uint32_t subnormal = bits_of(float_of(magnitude + up + (1u << 23)) - float_of(up + (1u << 23)));
    uint32_t finite = magnitude < first_normal ? subnormal : normal;
    return magnitude >= first_nonfinite ? magnitude | INFINITE : finite;
}

INLINE uint32_t from_f16(uint16_t bits) {
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16;
    return sign | rebiased((uint32_t)(bits & 0x7FFF) << 13, 127 - 15, 1u << 23, 31u << 23);
}

INLINE uint32_t from_e5m2(uint8_t code) {
    uint32_t sign = (uint32_t)(code & 0x80) << 24;
    return sign | rebiased((uint32_t)(code & 0x7F) << 21, 127 - 15, 1u << 23, 31u << 23);
}

/* E4M3 has no infinity: its only NaN is the code with all bits set. */
INLINE uint32_t from_e4m3(uint8_t code) {
    uint32_t sign = (uint32_t)(code & 0x80) << 24;
    return sign | rebiased((uint32_t)(code & 0x7F) << 20, 127 - 7, 1u << 23, 0x7Fu << 20);
}

/* Rounds to nearest even and saturates at `most`, infinity too. `mantissa` bits are kept, `lowest` is the exponent of
 * the smallest normal number. To a power of two whose last place is the last place of the result, the processor adds
 * the magnitude rounded to that place: what then stands above `unit` counts the codes from the exponent's first one. */
INLINE uint8_t to_fp8(uint32_t bits, int mantissa, int lowest, uint32_t most) {
    const int dropped = 23 - mantissa;
    uint32_t magnitude = bits & ~SIGN;
    uint32_t clamped = magnitude < most ? magnitude : most;
    uint32_t exponent = clamped & INFINITE;
    uint32_t unit = (exponent > POWER_OF_TWO(lowest) ? exponent : POWER_OF_TWO(lowest)) + ((uint32_t)dropped << 23);
    uint32_t places = bits_of(float_of(clamped) + float_of(unit)) - unit;
    uint32_t finite = places + ((unit - POWER_OF_TWO(lowest + dropped)) >> dropped);
    uint32_t code = magnitude > INFINITE ? 0x7F : finite;
    return (uint8_t)(code | (bits & SIGN) >> 24);
}

INLINE uint8_t to_e4m3(uint32_t bits) { return to_fp8(bits, 3, -6, 0x43E00000u /* 448 */); }

INLINE uint8_t to_e5m2(uint32_t bits) { return to_fp8(bits, 2, -14, 0x47600000u /* 57344 */); }

/* Every NaN becomes the same one: which of two NaNs a product keeps differs between processors. */
INLINE uint32_t to_f32(uint32_t bits) { return (bits & ~SIGN) > INFINITE ? QUIET_NAN : bits; }

INLINE uint16_t to_bf16(uint32_t bits) {
    uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    return (uint16_t)((bits & ~SIGN) > INFINITE ? QUIET_NAN >> 16 : rounded);
}

#endif
