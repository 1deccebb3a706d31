// The CUDA driver as the runtime knows it (src/runtime/driver.h), with this machine behind it.
//
// Takes launches and tensor maps from the library's own splat_run, so that arguments, maps and grids of a test are
// those of the library. Memory of the device is memory of the host. A launch runs before the call returns.
#pragma once
#include "compile.h"
#include "splat_internal.h"

namespace machine
{

// What the next launches run. The launch's grid is taken as it is, or, as a kernel with persistent blocks must do
// with any grid, changed.
enum class Grid { GIVEN, FEW, ONE };
struct Running {
    Kernel kernel;
    int blocks_per_sm;
    uint64_t seed;
    Grid grid;
};

const sp_driver *modelled_driver();

// A function handle for struct splat_kernel. `running` must outlive it.
sp_cu_function function_of(Running *running);

} // namespace machine
