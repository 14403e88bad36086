/* What the library exports. The caller has checked that levels and dtypes exist and that buffers are as long as rows
 * and columns say; `scales` may be null, which is 1 for every row. */
#include "floats.h"
#include "level.h"
#include "threads.h"

#define EXPORT __attribute__((visibility("default")))

static const uint32_t WIDTH_BYTES[VALUE_DTYPES] = {2, 2, 4};

INLINE float scale_of(const float32 *scales, int64_t row) { return scales ? scales[row] : 1; }

EXPORT int coldctl_levels(void) { return levels_here(); }

typedef struct {
    const level *level;
    const uint8_t *values;
    int dtype;
    int64_t columns;
    float32 *amax;
} amax_work;

static void amax_rows(const void *argument, int64_t first, int64_t end) {
    const amax_work *work = argument;
    for (int64_t row = first; row < end; row++) {
        const uint8_t *values = work->values + row * work->columns * WIDTH_BYTES[work->dtype];
        uint32_t most = work->level->amax[work->dtype](values, work->columns);
        uint32_t bits = work->dtype == BF16 ? from_bf16((uint16_t)most)
                        : work->dtype == F16 ? from_f16((uint16_t)most)
                                             : most;
        work->amax[row] = float_of(bits);
    }
}

EXPORT void coldctl_row_amax(int at, int threads, const uint8_t *values, int dtype, int64_t rows, int64_t columns,
                             float32 *amax) {
    amax_work work = {levels[at], values, dtype, columns, amax};
    share_rows(amax_rows, &work, rows, threads);
}

typedef struct {
    const level *level;
    const uint8_t *values;
    int dtype, format;
    int64_t columns;
    const float32 *scales;
    uint8_t *codes;
} encode_work;

static void encode_rows(const void *argument, int64_t first, int64_t end) {
    const encode_work *work = argument;
    for (int64_t row = first; row < end; row++)
        work->level->encode[work->dtype][work->format](
            work->values + row * work->columns * WIDTH_BYTES[work->dtype], work->columns, scale_of(work->scales, row),
            work->codes + row * work->columns);
}

EXPORT void coldctl_encode(int at, int threads, const uint8_t *values, int dtype, int64_t rows, int64_t columns,
                           const float32 *scales, int format, uint8_t *codes) {
    encode_work work = {levels[at], values, dtype, format, columns, scales, codes};
    share_rows(encode_rows, &work, rows, threads);
}

typedef struct {
    const level *level;
    const uint8_t *codes;
    int format, dtype;
    int64_t columns;
    const float32 *scales;
    const index64 *wanted;
    uint8_t *values;
} decode_work;

static void decode_rows(const void *argument, int64_t first, int64_t end) {
    const decode_work *work = argument;
    for (int64_t row = first; row < end; row++) {
        int64_t from = work->wanted ? work->wanted[row] : row;
        work->level->decode[work->format][work->dtype](
            work->codes + from * work->columns, work->columns, scale_of(work->scales, from),
            work->values + row * work->columns * WIDTH_BYTES[work->dtype]);
    }
}

EXPORT void coldctl_decode(int at, int threads, const uint8_t *codes, int format, int64_t rows, int64_t columns,
                           const float32 *scales, const index64 *wanted, int dtype, uint8_t *values) {
    decode_work work = {levels[at], codes, format, dtype, columns, scales, wanted, values};
    share_rows(decode_rows, &work, rows, threads);
}

EXPORT void coldctl_finite_scan(int at, const uint8_t *values, int dtype, int64_t count, int64_t found[2]) {
    found_values counts = levels[at]->scan[dtype](values, count);
    found[0] = counts.nans;
    found[1] = counts.infinities;
}

EXPORT void coldctl_word_sums(int at, const uint8_t *bytes, int64_t nbytes, uint64_t found[2]) {
    sums result = levels[at]->word_sums(bytes, nbytes);
    found[0] = result.words;
    found[1] = result.weighted;
}
