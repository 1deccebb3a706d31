#include "jobs.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

namespace machine
{

struct Child {
    size_t job;
    FILE *words;
};

static pid_t start(const std::function<int()> &job, FILE *words)
{
    fflush(stdout);
    fflush(stderr);
    const pid_t child = fork();
    if (child < 0) {
        perror("fork");
        exit(1);
    }
    if (child == 0) {
        dup2(fileno(words), STDOUT_FILENO);
        dup2(fileno(words), STDERR_FILENO);
        const int code = job();
        fflush(stdout);
        fflush(stderr);
        _exit(code);
    }
    return child;
}

static std::string contents(FILE *file)
{
    std::string text;
    char part[4096];
    rewind(file);
    while (const size_t size = fread(part, 1, sizeof part, file))
        text.append(part, size);
    fclose(file);
    return text;
}

void run_jobs(const std::vector<std::function<int()>> &jobs,
              const std::function<void(size_t, const Outcome &)> &done)
{
    const size_t most = std::max(1u, std::min(8u, std::thread::hardware_concurrency()));
    std::map<pid_t, Child> running;
    std::map<size_t, Outcome> waiting; // ended, but not their turn
    size_t next = 0, told = 0;
    while (told < jobs.size()) {
        for (; next < jobs.size() && running.size() < most; ++next) {
            FILE *words = tmpfile();
            if (!words) {
                perror("tmpfile");
                exit(1);
            }
            running[start(jobs[next], words)] = {next, words};
        }
        int status;
        const pid_t ended = wait(&status);
        const auto child = running.find(ended);
        if (child == running.end())
            continue;
        waiting[child->second.job] = {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status),
                                      contents(child->second.words)};
        running.erase(child);
        for (auto turn = waiting.find(told); turn != waiting.end(); turn = waiting.find(told)) {
            done(told++, turn->second);
            waiting.erase(turn);
        }
    }
}

} // namespace machine
