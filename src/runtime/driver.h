/* The CUDA driver, opened at run time: no CUDA header or library is needed to build. */
#ifndef SP_DRIVER_H
#define SP_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "splat.h"

typedef int sp_cu_result; /* 0 = success */
typedef int sp_cu_device;
typedef struct sp_cu_context_s *sp_cu_context;
typedef struct sp_cu_module_s *sp_cu_module;
typedef struct sp_cu_function_s *sp_cu_function;
typedef struct sp_cu_stream_s *sp_cu_stream;
typedef struct sp_cu_event_s *sp_cu_event;
typedef uint64_t sp_cu_pointer;

/* Every driver function in use: result type int, name in the library, name here, parameters. Included twice, to
 * declare the table and to resolve it. */
#define SP_DRIVER_FUNCTIONS(F)                                                                                     \
    F("cuInit", init, (unsigned flags))                                                                            \
    F("cuDriverGetVersion", driver_get_version, (int *version))                                                    \
    F("cuDeviceGetCount", device_get_count, (int *count))                                                          \
    F("cuDeviceGet", device_get, (sp_cu_device * device, int ordinal))                                             \
    F("cuDeviceGetName", device_get_name, (char *name, int size, sp_cu_device device))                             \
    F("cuDeviceGetAttribute", device_get_attribute, (int *value, int attribute, sp_cu_device device))              \
    F("cuDevicePrimaryCtxRetain", primary_context_retain, (sp_cu_context * context, sp_cu_device device))          \
    F("cuCtxGetCurrent", context_get_current, (sp_cu_context * context))                                           \
    F("cuCtxSetCurrent", context_set_current, (sp_cu_context context))                                             \
    F("cuCtxPushCurrent_v2", context_push, (sp_cu_context context))                                                \
    F("cuCtxPopCurrent_v2", context_pop, (sp_cu_context * context))                                                \
    F("cuCtxGetDevice", context_get_device, (sp_cu_device * device))                                               \
    F("cuCtxSynchronize", context_synchronize, (void))                                                             \
    F("cuStreamCreate", stream_create, (sp_cu_stream * stream, unsigned flags))                                    \
    F("cuStreamDestroy_v2", stream_destroy, (sp_cu_stream stream))                                                 \
    F("cuStreamIsCapturing", stream_is_capturing, (sp_cu_stream stream, int *status))                              \
    F("cuStreamSynchronize", stream_synchronize, (sp_cu_stream stream))                                            \
    F("cuModuleLoadData", module_load_data, (sp_cu_module * module, const void *image))                            \
    F("cuModuleUnload", module_unload, (sp_cu_module module))                                                      \
    F("cuModuleGetFunction", module_get_function,                                                                  \
      (sp_cu_function * function, sp_cu_module module, const char *name))                                          \
    F("cuFuncSetAttribute", function_set_attribute, (sp_cu_function function, int attribute, int value))           \
    F("cuMemAlloc_v2", memory_alloc, (sp_cu_pointer * pointer, size_t bytes))                                      \
    F("cuMemFree_v2", memory_free, (sp_cu_pointer pointer))                                                        \
    F("cuMemcpyHtoD_v2", copy_to_device, (sp_cu_pointer to, const void *from, size_t bytes))                       \
    F("cuMemcpyDtoH_v2", copy_to_host, (void *to, sp_cu_pointer from, size_t bytes))                               \
    F("cuMemsetD8_v2", memory_set, (sp_cu_pointer to, unsigned char value, size_t bytes))                          \
    F("cuLaunchKernel", launch_kernel,                                                                             \
      (sp_cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,               \
       unsigned block_y, unsigned block_z, unsigned shared_bytes, sp_cu_stream stream, void **parameters,          \
       void **extra))                                                                                              \
    F("cuTensorMapEncodeTiled", tensor_map_encode,                                                                 \
      (void *map, int type, uint32_t rank, void *address, const uint64_t *dims, const uint64_t *strides,           \
       const uint32_t *box, const uint32_t *element_strides, int interleave, int swizzle, int promotion,           \
       int fill))                                                                                                  \
    F("cuEventCreate", event_create, (sp_cu_event * event, unsigned flags))                                        \
    F("cuEventDestroy_v2", event_destroy, (sp_cu_event event))                                                     \
    F("cuEventRecord", event_record, (sp_cu_event event, sp_cu_stream stream))                                     \
    F("cuEventSynchronize", event_synchronize, (sp_cu_event event))                                                \
    F("cuEventElapsedTime", event_elapsed_time, (float *ms, sp_cu_event from, sp_cu_event to))                     \
    F("cuGetErrorName", get_error_name, (sp_cu_result error, const char **name))                                   \
    F("cuGetErrorString", get_error_string, (sp_cu_result error, const char **text))

struct sp_driver {
#define F(symbol, name, parameters) sp_cu_result(*name) parameters;
    SP_DRIVER_FUNCTIONS(F)
#undef F
};

/* Results, and attribute numbers of cuDeviceGetAttribute and cuFuncSetAttribute, from the driver API reference. */
enum {
    SP_CU_OUT_OF_MEMORY = 2,
    SP_CU_CAPTURE_IMPLICIT = 906, /* asked about the default stream: another one captures */
    SP_DEVICE_MULTIPROCESSORS = 16,
    SP_DEVICE_L2_BYTES = 38,
    SP_DEVICE_CAPABILITY_MAJOR = 75,
    SP_DEVICE_CAPABILITY_MINOR = 76,
    SP_DEVICE_SHARED_BYTES_OPTIN = 97,
    SP_FUNCTION_MAX_DYNAMIC_SHARED_BYTES = 8
};

/* Constants of cuTensorMapEncodeTiled. */
enum {
    SP_TENSOR_FP16 = 6,
    SP_TENSOR_FP32 = 7,
    SP_TENSOR_BF16 = 9,
    SP_TENSOR_SWIZZLE_32 = 1,
    SP_TENSOR_SWIZZLE_64 = 2,
    SP_TENSOR_SWIZZLE_128 = 3,
    SP_TENSOR_PROMOTE_256 = 3
};

/* Opens and initialises the driver once; later calls are cheap. SPLAT_NO_DEVICE, with the reason, when there is no
 * driver or no device. */
enum splat_status sp_driver_get(const struct sp_driver **driver);

/* SPLAT_OK for 0, else SPLAT_CUDA with the call, the driver's error name and its text. */
enum splat_status sp_driver_check(const struct sp_driver *driver, sp_cu_result result, const char *call);

/* Makes sure the thread has a current context: the caller's, or else device 0's primary one, which becomes current.
 */
enum splat_status sp_driver_context(const struct sp_driver *driver, sp_cu_context *context, sp_cu_device *device);

#endif
