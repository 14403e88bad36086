/* What one instruction set must offer: every loop over values, for one row or one run of them. */
#ifndef COLDCTL_LEVEL_H
#define COLDCTL_LEVEL_H

#include <stdint.h>

enum { BF16, F16, F32, VALUE_DTYPES };
enum { E4M3, E5M2, FP8_FORMATS };
enum { SCAN_BF16, SCAN_F16, SCAN_F32, SCAN_F64, SCAN_E4M3, SCAN_E5M2, SCAN_E4M3FNUZ, SCAN_E5M2FNUZ, SCAN_E8M0, SCANNED };

typedef struct {
    int64_t nans, infinities;
} found_values;

typedef struct {
    uint64_t words, weighted;
} sums;

typedef struct {
    /* The largest finite magnitude, as bits of its dtype. */
    uint32_t (*amax[VALUE_DTYPES])(const void *values, int64_t count);
    void (*encode[VALUE_DTYPES][FP8_FORMATS])(const void *values, int64_t count, float scale, uint8_t *codes);
    /* Not to F16. */
    void (*decode[FP8_FORMATS][VALUE_DTYPES])(const uint8_t *codes, int64_t count, float scale, void *values);
    found_values (*scan[SCANNED])(const void *values, int64_t count);
    /* Of the words counted from 1. */
    sums (*word_sums)(const uint8_t *bytes, int64_t nbytes);
} level;

/* From the plainest to the best that this was compiled with; `levels_here` of them run on this processor. */
extern const level *const levels[];
int levels_here(void);

#endif
