// What stands behind the generated text: the functions that need its types, and the way in.
//
// MACHINE_ENTRY is the name of the kernel.
#pragma once

__forceinline__ Chunk load_shared_chunk(unsigned address)
{
    Chunk c;
    machine::read_shared(address, &c, sizeof c);
    return c;
}

__forceinline__ void store_shared_chunk(unsigned address, Chunk c)
{
    machine::write_shared(address, &c, sizeof c);
}

extern "C" void machine_call(const void *args)
{
    MACHINE_ENTRY(*static_cast<const sp_launch_args *>(args));
}
