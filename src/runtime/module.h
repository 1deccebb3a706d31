/* From an image to a function on the device. */
#ifndef SP_MODULE_H
#define SP_MODULE_H

#include "codegen/spec.h"
#include "runtime/cache.h"
#include "runtime/driver.h"

/* Checks the image against the device, loads it and lets its kernel have the shared memory it asks for. *module is
 * NULL, or to be unloaded, whatever the status. */
enum splat_status sp_module_load(const struct sp_driver *driver, sp_cu_device device, const struct sp_image *image,
                                 const struct sp_source *source, sp_cu_module *module, sp_cu_function *function);

#endif
