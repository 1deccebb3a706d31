/* Any bytes as a cubin: refused, or such that its tables lie inside it. */
#include "fuzz.h"

#include "runtime/cubin.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const int capabilities[] = {80, 86, 89, 90};
    for (int k = 0; k < 4; k++) {
        const char *fault = sp_cubin_fault(data, size, capabilities[k], "splat_attention");
        if (fault && strlen(fault) < 8)
            WRONG("no reason");
        if (!fault && size < 64)
            WRONG("%zu bytes pass for a cubin", size);
    }
    return 0;
}
