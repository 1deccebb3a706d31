/* Stands in for the CUDA driver: one device whose memory is the host's. Its kernels do what stand_in.kernel does.
 *
 * Built with the soname libcuda.so.1: opened by its path first, it is what the library then gets under that name.
 */
#include "stand_in.h"

#include "runtime/driver.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT struct stand_in stand_in = {.capability = 90, .shared_limit = 232448};

/* Prototypes, with the types that the library calls them by. */
#define F(symbol, name, parameters) EXPORT int mine_##name parameters __asm__(symbol);
SP_DRIVER_FUNCTIONS(F)
#undef F

static int device_context;
static _Thread_local sp_cu_context current, pushed;

#define CALL()                                                                                                     \
    do {                                                                                                           \
        int result_ = stand_in_call(&stand_in);                                                                    \
        if (result_)                                                                                               \
            return result_;                                                                                        \
    } while (0)

static void count_live(int more)
{
    __atomic_add_fetch(&stand_in.live, more, __ATOMIC_RELAXED);
}

int mine_init(unsigned flags)
{
    return (int)flags;
}

int mine_driver_get_version(int *version)
{
    CALL();
    *version = 13000;
    return 0;
}

int mine_device_get_count(int *count)
{
    *count = 1;
    return 0;
}

int mine_device_get(sp_cu_device *device, int ordinal)
{
    CALL();
    *device = ordinal;
    return 0;
}

int mine_device_get_name(char *name, int size, sp_cu_device device)
{
    CALL();
    snprintf(name, (size_t)size, "stand-in %d", device);
    return 0;
}

int mine_device_get_attribute(int *value, int attribute, sp_cu_device device)
{
    (void)device;
    CALL();
    *value = attribute == SP_DEVICE_MULTIPROCESSORS      ? 132
             : attribute == SP_DEVICE_L2_BYTES           ? 50 << 20
             : attribute == SP_DEVICE_CAPABILITY_MAJOR   ? stand_in.capability / 10
             : attribute == SP_DEVICE_CAPABILITY_MINOR   ? stand_in.capability % 10
             : attribute == SP_DEVICE_SHARED_BYTES_OPTIN ? stand_in.shared_limit
                                                         : 0;
    return 0;
}

int mine_primary_context_retain(sp_cu_context *context, sp_cu_device device)
{
    (void)device;
    CALL();
    *context = (sp_cu_context)(void *)&device_context;
    return 0;
}

int mine_context_get_current(sp_cu_context *context)
{
    CALL();
    *context = current;
    return 0;
}

int mine_context_set_current(sp_cu_context context)
{
    CALL();
    current = context;
    return 0;
}

/* Giving back does not fail, so that what is left can be counted. */
int mine_context_push(sp_cu_context context)
{
    pushed = current;
    current = context;
    return 0;
}

int mine_context_pop(sp_cu_context *context)
{
    *context = current;
    current = pushed;
    return 0;
}

int mine_context_get_device(sp_cu_device *device)
{
    CALL();
    *device = 0;
    return 0;
}

int mine_context_synchronize(void)
{
    CALL();
    return 0;
}

int mine_stream_synchronize(sp_cu_stream stream)
{
    (void)stream;
    CALL();
    return 0;
}

int mine_module_load_data(sp_cu_module *module, const void *image)
{
    CALL();
    if (memcmp(image, ELFMAG, SELFMAG) != 0)
        return 200; /* CUDA_ERROR_INVALID_IMAGE */
    unsigned char *copy = malloc(sizeof(struct kernel_numbers));
    *module = (sp_cu_module)(void *)copy;
    __atomic_add_fetch(&stand_in.loads, 1, __ATOMIC_RELAXED);
    count_live(*module != NULL);
    if (copy) {
        Elf64_Ehdr header;
        Elf64_Shdr code;
        memcpy(&header, image, sizeof header);
        memcpy(&code, (const char *)image + header.e_shoff + 4 * sizeof code, sizeof code);
        memcpy(copy, (const char *)image + code.sh_offset + 8, sizeof(struct kernel_numbers));
    }
    return *module ? 0 : SP_CU_OUT_OF_MEMORY;
}

int mine_module_unload(sp_cu_module module)
{
    free(module);
    count_live(-1);
    return 0;
}

int mine_module_get_function(sp_cu_function *function, sp_cu_module module, const char *name)
{
    CALL();
    *function = (sp_cu_function)(void *)module;
    return strncmp(name, "splat_", 6) == 0 ? 0 : 500; /* CUDA_ERROR_NOT_FOUND */
}

int mine_function_set_attribute(sp_cu_function function, int attribute, int value)
{
    (void)function, (void)attribute;
    CALL();
    return value <= stand_in.shared_limit ? 0 : 1;
}

int mine_memory_alloc(sp_cu_pointer *pointer, size_t bytes)
{
    CALL();
    void *memory = malloc(bytes);
    if (!memory)
        return SP_CU_OUT_OF_MEMORY;
    *pointer = (sp_cu_pointer)(uintptr_t)memory;
    count_live(1);
    return 0;
}

int mine_memory_free(sp_cu_pointer pointer)
{
    free((void *)(uintptr_t)pointer);
    count_live(-1);
    return 0;
}

int mine_copy_to_device(sp_cu_pointer to, const void *from, size_t bytes)
{
    CALL();
    memcpy((void *)(uintptr_t)to, from, bytes);
    return 0;
}

int mine_copy_to_host(void *to, sp_cu_pointer from, size_t bytes)
{
    CALL();
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return 0;
}

int mine_memory_set(sp_cu_pointer to, unsigned char value, size_t bytes)
{
    CALL();
    memset((void *)(uintptr_t)to, value, bytes);
    return 0;
}

int mine_launch_kernel(sp_cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                       unsigned block_y, unsigned block_z, unsigned shared_bytes, sp_cu_stream stream,
                       void **parameters, void **extra)
{
    (void)grid_y, (void)grid_z, (void)block_y, (void)block_z, (void)stream, (void)extra;
    CALL();
    __atomic_add_fetch(&stand_in.launches, 1, __ATOMIC_RELAXED);
    if (!grid_x || !block_x || shared_bytes > (unsigned)stand_in.shared_limit)
        return 1;
    if (!stand_in.kernel || stand_in.capturing)
        return 0;
    return stand_in.kernel((const struct kernel_numbers *)(const void *)function, parameters[0]);
}

int mine_stream_create(sp_cu_stream *stream, unsigned flags)
{
    (void)flags;
    CALL();
    if (!(*stream = malloc(1)))
        return SP_CU_OUT_OF_MEMORY;
    count_live(1);
    return 0;
}

int mine_stream_destroy(sp_cu_stream stream)
{
    free(stream);
    count_live(-1);
    return 0;
}

int mine_stream_is_capturing(sp_cu_stream stream, int *status)
{
    (void)stream;
    CALL();
    *status = 0;
    return stand_in.capturing ? SP_CU_CAPTURE_IMPLICIT : 0;
}

int mine_tensor_map_encode(void *map, int type, uint32_t rank, void *address, const uint64_t *dims,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,
                           int interleave, int swizzle, int promotion, int fill)
{
    (void)type, (void)rank, (void)address, (void)dims, (void)strides, (void)box, (void)element_strides,
        (void)interleave, (void)swizzle, (void)promotion, (void)fill;
    CALL();
    memset(map, 1, 128);
    return 0;
}

int mine_event_create(sp_cu_event *event, unsigned flags)
{
    (void)flags;
    CALL();
    *event = NULL;
    return 0;
}

int mine_event_destroy(sp_cu_event event)
{
    return event != NULL;
}

int mine_event_record(sp_cu_event event, sp_cu_stream stream)
{
    (void)event, (void)stream;
    CALL();
    return 0;
}

int mine_event_synchronize(sp_cu_event event)
{
    (void)event;
    CALL();
    return 0;
}

int mine_event_elapsed_time(float *ms, sp_cu_event from, sp_cu_event to)
{
    (void)from, (void)to;
    CALL();
    *ms = 1;
    return 0;
}

int mine_get_error_name(sp_cu_result error, const char **name)
{
    *name = error == SP_CU_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OF_A_STAND_IN";
    return 0;
}

int mine_get_error_string(sp_cu_result error, const char **text)
{
    (void)error;
    *text = "a stand-in was told to fail";
    return 0;
}
