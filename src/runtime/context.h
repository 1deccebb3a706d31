/* splat_context inside the library: the disk cache, the registry of images, the kernels kept alive. */
#ifndef SP_CONTEXT_H
#define SP_CONTEXT_H

#include <pthread.h>

#include "runtime/cache.h"
#include "splat.h"

#define SP_KEPT_KERNELS 64 /* most recently used kernels stay alive when their users let go */

struct sp_registry_entry; /* registry.c */

struct splat_context {
    struct sp_cache cache;
    struct sp_log log;
    int threads;
    int self_check;       /* 1: a kernel's first launch is compared with the CPU's results */
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t built; /* an entry left the state BUILDING */
    struct sp_registry_entry *entries;
    splat_kernel *kernels[SP_KEPT_KERNELS]; /* most recently used first; one reference each */
    int kernel_count;
};

/* Frees the registry's entries. */
void sp_registry_free(struct sp_registry_entry *entries);

/* How an image was come by. */
struct sp_image_origin {
    char key[33];
    int hit; /* it was on disk or in this process */
    double ms;
};

/* Tries an image on a device. SPLAT_OK with *checked = 1 when it has the right results, 0 when it could not be
 * tried now; SPLAT_COMPILE when it has not; else why trying failed. */
struct sp_image_trial {
    enum splat_status (*run)(void *user, const struct sp_image *image, int *checked);
    void *user;
};

/* The image of a source for an arch: from this process, the disk cache or NVRTC, in this order. Two threads that
 * ask for one key compile it once. The image lives as long as the context. With `require_store` the image is in the
 * disk cache afterwards, wherever it came from, or the call fails; without, one that cannot be stored still serves.
 * With a `trial` (may be NULL) an image that has not passed one has done so afterwards, in this process and in the
 * disk cache, or the call fails; one from the disk that has wrong results is compiled anew. */
enum splat_status sp_registry_image(splat_context *context, const struct sp_source *source, enum splat_arch arch,
                                    int require_store, const struct sp_image_trial *trial,
                                    const struct sp_image **image, struct sp_image_origin *origin);

/* Monotonic clock in milliseconds. */
double sp_now_ms(void);

#endif
