// The text goes between two headers and through the C++ compiler. What the flags bring: every access to memory that
// is not the thread's own is told to the machine (the compiler believes that it instruments for a thread sanitizer,
// whose functions are those of memory.cc); registers start out as nonsense; indices beyond an array trap.
#include "compile.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "splat_internal.h"

namespace machine
{

static const char flags[] =
    "-std=c++17 -g1 -w -fPIC -fsanitize=thread -ftrivial-auto-var-init=pattern "
    "-fsanitize=alignment,bounds,shift,signed-integer-overflow -fsanitize-undefined-trap-on-error "
    "-fno-exceptions";

static std::string read_file(const std::string &path)
{
    std::ifstream in(path);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
}

// What a command printed, and whether it did what it should.
static bool run_command(const std::string &command, std::string *words)
{
    FILE *pipe = popen((command + " 2>&1").c_str(), "r");
    char part[4096];
    size_t size;
    while (pipe && (size = fread(part, 1, sizeof part, pipe)) > 0)
        words->append(part, size);
    return pipe && pclose(pipe) == 0;
}

static std::string object_name(const std::string &whole, const char *level)
{
    std::string key = std::string(MACHINE_CXX) + flags + level + whole;
    for (const char *header : {"ptx_sm80.h", "ptx_kron.h", "ptx_sm90.h", "ptx_after.h", "machine.h", "numbers.h"})
        key += read_file(std::string(MACHINE_SOURCE "/") + header);
    char hex[33];
    sp_hash_hex(sp_hash_bytes(key.data(), key.size()), hex);
    return hex;
}

std::string compile_kernel(const std::string &text, const std::vector<std::string> &entries, const char *level,
                           std::string *words)
{
    std::string whole = "#include \"ptx_sm80.h\"\n#include \"ptx_kron.h\"\n#include \"ptx_sm90.h\"\n"
                        "#line 1 \"kernel.cu\"\n" +
                        translate_asm(text) + "\n#include \"ptx_after.h\"\n";
    for (size_t k = 0; k < entries.size(); ++k)
        whole += "MACHINE_CALL(" + std::to_string(k) + ", " + entries[k] + ")\n";
    mkdir(MACHINE_OBJECTS, 0777);
    const std::string base = std::string(MACHINE_OBJECTS "/") + object_name(whole, level), object = base + ".so";
    if (access(object.c_str(), R_OK) == 0)
        return object;
    // One of those who want it compiles; the others wait for it.
    const int lock = open((base + ".lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666);
    if (lock < 0 || flock(lock, LOCK_EX) != 0) {
        *words = "cannot lock " + base + ".lock";
        return "";
    }
    bool made = access(object.c_str(), R_OK) == 0;
    if (!made) {
        std::ofstream(base + ".cc") << whole;
        const std::string quoted = "'" + base;
        made = run_command(std::string(MACHINE_CXX) + " " + flags + " " + level + " -I '" MACHINE_SOURCE "' -c " +
                               quoted + ".cc' -o " + quoted + ".o'",
                           words) &&
               run_command(std::string(MACHINE_CXX) + " -shared " + quoted + ".o' -o " + quoted + ".tmp'", words) &&
               rename((base + ".tmp").c_str(), object.c_str()) == 0;
        unlink((base + ".o").c_str());
    }
    close(lock);
    unlink((base + ".lock").c_str());
    return made ? object : "";
}

Kernel load_kernel(const std::string &object, int number)
{
    void *handle = dlopen(object.c_str(), RTLD_NOW | RTLD_LOCAL);
    void *symbol = handle ? dlsym(handle, ("machine_call_" + std::to_string(number)).c_str()) : nullptr;
    if (!symbol) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return reinterpret_cast<Kernel>(symbol);
}

} // namespace machine
