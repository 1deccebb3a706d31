/* Compiles a mask's kernel and runs it: on the GPU with device pointers, or, on a machine without one, on the CPU
 * with host pointers. The two differ only in where the tensors live.
 *
 *     cc run_attention.c $(pkg-config --cflags --libs splat) -ldl -lm -o run_attention && ./run_attention
 *
 * The few driver functions used are opened by name, so that this builds without a CUDA toolkit; a program that
 * links libcuda or the CUDA runtime calls cuMemAlloc or cudaMalloc instead.
 */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "splat.h"

enum { BATCH = 2, HEADS = 4, KV_HEADS = 2, LENGTH = 1024, DIM = 64 };

static void check(enum splat_status status)
{
    if (status != SPLAT_OK) {
        fprintf(stderr, "%s: %s\n", splat_status_name(status), splat_last_error());
        exit(1);
    }
}

/* ---- Memory: device or host ---- */

typedef unsigned long long device_pointer;

static struct {
    int (*alloc)(device_pointer *pointer, size_t bytes);
    int (*free)(device_pointer pointer);
    int (*to_device)(device_pointer to, const void *from, size_t bytes);
    int (*to_host)(void *to, device_pointer from, size_t bytes);
} cuda;

static void *find(void *library, const char *name)
{
    void *function = dlsym(library, name);
    if (!function) {
        fprintf(stderr, "libcuda.so.1 has no %s\n", name);
        exit(1);
    }
    return function;
}

static void open_cuda(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    *(void **)&cuda.alloc = find(library, "cuMemAlloc_v2");
    *(void **)&cuda.free = find(library, "cuMemFree_v2");
    *(void **)&cuda.to_device = find(library, "cuMemcpyHtoD_v2");
    *(void **)&cuda.to_host = find(library, "cuMemcpyDtoH_v2");
}

static void cuda_check(int result)
{
    if (result != 0) {
        fprintf(stderr, "the CUDA driver reported error %d\n", result);
        exit(1);
    }
}

/* A buffer where the kernel runs, filled with `bytes` of `contents`. */
static void *place(enum splat_device device, const void *contents, size_t bytes)
{
    if (device == SPLAT_DEVICE_CPU) {
        void *host = malloc(bytes);
        if (!host)
            exit(1);
        return memcpy(host, contents, bytes);
    }
    device_pointer pointer = 0;
    cuda_check(cuda.alloc(&pointer, bytes));
    cuda_check(cuda.to_device(pointer, contents, bytes));
    return (void *)(size_t)pointer;
}

static void fetch(enum splat_device device, void *to, const void *from, size_t bytes)
{
    if (device == SPLAT_DEVICE_CPU)
        memcpy(to, from, bytes);
    else
        cuda_check(cuda.to_host(to, (device_pointer)(size_t)from, bytes)); /* waits for the kernel */
}

static void release(enum splat_device device, void *memory)
{
    if (device == SPLAT_DEVICE_CPU)
        free(memory);
    else
        cuda_check(cuda.free((device_pointer)(size_t)memory));
}

/* ---- Inputs in bfloat16: the upper half of a float ---- */

static unsigned short to_bf16(float value)
{
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    return (unsigned short)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static float from_bf16(unsigned short half)
{
    unsigned bits = (unsigned)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static unsigned short *random_tensor(size_t items, unsigned seed)
{
    unsigned short *data = malloc(items * sizeof *data);
    if (!data)
        exit(1);
    for (size_t n = 0; n < items; n++) {
        seed = seed * 1664525u + 1013904223u;
        data[n] = to_bf16((float)(seed >> 8) / (float)(1 << 23) - 1.0f);
    }
    return data;
}

int main(void)
{
    splat_context *context = NULL;
    splat_mask *mask = NULL;
    splat_kernel *kernel = NULL;
    check(splat_context_create(NULL, &context));
    check(splat_mask_from_expression("causal & window(255, 0)", LENGTH, LENGTH, SPLAT_ALIGN_BOTTOM_RIGHT, &mask));
    splat_options options;
    splat_options_init(&options); /* bf16, on the GPU when there is one */
    options.head_dim = DIM;
    options.heads = HEADS;
    options.kv_heads = KV_HEADS;
    options.batch = BATCH;
    check(splat_compile(context, mask, &options, &kernel));
    enum splat_device device = splat_kernel_device(kernel);
    printf("running on the %s\n", device == SPLAT_DEVICE_GPU ? "GPU" : "CPU");
    if (device == SPLAT_DEVICE_GPU)
        open_cuda(); /* splat_compile has made a CUDA context current on this thread */

    size_t q_items = (size_t)BATCH * HEADS * LENGTH * DIM, kv_items = (size_t)BATCH * KV_HEADS * LENGTH * DIM;
    size_t rows = (size_t)BATCH * HEADS * LENGTH;
    unsigned short *q = random_tensor(q_items, 1), *k = random_tensor(kv_items, 2), *v = random_tensor(kv_items, 3);
    unsigned short *o = calloc(q_items, sizeof *o);
    float *lse = calloc(rows, sizeof *lse);
    if (!o || !lse)
        return 1;

    splat_attention_args args;
    splat_attention_args_init(&args);
    args.batch = BATCH;
    args.heads = HEADS;
    args.kv_heads = KV_HEADS;
    args.q_len = args.kv_len = LENGTH;
    /* [batch, heads, rows, dim]; splat_tensor_bshd is for [batch, rows, heads, dim], and any strides will do. */
    args.q = splat_tensor_bhsd(place(device, q, q_items * 2), HEADS, LENGTH, DIM);
    args.k = splat_tensor_bhsd(place(device, k, kv_items * 2), KV_HEADS, LENGTH, DIM);
    args.v = splat_tensor_bhsd(place(device, v, kv_items * 2), KV_HEADS, LENGTH, DIM);
    args.o = splat_tensor_bhsd(place(device, o, q_items * 2), HEADS, LENGTH, DIM);
    args.lse = place(device, lse, rows * sizeof *lse);
    args.lse_head_stride = LENGTH;
    args.lse_batch_stride = (int64_t)HEADS * LENGTH;
    check(splat_workspace_bytes(kernel, BATCH, HEADS, &args.workspace_bytes));
    if (args.workspace_bytes) {
        void *zeros = calloc(1, args.workspace_bytes);
        args.workspace = place(device, zeros, args.workspace_bytes);
        free(zeros);
    }

    check(splat_run(kernel, &args, NULL)); /* NULL: the default stream */
    fetch(device, o, args.o.data, q_items * 2);
    fetch(device, lse, args.lse, rows * sizeof *lse);

    /* Query 0 may attend to key 0 alone, so its output is value row 0. */
    float largest = 0;
    for (int d = 0; d < DIM; d++)
        largest = fmaxf(largest, fabsf(from_bf16(o[d]) - from_bf16(v[d])));
    printf("row 0: output differs from v by %g at most, lse %g\n", (double)largest, (double)lse[0]);
    printf("row %d: output starts %g %g %g, lse %g\n", LENGTH - 1, (double)from_bf16(o[(LENGTH - 1) * DIM]),
           (double)from_bf16(o[(LENGTH - 1) * DIM + 1]), (double)from_bf16(o[(LENGTH - 1) * DIM + 2]),
           (double)lse[LENGTH - 1]);

    release(device, args.q.data);
    release(device, args.k.data);
    release(device, args.v.data);
    release(device, args.o.data);
    release(device, args.lse);
    if (args.workspace)
        release(device, args.workspace);
    free(q);
    free(k);
    free(v);
    free(o);
    free(lse);
    splat_kernel_destroy(kernel);
    splat_mask_destroy(mask);
    splat_context_destroy(context);
    return largest <= 0.01f ? 0 : 1;
}
