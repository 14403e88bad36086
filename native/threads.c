#include "threads.h"

#include <fenv.h>
#include <pthread.h>

typedef struct {
    void (*rows_from)(const void *work, int64_t first, int64_t end);
    const void *work;
    int64_t first, end;
} share;

static void *run(void *argument) {
    const share *mine = argument;
    fenv_t callers;
    fegetenv(&callers);
    fesetenv(FE_DFL_ENV);
    mine->rows_from(mine->work, mine->first, mine->end);
    fesetenv(&callers);
    return NULL;
}

void share_rows(void (*rows_from)(const void *work, int64_t first, int64_t end), const void *work, int64_t rows,
                int threads) {
    share shares[MOST_THREADS];
    pthread_t others[MOST_THREADS];
    int count = threads < MOST_THREADS ? threads : MOST_THREADS;
    int64_t each = rows / count, left = rows % count, first = 0;
    int started = 0;
    for (int i = 0; i < count; i++) {
        int64_t end = first + each + (i < left);
        shares[i] = (share){rows_from, work, first, end};
        first = end;
    }
    while (started < count - 1 && pthread_create(&others[started], NULL, run, &shares[started]) == 0)
        started++;
    for (int i = started; i < count; i++)
        run(&shares[i]);
    for (int i = 0; i < started; i++)
        pthread_join(others[i], NULL);
}
