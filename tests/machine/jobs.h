// Runs jobs in processes of their own, as many at a time as there are processors, so that a fault ends one job
// alone.
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace machine
{

struct Outcome {
    int code; // exit code, or minus the signal
    std::string words;
};

// Calls each job in a child process; what it prints, and how it ends, goes to `done` in the order of the jobs. A
// job returns its exit code.
void run_jobs(const std::vector<std::function<int()>> &jobs,
              const std::function<void(size_t, const Outcome &)> &done);

} // namespace machine
