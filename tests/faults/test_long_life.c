/* A long life: masks without end are made, compiled and destroyed in one process, and memory stays flat.
 *
 * malloc and its kin are replaced to count the pieces in use.
 */
#include "faults.h"

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *memory);

static int64_t pieces; /* in use */

static void *counted(void *memory)
{
    if (memory)
        __atomic_add_fetch(&pieces, 1, __ATOMIC_RELAXED);
    return memory;
}

void *malloc(size_t size)
{
    return counted(__libc_malloc(size));
}

void *calloc(size_t count, size_t size)
{
    return counted(__libc_calloc(count, size));
}

void *realloc(void *memory, size_t size)
{
    void *moved = __libc_realloc(memory, size);
    return memory ? moved : counted(moved);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    return counted(__libc_memalign(alignment, size));
}

void free(void *memory)
{
    if (memory)
        __atomic_sub_fetch(&pieces, 1, __ATOMIC_RELAXED);
    __libc_free(memory);
}

static int64_t resident_bytes(void)
{
    long pages = 0, ignored;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%ld %ld", &ignored, &pages), 2);
    fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

static void compile_and_destroy(splat_context *context, int number)
{
    char expression[64];
    splat_kernel *kernel = NULL;
    splat_options options;
    splat_options_init(&options);
    options.device = SPLAT_DEVICE_CPU;
    options.head_dim = 64;
    snprintf(expression, sizeof expression, number % 2 ? "window(%d) | cols(0, 3)" : "causal & strided(%d)",
             1 + number / 2);
    splat_mask *mask = mask_of(expression, 512, 512, SPLAT_ALIGN_BOTTOM_RIGHT);
    OK(splat_compile(context, mask, &options, &kernel));
    splat_kernel_destroy(kernel);
    splat_mask_destroy(mask);
}

/* Masks are more than a context keeps, so that kernels are dropped and made anew, and each is asked for ten times
 * in a row while it is kept. After each round the same kernels are kept: as many pieces of memory must be in use.
 */
static void memory_stays_flat(void **state)
{
    struct sandbox *box = *state;
    const int masks = deep() ? 1000 : 100, rounds = deep() ? 10 : 4, repeats = 10;
    splat_context *context = NULL;
    OK(context_in(box, SPLAT_CACHE_OFF, &context));
    int64_t before = 0, resident = 0;
    for (int round = 0; round < rounds; round++) {
        for (int cycle = 0; cycle < masks * repeats; cycle++)
            compile_and_destroy(context, cycle / repeats);
        if (round == 0) {
            before = pieces;
            resident = resident_bytes();
        }
    }
    const int64_t grown = pieces - before, resident_grown = resident_bytes() - resident;
    print_message(
        "%d cycles over %d masks: %lld pieces of memory after the first round, %+lld after the last; resident "
        "%+lld\n",
        masks * repeats * rounds, masks, (long long)before, (long long)grown, (long long)resident_grown);
    assert_true(grown == 0);
    assert_true(resident_grown < 4 << 20);
    splat_context_destroy(context);
}

int main(void)
{
    unsetenv("SPLAT_CACHE");
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_sandbox, close_sandbox)
    const struct CMUnitTest tests[] = {
        TEST(memory_stays_flat),
    };
    return cmocka_run_group_tests_name("long life", tests, NULL, NULL);
}
