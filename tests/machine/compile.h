// From a kernel's generated text to a function on this machine.
//
// Takes the text. Gives the file of a shared object that holds it, compiled against ptx_sm80.h and ptx_sm90.h.
// Keeps true: objects are named by all that decides them, so that equal texts are compiled once, whoever asks, and
// none is ever stale.
#pragma once
#include <string>
#include <vector>

namespace machine
{

// The text with its asm statements as calls of asm_statement (ptx_sm90.h).
std::string translate_asm(const std::string &text);

// `level` is -O1, or, for texts that run once or twice, -O0 -DMACHINE_QUICK: that compiles in a third of the time.
// The object's file, made when it is not there; or "" with what the compiler said in *words. `entries` are the
// names of its kernels.
std::string compile_kernel(const std::string &text, const std::vector<std::string> &entries, const char *level,
                           std::string *words);

using Kernel = void (*)(void *const *parameters);

// Loads an object for good; its kernel of that number.
Kernel load_kernel(const std::string &object, int number);

} // namespace machine
