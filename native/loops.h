/* The loops of one level. Included once for each: IN_LEVEL(name) gives a name its suffix, TARGET the instructions, and
 * LANES says how many words their registers hold. */

#define ENCODE(DTYPE, TYPE, FORMAT)                                                                                    \
    static TARGET void IN_LEVEL(encode_##DTYPE##_##FORMAT)(const void *restrict values, int64_t count, float scale,    \
                                                           uint8_t *restrict codes) {                                  \
        const TYPE *from = values;                                                                                     \
        if (scale == 1)                                                                                                \
            for (int64_t i = 0; i < count; i++)                                                                        \
                codes[i] = to_##FORMAT(from_##DTYPE(from[i]));                                                         \
        else                                                                                                           \
            for (int64_t i = 0; i < count; i++)                                                                        \
                codes[i] = to_##FORMAT(bits_of(float_of(from_##DTYPE(from[i])) / scale));                              \
    }

ENCODE(bf16, bits16, e4m3)
ENCODE(bf16, bits16, e5m2)
ENCODE(f16, bits16, e4m3)
ENCODE(f16, bits16, e5m2)
ENCODE(f32, bits32, e4m3)
ENCODE(f32, bits32, e5m2)

#define DECODE(FORMAT, DTYPE, TYPE)                                                                                    \
    static TARGET void IN_LEVEL(decode_##FORMAT##_##DTYPE)(const uint8_t *restrict codes, int64_t count, float scale,  \
                                                           void *restrict values) {                                    \
        TYPE *to = values;                                                                                             \
        for (int64_t i = 0; i < count; i++)                                                                            \
            to[i] = to_##DTYPE(bits_of(float_of(from_##FORMAT(codes[i])) * scale));                                    \
    }

DECODE(e4m3, bf16, bits16)
DECODE(e4m3, f32, bits32)
DECODE(e5m2, bf16, bits16)
DECODE(e5m2, f32, bits32)

/* Magnitudes compare as whole numbers do. They fit signed ones, whose maximum more instruction sets have. */
#define AMAX(DTYPE, TYPE, SIGNED, INFINITY_BITS)                                                                       \
    static TARGET uint32_t IN_LEVEL(amax_##DTYPE)(const void *values, int64_t count) {                                 \
        const TYPE *from = values;                                                                                     \
        SIGNED most = 0;                                                                                               \
        for (int64_t i = 0; i < count; i++) {                                                                          \
            SIGNED magnitude = (SIGNED)(from[i] & ~((TYPE)1 << (8 * sizeof(TYPE) - 1)));                               \
            SIGNED finite = magnitude < INFINITY_BITS ? magnitude : 0;                                                 \
            most = finite > most ? finite : most;                                                                      \
        }                                                                                                              \
        return (uint32_t)most;                                                                                         \
    }

AMAX(bf16, bits16, int16_t, 0x7F80)
AMAX(f16, bits16, int16_t, 0x7C00)
AMAX(f32, bits32, int32_t, 0x7F800000)

/* KEY orders the values of a dtype so that all that are not finite come last, from FIRST on, which is infinity where
 * the dtype HAS_INFINITY. Most blocks have none of them, which their largest key tells. */
#define SCAN(DTYPE, TYPE, ORDERED, KEY, FIRST, HAS_INFINITY)                                                           \
    static TARGET found_values IN_LEVEL(scan_##DTYPE)(const void *values, int64_t count) {                             \
        const TYPE *from = values;                                                                                     \
        found_values found = {0, 0};                                                                                   \
        for (int64_t start = 0; start < count; start += BLOCK_VALUES) {                                                \
            int64_t end = count - start < BLOCK_VALUES ? count : start + BLOCK_VALUES;                                 \
            ORDERED most = 0;                                                                                          \
            for (int64_t i = start; i < end; i++) {                                                                    \
                ORDERED key = (ORDERED)(KEY(from[i]));                                                                 \
                most = key > most ? key : most;                                                                        \
            }                                                                                                          \
            if (most < FIRST)                                                                                          \
                continue;                                                                                              \
            for (int64_t i = start; i < end; i++) {                                                                    \
                ORDERED key = (ORDERED)(KEY(from[i]));                                                                 \
                found.nans += key >= FIRST + HAS_INFINITY;                                                             \
                found.infinities += HAS_INFINITY && key == FIRST;                                                      \
            }                                                                                                          \
        }                                                                                                              \
        return found;                                                                                                  \
    }

SCAN(bf16, bits16, int16_t, MAGNITUDE_16, 0x7F80, 1)
SCAN(f16, bits16, int16_t, MAGNITUDE_16, 0x7C00, 1)
SCAN(f32, bits32, int32_t, MAGNITUDE_32, 0x7F800000, 1)
SCAN(f64, bits64, int64_t, MAGNITUDE_64, 0x7FF0000000000000, 1)
SCAN(e4m3, uint8_t, uint8_t, MAGNITUDE_8, 0x7F, 0)
SCAN(e5m2, uint8_t, uint8_t, MAGNITUDE_8, 0x7C, 1)
SCAN(fnuz, uint8_t, uint8_t, FNUZ, 0xFF, 0)
SCAN(e8m0, uint8_t, uint8_t, AS_IT_IS, 0xFF, 0)

/* Adding up the running sums weighs the words without a product: of `rounds` rounds, the word of round k was added
 * rounds - k times. */
static TARGET sums IN_LEVEL(word_sums)(const uint8_t *bytes, int64_t nbytes) {
    typedef uint64_t lanes __attribute__((vector_size(LANES * 8)));
    int64_t rounds = nbytes / (LANES * 8);
    lanes sum = {0}, running = {0};
    for (int64_t k = 0; k < rounds; k++) {
        lanes words;
        memcpy(&words, bytes + k * LANES * 8, sizeof words);
        sum += words;
        running += sum;
    }
    sums result = {0, 0};
    for (uint64_t lane = 0; lane < LANES; lane++) {
        result.words += sum[lane];
        result.weighted += (LANES * (uint64_t)rounds + lane + 1) * sum[lane] - LANES * running[lane];
    }
    for (int64_t at = rounds * LANES * 8; at < nbytes; at += 8) {
        uint64_t word = 0;
        memcpy(&word, bytes + at, nbytes - at < 8 ? (size_t)(nbytes - at) : 8);
        result.words += word;
        result.weighted += ((uint64_t)at / 8 + 1) * word;
    }
    return result;
}

static const level IN_LEVEL(level) = {
    .amax = {IN_LEVEL(amax_bf16), IN_LEVEL(amax_f16), IN_LEVEL(amax_f32)},
    .encode = {{IN_LEVEL(encode_bf16_e4m3), IN_LEVEL(encode_bf16_e5m2)},
               {IN_LEVEL(encode_f16_e4m3), IN_LEVEL(encode_f16_e5m2)},
               {IN_LEVEL(encode_f32_e4m3), IN_LEVEL(encode_f32_e5m2)}},
    .decode = {{[BF16] = IN_LEVEL(decode_e4m3_bf16), [F32] = IN_LEVEL(decode_e4m3_f32)},
               {[BF16] = IN_LEVEL(decode_e5m2_bf16), [F32] = IN_LEVEL(decode_e5m2_f32)}},
    .scan = {IN_LEVEL(scan_bf16), IN_LEVEL(scan_f16), IN_LEVEL(scan_f32), IN_LEVEL(scan_f64), IN_LEVEL(scan_e4m3),
             IN_LEVEL(scan_e5m2), IN_LEVEL(scan_fnuz), IN_LEVEL(scan_fnuz), IN_LEVEL(scan_e8m0)},
    .word_sums = IN_LEVEL(word_sums),
};

#undef ENCODE
#undef DECODE
#undef AMAX
#undef SCAN
#undef IN_LEVEL
#undef TARGET
#undef LANES
