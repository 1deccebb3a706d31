#include "driver.h"

#include <algorithm>
#include <cstdio>

#include "machine.h"

namespace machine
{

sp_cu_function function_of(Running *running)
{
    return reinterpret_cast<sp_cu_function>(running);
}

static sp_cu_result current_context(sp_cu_context *context)
{
    *context = nullptr;
    return 0;
}

static sp_cu_result encode(void *map, int type, uint32_t rank, void *address, const uint64_t *dims,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,
                           int interleave, int swizzle, int promotion, int fill)
{
    const char *rule = encode_tensor_map(map, type, rank, address, dims, strides, box, element_strides, interleave,
                                         swizzle, promotion, fill);
    if (rule)
        printf("cuTensorMapEncodeTiled: %s\n", rule);
    return rule ? 1 : 0;
}

static sp_cu_result launch(sp_cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                           unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                           sp_cu_stream, void **parameters, void **)
{
    const Running &running = *reinterpret_cast<const Running *>(function);
    if (grid_x == 0 || grid_y != 1 || grid_z != 1 || block_x == 0 || block_x % 32 != 0 || block_y != 1 ||
        block_z != 1 || block_x > 1024 || shared_bytes > 227 * 1024) {
        printf("cuLaunchKernel: %u x %u x %u blocks of %u x %u x %u threads with %u bytes\n", grid_x, grid_y,
               grid_z, block_x, block_y, block_z, shared_bytes);
        return 1;
    }
    if (running.grid != Grid::GIVEN)
        grid_x = running.grid == Grid::ONE ? 1 : std::min(grid_x, 2u + static_cast<unsigned>(running.seed % 3));
    run({running.kernel, parameters, grid_x, static_cast<int>(block_x), static_cast<int>(shared_bytes),
         running.blocks_per_sm, running.seed});
    return 0;
}

static sp_cu_result error_words(sp_cu_result, const char **words)
{
    *words = "the machine's driver";
    return 0;
}

const sp_driver *modelled_driver()
{
    static const sp_driver driver = [] {
        sp_driver made = {};
        made.context_get_current = current_context;
        made.tensor_map_encode = encode;
        made.launch_kernel = launch;
        made.get_error_name = error_words;
        made.get_error_string = error_words;
        return made;
    }();
    return &driver;
}

} // namespace machine
