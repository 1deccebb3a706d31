// A case made ready: its plan, its source, and the truth about its masks; and runs of it with random inputs.
#pragma once
#include <string>
#include <vector>

#include "cases.h"

namespace machine
{

struct Running;

class Problem
{
  public:
    // Takes the case through mask, plan, spec and source. Ends the process, with the library's sentence, on
    // failure.
    explicit Problem(const Case &given);
    ~Problem();
    Problem(const Problem &) = delete;
    Problem &operator=(const Problem &) = delete;

    const Case &given() const
    {
        return case_;
    }
    const splat_plan &plan() const
    {
        return *plan_;
    }
    std::string text() const
    {
        return std::string(source_.text.text, source_.text.size);
    }
    const sp_spec &spec() const
    {
        return spec_;
    }
    std::vector<std::string> entries() const
    {
        return source_.combine[0] ? std::vector<std::string>{source_.entry, source_.combine}
                                  : std::vector<std::string>{source_.entry};
    }
    bool has_empty_row() const;

    // Runs an object on inputs that follow from the seed and compares with the reference; "" or the first
    // difference. A fault of the kernel ends the process.
    std::string run(const std::string &object, uint64_t seed) const;

  private:
    struct Tensors;
    void fill(Tensors &tensors, uint64_t seed) const;
    void make_kernel(splat_kernel *kernel, Running *running, Running *combine,
                     std::vector<int64_t> *launch_tiles) const;
    std::string compare(const Tensors &tensors, float scale) const;
    std::string run_sparse(const std::string &object, uint64_t seed) const; // operators on values
    bool allowed(int mask, int row, int column) const
    {
        return truth_[mask][static_cast<size_t>(row) * case_.kv_len + column] != 0;
    }
    int mask_of(int batch, int head) const;

    Case case_;
    splat_plan *plan_ = nullptr;
    splat_options options_ = {};
    sp_spec spec_ = {};
    sp_source source_ = {};
    std::vector<std::vector<uint8_t>> truth_; // of each entry of the map, in its order
};

} // namespace machine
