// GEMM checksums, after Huang and Abraham (1984): the column sums of C must equal (the column sums of op(A)) times
// op(B), which costs far less than the GEMM. Detects silent data corruption by a faulty processor.
//
// A GemmCheck belongs to one thread. While a Scope of it is alive there, it observes every gemm of that thread and
// checks one checkable gemm per round, drawn at random among as many as the previous round had. GEMMs that add to the
// old C, or whose sums an epilogue hides, cannot be checked and are not counted.
//
// Sums are in fp64 and may differ by rounding. A flipped bit below the rounding tolerance is not detected and is
// harmless.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "esp/kernel/gemm.h"

namespace esp::kernel {

struct GemmFault {
  int64_t m = 0, n = 0, k = 0;
  int64_t column = 0;                     // the worst column
  double got = 0, want = 0, allowed = 0;  // actual sum, expected sum, rounding tolerance
};

class GemmCheck {
 public:
  class Scope {
   public:
    explicit Scope(GemmCheck* check);  // null: none
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    GemmCheck* const outer_;
  };

  // Starts a round; `seed` selects the GEMM to check.
  void begin(uint64_t seed);
  int64_t num_checked() const { return num_checked_; }
  int64_t last_ns() const { return last_ns_; }  // duration of the last check
  const std::optional<GemmFault>& fault() const { return fault_; }
  // For tests: flips a bit in the next checked GEMM's result.
  void corrupt_next() { spoil_ = true; }

  // Called by gemm after C was written.
  void pass(void* c, const void* a, const void* b, int64_t m, int64_t n, int64_t k, const GemmOptions& options,
            DType dtype);
  static GemmCheck* of_this_thread();

 private:
  std::optional<int64_t> drawn_;
  int64_t num_passed_ = 0, num_checked_ = 0, last_ns_ = 0;
  bool spoil_ = false;
  std::optional<GemmFault> fault_;
};

// Checks the column sums of `c`; none: correct, or not checkable.
std::optional<GemmFault> check_gemm_result(const void* c, const void* a, const void* b, int64_t m, int64_t n, int64_t k,
                                           const GemmOptions& options, DType dtype);

}  // namespace esp::kernel
