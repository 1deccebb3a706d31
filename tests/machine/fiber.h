// Fibers: stacks that are switched by hand, one for each thread of a block.
//
// Takes a function to run on a fiber. Gives fiber_enter, which runs a fiber until it leaves, and fiber_leave, which
// goes back to whoever entered. Keeps true: fibers never enter fibers; each stack has a page below it that faults.
#pragma once
#include <cstddef>

#if !defined(__x86_64__) || defined(MACHINE_UCONTEXT)
#include <ucontext.h>
#endif

namespace machine
{

struct Fiber {
    char *stack = nullptr; // lowest address
    size_t stack_bytes = 0;
#if defined(__x86_64__) && !defined(MACHINE_UCONTEXT)
    void *top = nullptr; // where its registers are saved
#else
    ucontext_t context;
#endif
};

// Makes the fiber begin at `body` the next time it is entered; `body` must leave for good, not return.
void fiber_prepare(Fiber &fiber, void (*body)());
void fiber_enter(Fiber &fiber);
void fiber_leave(Fiber &fiber);

} // namespace machine
