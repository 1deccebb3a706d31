// Fibers by saving the registers that a call keeps (x86-64), or by ucontext, which is slower, elsewhere.
#include "fiber.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include <sys/mman.h>
#include <unistd.h>

namespace machine
{

constexpr size_t STACK_BYTES = 256 << 10;

static void make_stack(Fiber &fiber)
{
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    void *memory = mmap(nullptr, STACK_BYTES + page, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE) != 0) {
        perror("machine: no memory for the stack of a thread");
        exit(1);
    }
    fiber.stack = static_cast<char *>(memory) + page;
    fiber.stack_bytes = STACK_BYTES;
}

#if defined(__x86_64__) && !defined(MACHINE_UCONTEXT)

static void *entered_from; // the scheduler's registers

extern "C" void machine_switch(void **save, void *load);
__asm__(".text\n"
        ".globl machine_switch\n"
        ".hidden machine_switch\n"
        "machine_switch:\n"
        "    push %rbp\n"
        "    push %rbx\n"
        "    push %r12\n"
        "    push %r13\n"
        "    push %r14\n"
        "    push %r15\n"
        "    mov %rsp, (%rdi)\n"
        "    mov %rsi, %rsp\n"
        "    pop %r15\n"
        "    pop %r14\n"
        "    pop %r13\n"
        "    pop %r12\n"
        "    pop %rbx\n"
        "    pop %rbp\n"
        "    ret\n");

void fiber_prepare(Fiber &fiber, void (*body)())
{
    if (!fiber.stack)
        make_stack(fiber);
    // What machine_switch pops: six registers and where to go; above them no return address.
    void **top = reinterpret_cast<void **>(fiber.stack + fiber.stack_bytes);
    *--top = nullptr;
    *--top = reinterpret_cast<void *>(body);
    for (int i = 0; i < 6; ++i)
        *--top = nullptr;
    fiber.top = top;
}

void fiber_enter(Fiber &fiber)
{
    machine_switch(&entered_from, fiber.top);
}

void fiber_leave(Fiber &fiber)
{
    machine_switch(&fiber.top, entered_from);
}

#else

static ucontext_t entered_from;

void fiber_prepare(Fiber &fiber, void (*body)())
{
    if (!fiber.stack)
        make_stack(fiber);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack;
    fiber.context.uc_stack.ss_size = fiber.stack_bytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, body, 0);
}

void fiber_enter(Fiber &fiber)
{
    swapcontext(&entered_from, &fiber.context);
}

void fiber_leave(Fiber &fiber)
{
    swapcontext(&fiber.context, &entered_from);
}

#endif

} // namespace machine
