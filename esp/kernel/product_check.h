// Checksums of matrix products, after Huang and Abraham (1984): the sum of C's rows equals (the sum of op(A)'s rows)
// times op(B), for far less work than the product took. It finds what a processor that sometimes computes wrong leaves
// behind, which nothing else notices.
//
// A ProductCheck belongs to one thread. While a Scope of it lives there, every gemm of that thread passes by, and of
// those that can be checked one per round is: which one is drawn among as many as the round before had. Products whose
// old C is added to, or whose sums an epilogue has hidden, cannot be checked and are not counted.
//
// The sums are made in fp64 and may differ by what rounding explains: a flipped bit that weighs less is not found, and
// not missed by anybody.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "esp/kernel/gemm.h"

namespace esp::kernel {

struct ProductFault {
  int64_t m = 0, n = 0, k = 0;
  int64_t column = 0;                     // the worst
  double got = 0, want = 0, allowed = 0;  // its sum, what it ought to be, how far rounding may take it
};

class ProductCheck {
 public:
  class Scope {
   public:
    explicit Scope(ProductCheck* check);  // null: none
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    ProductCheck* const outer_;
  };

  // A new round; `seed` draws.
  void begin(uint64_t seed);
  int64_t num_checked() const { return num_checked_; }
  int64_t last_ns() const { return last_ns_; }  // that the last check took
  const std::optional<ProductFault>& fault() const { return fault_; }
  // For tests of whoever listens: the next product drawn gets a wrong bit first.
  void spoil_next() { spoil_ = true; }

  // By gemm, after C was written.
  void pass(void* c, const void* a, const void* b, int64_t m, int64_t n, int64_t k, const GemmOptions& options,
            DType dtype);
  static ProductCheck* of_this_thread();

 private:
  std::optional<int64_t> drawn_;
  int64_t num_passed_ = 0, num_checked_ = 0, last_ns_ = 0;
  bool spoil_ = false;
  std::optional<ProductFault> fault_;
};

// Whether the sums of `c` are those of the product; none: they are, or cannot be told.
std::optional<ProductFault> check_product(const void* c, const void* a, const void* b, int64_t m, int64_t n, int64_t k,
                                          const GemmOptions& options, DType dtype);

}  // namespace esp::kernel
