/* Contexts, and the _init functions of the structs that callers fill. */
#include "runtime/context.h"

#include <stdlib.h>
#include <time.h>

#include "common/error.h"
#include "runtime/kernel.h"

double sp_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

void splat_context_options_init(splat_context_options *options)
{
    if (options)
        *options = (splat_context_options){.struct_size = sizeof *options};
}

void splat_options_init(splat_options *options)
{
    if (options)
        *options = (splat_options){.struct_size = sizeof *options, .dtype = SPLAT_BF16, .batch = 1, .heads = 1};
}

void splat_compile_info_init(splat_compile_info *info)
{
    if (info)
        *info = (splat_compile_info){.struct_size = sizeof *info};
}

void splat_attention_args_init(splat_attention_args *args)
{
    if (args)
        *args = (splat_attention_args){.struct_size = sizeof *args, .batch = 1, .heads = 1};
}

void splat_sparse_args_init(splat_sparse_args *args)
{
    if (args)
        *args = (splat_sparse_args){.struct_size = sizeof *args, .batch = 1, .heads = 1};
}

void splat_cache_info_init(splat_cache_info *info)
{
    if (info)
        *info = (splat_cache_info){.struct_size = sizeof *info};
}

splat_tensor splat_tensor_bhsd(void *data, int64_t heads, int64_t rows, int64_t dim)
{
    return (splat_tensor){data, heads * rows * dim, rows * dim, dim};
}

splat_tensor splat_tensor_bshd(void *data, int64_t heads, int64_t rows, int64_t dim)
{
    return (splat_tensor){data, heads * rows * dim, dim, heads * dim};
}

enum splat_status splat_context_create(const splat_context_options *options, splat_context **out)
{
    if (!out)
        return sp_fail(SPLAT_INVALID, "context is null");
    splat_context_options full;
    splat_context_options_init(&full);
    enum splat_status status = SPLAT_OK;
    if (options)
        status = sp_check_struct_size("options", "splat_context_options_init", options->struct_size, sizeof full);
    if (options && status == SPLAT_OK)
        full = *options;
    if (status == SPLAT_OK && (full.threads < 0 || full.threads > 4096))
        status = sp_fail(SPLAT_INVALID, "threads is %d; it must be from 0 to 4096", full.threads);
    int self_check = 0;
    if (status == SPLAT_OK)
        status = sp_self_check_wanted(full.self_check, &self_check);
    if (status != SPLAT_OK)
        return status;
    splat_context *context = calloc(1, sizeof *context);
    if (!context)
        return sp_no_memory("a context", sizeof *context);
    context->log = (struct sp_log){full.log, full.log_user};
    context->threads = full.threads;
    context->self_check = self_check;
    status = sp_cache_init(&context->cache, &full);
    if (status != SPLAT_OK) {
        free(context);
        return status;
    }
    pthread_mutex_init(&context->lock, NULL);
    pthread_cond_init(&context->built, NULL);
    *out = context;
    return SPLAT_OK;
}

void splat_context_destroy(splat_context *context)
{
    if (!context)
        return;
    for (int i = 0; i < context->kernel_count; i++)
        splat_kernel_destroy(context->kernels[i]);
    sp_registry_free(context->entries);
    sp_cache_free(&context->cache);
    pthread_cond_destroy(&context->built);
    pthread_mutex_destroy(&context->lock);
    free(context);
}

/* ---- The disk cache's public calls ---- */

static enum splat_status check_cache_call(const splat_context *context, const splat_cache_info *info)
{
    if (!context || !info)
        return sp_fail(SPLAT_INVALID, "%s is null", context ? "info" : "context");
    return sp_check_struct_size("info", "splat_cache_info_init", info->struct_size, sizeof *info);
}

enum splat_status splat_cache_stat(splat_context *context, splat_cache_info *info)
{
    enum splat_status status = check_cache_call(context, info);
    return status == SPLAT_OK ? sp_cache_stat(&context->cache, info) : status;
}

enum splat_status splat_cache_verify(splat_context *context, splat_cache_info *info)
{
    enum splat_status status = check_cache_call(context, info);
    return status == SPLAT_OK ? sp_cache_verify(&context->cache, info) : status;
}

enum splat_status splat_cache_prune(splat_context *context, int64_t max_bytes, splat_cache_info *info)
{
    enum splat_status status = check_cache_call(context, info);
    if (status != SPLAT_OK)
        return status;
    return sp_cache_prune(&context->cache, max_bytes < 0 ? context->cache.max_bytes : max_bytes, info);
}

enum splat_status splat_cache_clear(splat_context *context, splat_cache_info *info)
{
    enum splat_status status = check_cache_call(context, info);
    return status == SPLAT_OK ? sp_cache_clear(&context->cache, info) : status;
}
