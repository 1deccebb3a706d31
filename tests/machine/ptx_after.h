// What stands behind the generated text: the functions that need its types, and the way in.
//
// MACHINE_CALL(k, entry) makes machine_call_<k>, which runs kernel `entry`.
#pragma once
#include <type_traits>
#include <utility>

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

// Parameters are passed by value, each taken from where the launch has it. What is read there is the launch's own.
template <class... P, size_t... I>
__attribute__((no_sanitize("thread"))) void machine_pass(void (*kernel)(P...), void *const *parameters,
                                                         std::index_sequence<I...>)
{
    kernel(*static_cast<const std::remove_reference_t<P> *>(parameters[I])...);
}

template <class... P>
__attribute__((no_sanitize("thread"))) void machine_launch(void (*kernel)(P...), void *const *parameters)
{
    machine_pass(kernel, parameters, std::index_sequence_for<P...>());
}

#define MACHINE_CALL(k, entry)                                                                                     \
    extern "C" __attribute__((no_sanitize("thread"))) void machine_call_##k(void *const *parameters)               \
    {                                                                                                              \
        machine_launch(entry, parameters);                                                                         \
    }
