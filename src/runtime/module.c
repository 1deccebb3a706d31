/* Loads cubins. The driver is given no size and believes the image: what it says is checked against the device
 * first. */
#include "runtime/module.h"

#include "common/error.h"
#include "runtime/cubin.h"
#include "runtime/kernel.h"
#include "runtime/nvrtc.h"

static enum splat_status check_cubin(const struct sp_driver *driver, const struct sp_image *image,
                                     const char *entry, sp_cu_device device)
{
    int capability = 0;
    enum splat_status status = sp_device_capability(driver, device, &capability);
    const char *fault =
        status == SPLAT_OK ? sp_cubin_fault(image->cubin, image->cubin_bytes, capability, entry) : NULL;
    return fault ? sp_fail(SPLAT_COMPILE, "kernel %s is not loaded: its image %s", entry, fault) : status;
}

/* cuModuleLoadData, with the usual reason when it fails: code of a later CUDA than the driver knows. */
static enum splat_status load_cubin(const struct sp_driver *driver, const struct sp_image *image,
                                    sp_cu_module *module)
{
    sp_cu_result result = driver->module_load_data(module, image->cubin);
    if (result == 0)
        return SPLAT_OK;
    *module = NULL;
    enum splat_status status = sp_driver_check(driver, result, "cuModuleLoadData");
    int served = 0, nvrtc = 0;
    if (driver->driver_get_version(&served) == 0 && sp_nvrtc_version(&nvrtc) == SPLAT_OK && served < nvrtc)
        return sp_fail(
            status,
            "%s; the driver serves CUDA %d.%d and NVRTC is %d.%d: update the driver, or set SPLAT_NVRTC to "
            "an older libnvrtc.so",
            splat_last_error(), served / 1000, served % 1000 / 10, nvrtc / 1000, nvrtc % 1000 / 10);
    return status;
}

enum splat_status sp_module_load(const struct sp_driver *driver, sp_cu_device device, const struct sp_image *image,
                                 const struct sp_source *source, sp_cu_module *module, sp_cu_function *function)
{
    *module = NULL;
    enum splat_status status = check_cubin(driver, image, source->entry, device);
    if (status == SPLAT_OK)
        status = load_cubin(driver, image, module);
    if (status == SPLAT_OK)
        status = sp_driver_check(driver, driver->module_get_function(function, *module, source->entry),
                                 "cuModuleGetFunction");
    if (status == SPLAT_OK)
        status = sp_driver_check(
            driver,
            driver->function_set_attribute(*function, SP_FUNCTION_MAX_DYNAMIC_SHARED_BYTES, source->shared_bytes),
            "cuFuncSetAttribute");
    return status;
}
