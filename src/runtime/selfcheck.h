/* The toolchain self-check: a kernel's first launch on a device, compared with the CPU engine. */
#ifndef SP_SELFCHECK_H
#define SP_SELFCHECK_H

#include "runtime/kernel.h"

/* Launches the loaded function of `kernel` on a small problem of its own: masks in token order whose tiles have the
 * kernel's shape and every predicate that it is built with, or few queries and many keys where heads share row tiles or these
 * come in parts (then both), on a stream and on memory of its own, in the current
 * context, and waits for it. The text of a kernel is generic over lengths, so it is the code of every other launch.
 *
 * SPLAT_COMPILE, naming the element, what came out, what should have, the tolerance, NVRTC and the driver, when the
 * results are not those of sp_cpu_run; what the driver or the lack of memory give otherwise. A kernel that never
 * ends is not noticed. */
enum splat_status sp_selfcheck(const splat_kernel *kernel, const struct sp_source *source);

/* The masks of the check for a kernel of this spec: two, for two heads, when it looks masks up, else one. */
enum splat_status sp_selfcheck_mask(const struct sp_spec *spec, splat_mask **mask);

/* That of the further check for a kernel whose heads share row tiles, or whose row tiles come in parts: two, for
 * two batches, when it looks masks up. */
enum splat_status sp_selfcheck_long_mask(const struct sp_spec *spec, splat_mask **mask);

#endif
