/* The CUDA driver, opened at run time, and the public question whether a GPU is here.
 *
 * Takes the driver library that the loader finds. Gives a table of resolved functions, initialised, that lives as
 * long as the process. Keeps true: the library is opened and initialised once, by whichever thread comes first; the
 * outcome, good or bad, is the same for every later call; the table is never changed after that.
 */
#include "runtime/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "common/error.h"
#include "runtime/kernel.h"

/* The versioned name is the one that driver packages install; the other comes with development packages. */
static const char *const library_names[] = {"libcuda.so.1", "libcuda.so"};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct sp_driver table;
static char reason[1024]; /* why there is no driver; "" when there is one */

/* The library, or NULL with the loader's messages in `reason`. */
static void *open_library(void)
{
    char tried[768] = "";
    size_t used = 0;
    for (size_t i = 0; i < sizeof library_names / sizeof library_names[0]; i++) {
        void *library = dlopen(library_names[i], RTLD_NOW | RTLD_LOCAL);
        if (library)
            return library;
        const char *message = dlerror();
        int length = snprintf(tried + used, sizeof tried - used, "%s%s", i ? "; " : "", message ? message : "?");
        if (length > 0)
            used = used + (size_t)length < sizeof tried ? used + (size_t)length : sizeof tried - 1;
    }
    snprintf(reason, sizeof reason, "no CUDA driver could be opened (%s): install the NVIDIA driver or use the CPU",
             tried);
    return NULL;
}

static int resolve_all(void *library)
{
    static const struct {
        const char *symbol;
        size_t offset;
    } functions[] = {
#define F(symbol, name, parameters) {symbol, offsetof(struct sp_driver, name)},
        SP_DRIVER_FUNCTIONS(F)
#undef F
    };
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *address = dlsym(library, functions[i].symbol);
        if (!address) {
            snprintf(reason, sizeof reason,
                     "the CUDA driver has no function %s: it is too old, version 12 or later "
                     "is needed",
                     functions[i].symbol);
            return 0;
        }
        /* A function pointer and a data pointer have one representation wherever dlsym exists (POSIX). */
        memcpy((char *)&table + functions[i].offset, &address, sizeof address);
    }
    return 1;
}

static const char *error_name(const struct sp_driver *driver, sp_cu_result result)
{
    const char *name = NULL;
    return driver->get_error_name(result, &name) == 0 && name ? name : "an unknown error";
}

static const char *error_text(const struct sp_driver *driver, sp_cu_result result)
{
    const char *text = NULL;
    return driver->get_error_string(result, &text) == 0 && text ? text : "no description";
}

/* The library stays open: what it started lives as long as the process does. */
static void open_driver(void)
{
    void *library = open_library();
    if (!library || !resolve_all(library))
        return;
    sp_cu_result result = table.init(0);
    if (result != 0) {
        snprintf(reason, sizeof reason, "the CUDA driver could not be initialised: cuInit gave %s (%d), %s",
                 error_name(&table, result), result, error_text(&table, result));
        return;
    }
    int count = 0;
    result = table.device_get_count(&count);
    if (result != 0)
        snprintf(reason, sizeof reason, "the CUDA devices could not be counted: cuDeviceGetCount gave %s (%d), %s",
                 error_name(&table, result), result, error_text(&table, result));
    else if (count < 1)
        snprintf(reason, sizeof reason,
                 "the CUDA driver is here but shows no device (CUDA_VISIBLE_DEVICES may hide it)");
}

enum splat_status sp_driver_get(const struct sp_driver **driver)
{
    pthread_once(&once, open_driver);
    if (reason[0])
        return sp_fail(SPLAT_NO_DEVICE, "%s", reason);
    *driver = &table;
    return SPLAT_OK;
}

enum splat_status sp_driver_check(const struct sp_driver *driver, sp_cu_result result, const char *call)
{
    if (result == 0)
        return SPLAT_OK;
    return sp_fail(SPLAT_CUDA, "%s gave %s (%d): %s", call, error_name(driver, result), result,
                   error_text(driver, result));
}

enum splat_status sp_driver_context(const struct sp_driver *driver, sp_cu_context *context, sp_cu_device *device)
{
    sp_cu_context current = NULL;
    enum splat_status status = sp_driver_check(driver, driver->context_get_current(&current), "cuCtxGetCurrent");
    if (status == SPLAT_OK && !current) {
        /* Retained and never released: kernels in this process keep using it, and so may the caller. */
        sp_cu_device first = 0;
        status = sp_driver_check(driver, driver->device_get(&first, 0), "cuDeviceGet");
        if (status == SPLAT_OK)
            status = sp_driver_check(driver, driver->primary_context_retain(&current, first),
                                     "cuDevicePrimaryCtxRetain");
        if (status == SPLAT_OK)
            status = sp_driver_check(driver, driver->context_set_current(current), "cuCtxSetCurrent");
    }
    if (status == SPLAT_OK)
        status = sp_driver_check(driver, driver->context_get_device(device), "cuCtxGetDevice");
    if (status == SPLAT_OK)
        *context = current;
    return status;
}

/* The device that splat_compile would take: that of the current context, or else the first. Creates no context. */
static enum splat_status default_device(const struct sp_driver *driver, sp_cu_device *device)
{
    sp_cu_context current = NULL;
    enum splat_status status = sp_driver_check(driver, driver->context_get_current(&current), "cuCtxGetCurrent");
    if (status != SPLAT_OK)
        return status;
    return current ? sp_driver_check(driver, driver->context_get_device(device), "cuCtxGetDevice")
                   : sp_driver_check(driver, driver->device_get(device, 0), "cuDeviceGet");
}

enum splat_status splat_device_query(char *name, size_t name_size, int *capability)
{
    const struct sp_driver *driver;
    sp_cu_device device = 0;
    enum splat_arch arch;
    char full[256] = "";
    int major = 0, minor = 0;
    enum splat_status status = sp_driver_get(&driver);
    if (status == SPLAT_OK)
        status = default_device(driver, &device);
    if (status == SPLAT_OK)
        status = sp_device_arch(driver, device, SPLAT_ARCH_AUTO, &arch);
    if (status == SPLAT_OK)
        status =
            sp_driver_check(driver, driver->device_get_name(full, (int)sizeof full, device), "cuDeviceGetName");
    if (status == SPLAT_OK)
        status = sp_driver_check(driver, driver->device_get_attribute(&major, SP_DEVICE_CAPABILITY_MAJOR, device),
                                 "cuDeviceGetAttribute");
    if (status == SPLAT_OK)
        status = sp_driver_check(driver, driver->device_get_attribute(&minor, SP_DEVICE_CAPABILITY_MINOR, device),
                                 "cuDeviceGetAttribute");
    if (status != SPLAT_OK)
        return SPLAT_NO_DEVICE; /* whatever it was, no usable GPU is here; the sentence stands */
    if (name && name_size)
        snprintf(name, name_size, "%s", full);
    if (capability)
        *capability = major * 10 + minor;
    return SPLAT_OK;
}
