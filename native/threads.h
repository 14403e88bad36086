/* Rows shared out over threads. */
#ifndef COLDCTL_THREADS_H
#define COLDCTL_THREADS_H

#include <stdint.h>

enum { MOST_THREADS = 64 };

/* Calls `rows_from(work, first, end)` for ranges that make up [0, rows), on `threads` threads at most, of which the
 * caller's is one, and returns when all are done. Where a thread cannot be had, the caller's does its share.
 *
 * Floats are computed in the default environment there (nearest even, subnormals kept), whatever the caller's is. */
void share_rows(void (*rows_from)(const void *work, int64_t first, int64_t end), const void *work, int64_t rows,
                int threads);

#endif
