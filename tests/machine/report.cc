// Reports: one sentence on what is wrong, the source lines it happened at, and the end of the process.
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include <dlfcn.h>
#include <ucontext.h>
#include <unistd.h>

#include "block.h"

namespace machine
{

static std::string object_file;

static std::string format_text(const char *format, va_list arguments)
{
    char text[512];
    vsnprintf(text, sizeof text, format, arguments);
    return text;
}

// addr2line knows the chain of functions that were inlined into each other; the kernel's own text is named
// kernel.cu.
std::string source_of(Place place)
{
    Dl_info info;
    if (!place || !dladdr(place, &info) || object_file.empty())
        return "";
    // A return address is one past the call.
    const auto offset = static_cast<const char *>(place) - static_cast<const char *>(info.dli_fbase) - 1;
    char command[1200], line[512];
    snprintf(command, sizeof command, "addr2line -Cfips -e '%s' 0x%lx 2>/dev/null", object_file.c_str(),
             static_cast<unsigned long>(offset));
    std::string lines;
    FILE *pipe = popen(command, "r");
    while (pipe && fgets(line, sizeof line, pipe)) {
        std::string text(line);
        if (text.find(" at kernel.cu:") == std::string::npos)
            continue;
        // "(inlined by) void copy_rows<64, 9>(unsigned int) at kernel.cu:123": the name and the line are enough.
        const size_t inlined = text.find("(inlined by) "), begin = inlined == std::string::npos ? 0 : inlined + 13;
        const size_t at = text.find(" at kernel.cu:");
        std::string name = text.substr(begin, at - begin);
        name = name.substr(0, name.find_first_of("<("));
        lines += "    " + name.substr(name.find_last_of(' ') + 1) + text.substr(at);
    }
    if (pipe)
        pclose(pipe);
    return lines;
}

void fault(Place place, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const std::string text = format_text(format, arguments);
    va_end(arguments);
    fflush(stdout);
    fprintf(stderr, "machine: %s\n", text.c_str());
    if (block.current >= 0)
        fprintf(stderr, "  block %u, warp %d, lane %d\n", block.index, block.current / 32, block.current % 32);
    else
        fprintf(stderr, "  block %u\n", block.index);
    fputs(source_of(place).c_str(), stderr);
    fflush(stderr);
    _exit(FAULT_EXIT);
}

const char *collective_name(Collective what)
{
    switch (what) {
    case Collective::LOAD_MATRICES:
        return "ldmatrix";
    case Collective::LOAD_TRANSPOSED:
        return "ldmatrix.trans";
    case Collective::MULTIPLY_F16:
        return "mma f16";
    case Collective::MULTIPLY_BF16:
    case Collective::MULTIPLY_TF32:
        return "mma bf16";
    case Collective::SHUFFLE:
        return "a shuffle";
    case Collective::BROADCAST:
        return "a shuffle from lane 0";
    case Collective::VOTE:
        return "a vote";
    case Collective::ELECT:
        return "elect.sync";
    case Collective::WARP_BARRIER:
        return "a warp barrier";
    case Collective::PRODUCT_FENCE:
        return "wgmma.fence";
    case Collective::PRODUCT_COMMIT:
        return "wgmma.commit_group";
    case Collective::PRODUCT_WAIT:
        return "wgmma.wait_group";
    case Collective::REGISTERS:
        return "setmaxnreg";
    case Collective::NONE:
        break;
    }
    return "nothing";
}

static std::string describe(const Thread &thread)
{
    switch (thread.state) {
    case State::READY:
        return "can run";
    case State::ENDED:
        return "has ended";
    case State::AT_BLOCK:
        return "waits at a block barrier, line " + std::to_string(thread.line);
    case State::AT_GROUP:
        return "waits for its warpgroup at a product, line " + std::to_string(thread.line);
    case State::AT_BARRIER:
        return "waits at " + describe_barrier(thread.barrier, thread.parity) + ", line " +
               std::to_string(thread.line);
    case State::AT_NAMED:
        return "waits at " + describe_named(static_cast<int>(thread.barrier)) + ", line " +
               std::to_string(thread.line);
    case State::AT_REGISTERS:
        return "waits for " + std::to_string(thread.operands.number) + " registers, line " +
               std::to_string(thread.operands.line);
    case State::AT_WARP:
        return std::string("waits at ") + collective_name(thread.operands.what) + ", line " +
               std::to_string(thread.operands.line);
    }
    return "";
}

// Lanes side by side that do the same are told of together.
void report_deadlock(const char *why)
{
    fprintf(stderr, "machine: %s\n  block %u\n", why, block.index);
    for (int begin = 0, end; begin < block.thread_count; begin = end) {
        const std::string what = describe(block.threads[begin]);
        for (end = begin + 1; end < block.thread_count && end / 32 == begin / 32; ++end)
            if (describe(block.threads[end]) != what)
                break;
        fprintf(stderr, "  warp %d, lanes %d to %d: %s\n", begin / 32, begin % 32, (end - 1) % 32, what.c_str());
    }
    fflush(stderr);
    _exit(FAULT_EXIT);
}

// ---- Signals ----

static Place place_of(void *context)
{
#if defined(__x86_64__)
    // One on, as source_of expects a return address.
    return reinterpret_cast<const char *>(static_cast<ucontext_t *>(context)->uc_mcontext.gregs[REG_RIP]) + 1;
#else
    (void)context;
    return nullptr;
#endif
}

static void on_signal(int signal, siginfo_t *info, void *context)
{
    if (signal == SIGALRM)
        report_deadlock("the time is over");
    if (signal == SIGILL || signal == SIGTRAP)
        fault(place_of(context), "a trap: an index beyond its array, an access that is not aligned, an overflow, "
                                 "or a shift by too much");
    if (signal == SIGFPE)
        fault(place_of(context), "a division by zero");
    fault(place_of(context), "an access to address %p", info->si_addr);
}

void catch_signals(const char *object)
{
    object_file = object;
    static char stack[64 << 10]; // the fault may be a fiber's stack that is full
    stack_t alternative = {};
    alternative.ss_sp = stack;
    alternative.ss_size = sizeof stack;
    sigaltstack(&alternative, nullptr);
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int signal : {SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE, SIGALRM})
        sigaction(signal, &action, nullptr);
}

} // namespace machine
