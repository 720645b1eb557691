// GEMM checksums (algorithm-based fault tolerance, ABFT), after Huang and Abraham (1984). The column sums of C must
// equal the column sums of op(A), multiplied by op(B). Computing both sides costs far less than the GEMM. The check
// detects silent data corruption by faulty hardware.
//
// A GemmCheck belongs to one thread. While a GemmCheck::Scope exists on that thread, the GemmCheck observes every gemm
// call of the thread. In each round it checks one GEMM. The number of that GEMM is drawn at random, up to the number of
// GEMMs in the previous round. Two kinds of GEMM cannot be checked and are not counted: those that add to the old C,
// and those with an epilogue that hides the sums.
//
// Sums are in fp64 and may differ by rounding. A flipped bit that changes a sum by less than the rounding tolerance is
// not detected and is harmless.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "esp/kernel/gemm.h"

namespace esp::kernel {

struct GemmFault {
  int64_t m = 0, n = 0, k = 0;
  int64_t column = 0;                     // the column with the largest error relative to its tolerance
  double got = 0, want = 0, allowed = 0;  // actual sum, expected sum, rounding tolerance
};

class GemmCheck {
 public:
  class Scope {
   public:
    explicit Scope(GemmCheck* check);  // nullptr: no check in this scope
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    GemmCheck* const outer_;
  };

  // Starts a round. `seed` is used to draw the GEMM to check.
  void begin(uint64_t seed);
  int64_t num_checked() const { return num_checked_; }
  int64_t last_ns() const { return last_ns_; }  // duration of the last check, in ns
  const std::optional<GemmFault>& fault() const { return fault_; }
  // For tests: flips a bit in the result of the next checked GEMM.
  void corrupt_next() { spoil_ = true; }

  // Called by gemm after C is written. Checks this GEMM if it is the one drawn for the round.
  void pass(void* c, const void* a, const void* b, int64_t m, int64_t n, int64_t k, const GemmOptions& options,
            DType dtype);
  static GemmCheck* of_this_thread();

 private:
  std::optional<int64_t> drawn_;
  int64_t num_passed_ = 0, num_checked_ = 0, last_ns_ = 0;
  bool spoil_ = false;
  std::optional<GemmFault> fault_;
};

// Checks the column sums of `c`. Returns nullopt if they are correct or cannot be checked, else the column with the
// largest error.
std::optional<GemmFault> check_gemm_result(const void* c, const void* a, const void* b, int64_t m, int64_t n, int64_t k,
                                           const GemmOptions& options, DType dtype);

}  // namespace esp::kernel
