/* Attention as an XLA custom call: the handlers that splat/jax.py registers for the CPU and for CUDA.
 *
 * Built against the header of XLA's foreign-function interface that jaxlib ships, and splat.h. It links with
 * neither: XLA passes its functions with every call, and splat/jax.py passes those of libsplat.so once, to
 * splat_xla_start.
 *
 * A call brings q, k, v and room for o and perhaps lse, all dense and row-major, with any number of leading axes
 * that count as batch; and attributes, sorted by name: bshd        int32: 1 = [..., rows, heads, dim] arrays, 0 =
 * [..., heads, rows, dim] expression  string: "bottom_right:causal & window(3, 0)"; "" when the mask is not an
 * expression key_high, key_low  int64: what the mask is known by (splat_xla_add_mask) scale       float
 *
 * Kernels are made at the first call for a shape and a CUDA context, in XLA's initialize stage: before anything is
 * captured into a command buffer. They are kept for the life of the process, as XLA keeps no account of them. A
 * later call looks its kernel up and launches: no allocation and no lock beyond an uncontended one.
 */
#include <dlfcn.h>
#include <fenv.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "splat.h"
#include "xla/ffi/api/c_api.h"

#define EXPORT __attribute__((visibility("default")))

/* ---- What splat/jax.py provides ---- */

struct splat_functions {
    enum splat_status (*compile)(splat_context *, const splat_mask *, const splat_options *, splat_kernel **);
    enum splat_status (*run)(const splat_kernel *, const splat_attention_args *, void *);
    enum splat_status (*workspace_bytes)(const splat_kernel *, int64_t, int64_t, size_t *);
    enum splat_status (*mask_from_expression)(const char *, int64_t, int64_t, enum splat_align, splat_mask **);
    const char *(*last_error)(void);
    void (*options_init)(splat_options *);
    void (*attention_args_init)(splat_attention_args *);
    splat_context *context;
};

static struct splat_functions library;

struct mask_entry {
    uint64_t low, high;
    int64_t q_len, kv_len;
    const splat_mask *mask;
    struct mask_entry *next;
};

struct kernel_key {
    uint64_t low, high;
    int64_t batch, heads, kv_heads, q_len, kv_len, dim, value_dim, dtype;
    void *cu_context; /* NULL for the CPU */
};

struct kernel_entry {
    struct kernel_key key;
    splat_kernel *kernel;
    size_t workspace_bytes;
    struct kernel_entry *next;
};

enum { BUCKETS = 1024 };
static struct mask_entry *masks[BUCKETS];
static struct kernel_entry *kernels[BUCKETS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* the tables */
static pthread_mutex_t compile_lock =
    PTHREAD_MUTEX_INITIALIZER; /* one compilation at a time; taken before `lock` */

EXPORT void splat_xla_start(const struct splat_functions *functions)
{
    library = *functions;
}

/* Makes a mask known; it must live as long as the process. Returns 0, or -1 without memory. */
EXPORT int splat_xla_add_mask(uint64_t low, uint64_t high, int64_t q_len, int64_t kv_len, const splat_mask *mask)
{
    struct mask_entry *entry = malloc(sizeof *entry);
    if (!entry)
        return -1;
    *entry = (struct mask_entry){low, high, q_len, kv_len, mask, NULL};
    pthread_mutex_lock(&lock);
    entry->next = masks[low % BUCKETS];
    masks[low % BUCKETS] = entry;
    pthread_mutex_unlock(&lock);
    return 0;
}

/* ---- The CUDA driver, for the context of XLA's stream ---- */

static struct {
    int (*stream_get_context)(void *stream, void **context);
    int (*context_push)(void *context);
    int (*context_pop)(void **context);
    int ready;
} driver;
static pthread_once_t driver_once = PTHREAD_ONCE_INIT;

static void open_driver(void)
{
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda)
        return;
    *(void **)&driver.stream_get_context = dlsym(cuda, "cuStreamGetCtx");
    *(void **)&driver.context_push = dlsym(cuda, "cuCtxPushCurrent_v2");
    *(void **)&driver.context_pop = dlsym(cuda, "cuCtxPopCurrent_v2");
    driver.ready = driver.stream_get_context && driver.context_push && driver.context_pop;
}

/* ---- Errors ---- */

static XLA_FFI_Error *fail(const XLA_FFI_CallFrame *frame, XLA_FFI_Error_Code code, const char *sentence)
{
    XLA_FFI_Error_Create_Args args = {XLA_FFI_Error_Create_Args_STRUCT_SIZE, NULL, sentence, code};
    return frame->api->XLA_FFI_Error_Create(&args);
}

static XLA_FFI_Error *fail_status(const XLA_FFI_CallFrame *frame, enum splat_status status)
{
    XLA_FFI_Error_Code code = status == SPLAT_INVALID       ? XLA_FFI_Error_Code_INVALID_ARGUMENT
                              : status == SPLAT_UNSUPPORTED ? XLA_FFI_Error_Code_UNIMPLEMENTED
                              : status == SPLAT_NO_MEMORY   ? XLA_FFI_Error_Code_RESOURCE_EXHAUSTED
                              : status == SPLAT_NO_DEVICE   ? XLA_FFI_Error_Code_FAILED_PRECONDITION
                                                            : XLA_FFI_Error_Code_INTERNAL;
    char text[2200];
    snprintf(text, sizeof text, "splat: %s", library.last_error());
    return fail(frame, code, text);
}

/* ---- What a call brings ---- */

struct call {
    struct kernel_key key;
    splat_attention_args args;
    const XLA_FFI_ByteSpan *expression;
};

static const void *attribute(const XLA_FFI_CallFrame *frame, const char *name, XLA_FFI_AttrType type,
                             XLA_FFI_DataType dtype)
{
    const XLA_FFI_Attrs *attrs = &frame->attrs;
    for (int64_t i = 0; i < attrs->size; i++) {
        if (attrs->names[i]->len != strlen(name) || memcmp(attrs->names[i]->ptr, name, attrs->names[i]->len) != 0)
            continue;
        if (attrs->types[i] != type)
            return NULL;
        if (type == XLA_FFI_AttrType_STRING)
            return attrs->attrs[i];
        const XLA_FFI_Scalar *scalar = attrs->attrs[i];
        return scalar->dtype == dtype ? scalar->value : NULL;
    }
    return NULL;
}

/* Takes a buffer's last three axes as rows, heads and dim, and the product of the others as batch. */
static splat_tensor read_buffer(const XLA_FFI_Buffer *buffer, int bshd, int64_t *batch, int64_t *heads,
                                int64_t *rows, int64_t *dim)
{
    const int64_t *last = buffer->dims + buffer->rank - 3;
    *batch = 1;
    for (int64_t i = 0; i < buffer->rank - 3; i++)
        *batch *= buffer->dims[i];
    *rows = last[bshd ? 0 : 1];
    *heads = last[bshd ? 1 : 0];
    *dim = last[2];
    splat_tensor tensor = {buffer->data, *heads * *rows * *dim, bshd ? *dim : *rows * *dim,
                           bshd ? *heads * *dim : *dim};
    return tensor;
}

static XLA_FFI_Error *read_call(const XLA_FFI_CallFrame *frame, struct call *call)
{
    const int32_t *bshd = attribute(frame, "bshd", XLA_FFI_AttrType_SCALAR, XLA_FFI_DataType_S32);
    const int64_t *low = attribute(frame, "key_low", XLA_FFI_AttrType_SCALAR, XLA_FFI_DataType_S64);
    const int64_t *high = attribute(frame, "key_high", XLA_FFI_AttrType_SCALAR, XLA_FFI_DataType_S64);
    const float *scale = attribute(frame, "scale", XLA_FFI_AttrType_SCALAR, XLA_FFI_DataType_F32);
    call->expression = attribute(frame, "expression", XLA_FFI_AttrType_STRING, XLA_FFI_DataType_INVALID);
    if (!bshd || !low || !high || !scale || !call->expression || frame->args.size != 3 || frame->rets.size < 1 ||
        frame->rets.size > 2)
        return fail(frame, XLA_FFI_Error_Code_INVALID_ARGUMENT,
                    "splat: the custom call was made by another version of splat.jax");
    const XLA_FFI_Buffer *in[3], *out[2] = {NULL, NULL};
    for (int i = 0; i < 3; i++) {
        in[i] = frame->args.args[i];
        if (in[i]->rank < 3 || in[i]->dtype != in[0]->dtype)
            return fail(frame, XLA_FFI_Error_Code_INVALID_ARGUMENT,
                        "splat: query, key and value must have at least 3 axes and one dtype");
    }
    for (int i = 0; i < frame->rets.size; i++)
        out[i] = frame->rets.rets[i];

    splat_attention_args *args = &call->args;
    library.attention_args_init(args);
    int64_t batch, k_batch, v_batch, o_batch, v_heads, o_heads, v_len, o_len, k_dim, o_dim, dim, value_dim;
    args->q = read_buffer(in[0], *bshd, &batch, &args->heads, &args->q_len, &dim);
    args->k = read_buffer(in[1], *bshd, &k_batch, &args->kv_heads, &args->kv_len, &k_dim);
    args->v = read_buffer(in[2], *bshd, &v_batch, &v_heads, &v_len, &value_dim);
    args->o = read_buffer(out[0], *bshd, &o_batch, &o_heads, &o_len, &o_dim);
    if (k_batch != batch || v_batch != batch || o_batch != batch || v_heads != args->kv_heads ||
        o_heads != args->heads || v_len != args->kv_len || o_len != args->q_len || k_dim != dim ||
        o_dim != value_dim || out[0]->dtype != in[0]->dtype)
        return fail(frame, XLA_FFI_Error_Code_INVALID_ARGUMENT,
                    "splat: the shapes of query, key, value and output do not fit each other");
    args->batch = batch;
    args->scale = *scale;
    if (out[1]) {
        args->lse = out[1]->data; /* [..., heads, rows] in either layout */
        args->lse_head_stride = args->q_len;
        args->lse_batch_stride = args->heads * args->q_len;
    }
    int64_t dtype = in[0]->dtype == XLA_FFI_DataType_F16    ? SPLAT_FP16
                    : in[0]->dtype == XLA_FFI_DataType_BF16 ? SPLAT_BF16
                    : in[0]->dtype == XLA_FFI_DataType_F32  ? SPLAT_FP32
                                                            : -1;
    if (dtype < 0)
        return fail(frame, XLA_FFI_Error_Code_UNIMPLEMENTED,
                    "splat: query must be float16, bfloat16 or, on the CPU, float32");
    call->key = (struct kernel_key){(uint64_t)*low, (uint64_t)*high, batch,        args->heads,
                                    args->kv_heads, args->q_len,     args->kv_len, dim,
                                    value_dim,      dtype,           NULL};
    return NULL;
}

/* ---- Kernels ---- */

static unsigned bucket_of(const struct kernel_key *key)
{
    return (unsigned)((key->low ^ (uint64_t)key->q_len * 0x9E3779B97F4A7C15u ^ (uint64_t)key->batch) % BUCKETS);
}

static struct kernel_entry *find_kernel(const struct kernel_key *key)
{
    pthread_mutex_lock(&lock);
    struct kernel_entry *entry = kernels[bucket_of(key)];
    while (entry && memcmp(&entry->key, key, sizeof *key) != 0)
        entry = entry->next;
    pthread_mutex_unlock(&lock);
    return entry;
}

static const splat_mask *find_mask(const struct kernel_key *key)
{
    pthread_mutex_lock(&lock);
    struct mask_entry *entry = masks[key->low % BUCKETS];
    while (entry && (entry->low != key->low || entry->high != key->high || entry->q_len != key->q_len ||
                     entry->kv_len != key->kv_len))
        entry = entry->next;
    pthread_mutex_unlock(&lock);
    return entry ? entry->mask : NULL;
}

/* The mask from its expression: for code that was compiled by another process. */
static XLA_FFI_Error *mask_of_expression(const XLA_FFI_CallFrame *frame, const struct call *call,
                                         const splat_mask **out)
{
    const char *colon = memchr(call->expression->ptr, ':', call->expression->len);
    if (!colon)
        return fail(
            frame, XLA_FFI_Error_Code_FAILED_PRECONDITION,
            "splat: the mask of this compiled function was made from data and is not known in this process; "
            "call splat.jax.attention with it once");
    size_t length = call->expression->len - (size_t)(colon + 1 - call->expression->ptr);
    char *text = malloc(length + 1);
    if (!text)
        return fail(frame, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED, "splat: no memory for the text of a mask");
    memcpy(text, colon + 1, length);
    text[length] = 0;
    splat_mask *mask;
    enum splat_status status = library.mask_from_expression(
        text, call->args.q_len, call->args.kv_len,
        *call->expression->ptr == 't' ? SPLAT_ALIGN_TOP_LEFT : SPLAT_ALIGN_BOTTOM_RIGHT, &mask);
    free(text);
    if (status != SPLAT_OK)
        return fail_status(frame, status);
    *out = mask;
    return splat_xla_add_mask(call->key.low, call->key.high, call->args.q_len, call->args.kv_len, mask) == 0
               ? NULL
               : fail(frame, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED, "splat: no memory for a mask");
}

static XLA_FFI_Error *make_kernel(const XLA_FFI_CallFrame *frame, const struct call *call,
                                  struct kernel_entry **out)
{
    const struct kernel_key *key = &call->key;
    const splat_mask *mask = find_mask(key);
    XLA_FFI_Error *error = mask ? NULL : mask_of_expression(frame, call, &mask);
    if (error)
        return error;
    splat_options options;
    library.options_init(&options);
    options.dtype = (enum splat_dtype)key->dtype;
    options.device = key->cu_context ? SPLAT_DEVICE_GPU : SPLAT_DEVICE_CPU;
    options.head_dim = key->dim;
    options.value_dim = key->value_dim;
    options.batch = key->batch;
    options.heads = key->heads;
    options.kv_heads = key->kv_heads;
    struct kernel_entry *entry = calloc(1, sizeof *entry);
    if (!entry)
        return fail(frame, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED, "splat: no memory for a kernel");
    entry->key = *key;
    enum splat_status status = library.compile(library.context, mask, &options, &entry->kernel);
    if (status == SPLAT_OK)
        status = library.workspace_bytes(entry->kernel, key->batch, key->heads, &entry->workspace_bytes);
    if (status != SPLAT_OK) {
        free(entry);
        return fail_status(frame, status);
    }
    pthread_mutex_lock(&lock);
    entry->next = kernels[bucket_of(key)];
    kernels[bucket_of(key)] = entry;
    pthread_mutex_unlock(&lock);
    *out = entry;
    return NULL;
}

static XLA_FFI_Error *get_kernel(const XLA_FFI_CallFrame *frame, const struct call *call, struct kernel_entry **out)
{
    XLA_FFI_Error *error = NULL;
    if ((*out = find_kernel(&call->key)))
        return NULL;
    pthread_mutex_lock(&compile_lock);
    if (!(*out = find_kernel(&call->key)))
        error = make_kernel(frame, call, out);
    pthread_mutex_unlock(&compile_lock);
    return error;
}

/* ---- Handlers ---- */

/* XLA asks once what the handler is; then it is no call. */
static int answered_metadata(XLA_FFI_CallFrame *frame)
{
    const XLA_FFI_Metadata_Extension *extension = (const void *)frame->extension_start;
    if (!extension || extension->extension_base.type != XLA_FFI_Extension_Metadata)
        return 0;
    XLA_FFI_Metadata *metadata = extension->metadata;
    metadata->api_version.major_version = XLA_FFI_API_MAJOR;
    metadata->api_version.minor_version = XLA_FFI_API_MINOR;
    metadata->traits = XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE;
    return 1;
}

static XLA_FFI_Error *run_on_cpu(const XLA_FFI_CallFrame *frame, struct call *call)
{
    struct kernel_entry *entry;
    XLA_FFI_Error *error = get_kernel(frame, call, &entry);
    if (error)
        return error;
    void *workspace = NULL;
    if (entry->workspace_bytes) {
        workspace = aligned_alloc(256, (entry->workspace_bytes + 255) / 256 * 256);
        if (!workspace)
            return fail(frame, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED, "splat: no memory for the workspace");
        call->args.workspace = workspace;
        call->args.workspace_bytes = entry->workspace_bytes;
    }
    /* XLA's threads take subnormal numbers for zero: small float16 values would be lost, and on this thread alone
     * of those that the engine uses. */
    fenv_t of_xla;
    fegetenv(&of_xla);
    fesetenv(FE_DFL_ENV);
    enum splat_status status = library.run(entry->kernel, &call->args, NULL);
    fesetenv(&of_xla);
    free(workspace);
    return status == SPLAT_OK ? NULL : fail_status(frame, status);
}

EXPORT XLA_FFI_Error *splat_xla_cpu(XLA_FFI_CallFrame *frame)
{
    struct call call;
    if (answered_metadata(frame))
        return NULL;
    memset(&call, 0, sizeof call);
    XLA_FFI_Error *error = read_call(frame, &call);
    return error ? error : run_on_cpu(frame, &call);
}

/* The workspace comes from XLA's allocator, whose memory is good until the work that is enqueued now has run. */
static XLA_FFI_Error *take_workspace(const XLA_FFI_CallFrame *frame, struct call *call, size_t bytes,
                                     XLA_FFI_DeviceMemory_Free_Args *give_back)
{
    XLA_FFI_DeviceMemory_Allocate_Args args = {
        XLA_FFI_DeviceMemory_Allocate_Args_STRUCT_SIZE, NULL, frame->ctx, bytes, 256, NULL};
    XLA_FFI_Error *error = frame->api->XLA_FFI_DeviceMemory_Allocate(&args);
    if (error)
        return error;
    *give_back = (XLA_FFI_DeviceMemory_Free_Args){XLA_FFI_DeviceMemory_Free_Args_STRUCT_SIZE, NULL, frame->ctx,
                                                  bytes, args.data};
    call->args.workspace = args.data;
    call->args.workspace_bytes = bytes;
    return NULL;
}

static XLA_FFI_Error *run_on_gpu(const XLA_FFI_CallFrame *frame, struct call *call, void *stream)
{
    struct kernel_entry *entry;
    XLA_FFI_DeviceMemory_Free_Args give_back = {0};
    XLA_FFI_Error *error = get_kernel(frame, call, &entry);
    if (error || frame->stage != XLA_FFI_ExecutionStage_EXECUTE)
        return error;
    if (entry->workspace_bytes && (error = take_workspace(frame, call, entry->workspace_bytes, &give_back)))
        return error;
    enum splat_status status = library.run(entry->kernel, &call->args, stream);
    error = status == SPLAT_OK ? NULL : fail_status(frame, status);
    if (give_back.data) {
        XLA_FFI_Error *free_error = frame->api->XLA_FFI_DeviceMemory_Free(&give_back);
        error = error ? error : free_error;
    }
    return error;
}

/* Serves the stages initialize, in which the kernel is made, and execute. What initialize lacks, execute has. */
EXPORT XLA_FFI_Error *splat_xla_cuda(XLA_FFI_CallFrame *frame)
{
    struct call call;
    if (answered_metadata(frame))
        return NULL;
    int executing = frame->stage == XLA_FFI_ExecutionStage_EXECUTE;
    if (!executing && (frame->args.size == 0 || frame->rets.size == 0))
        return NULL;
    memset(&call, 0, sizeof call);
    XLA_FFI_Error *error = read_call(frame, &call);
    if (error)
        return error;
    pthread_once(&driver_once, open_driver);
    XLA_FFI_Stream_Get_Args stream = {XLA_FFI_Stream_Get_Args_STRUCT_SIZE, NULL, frame->ctx, NULL};
    error = driver.ready ? frame->api->XLA_FFI_Stream_Get(&stream) : NULL;
    if (error && !executing) {
        XLA_FFI_Error_Destroy_Args destroy = {XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, NULL, error};
        frame->api->XLA_FFI_Error_Destroy(&destroy);
        return NULL;
    }
    if (error)
        return error;
    if (!driver.ready || driver.stream_get_context(stream.stream, &call.key.cu_context) != 0 ||
        driver.context_push(call.key.cu_context) != 0)
        return fail(frame, XLA_FFI_Error_Code_FAILED_PRECONDITION,
                    "splat: the CUDA context of XLA's stream cannot be had from libcuda.so.1");
    error = run_on_gpu(frame, &call, stream.stream);
    void *popped;
    driver.context_pop(&popped);
    return error;
}
