// How gemm cuts a product into blocks, and the scratch it packs them into.
//
// K is cut into equal pieces of at most kMaxDepth: a function of K alone, because the cut decides the order of
// summation. Everything else may follow the caches and the number of threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace esp::kernel {

// Elements of K packed at a time: a panel of A of this depth stays in the first-level cache.
template <typename A>
inline constexpr int64_t kMaxDepth = sizeof(A) == 8 ? 384 : 768;
// A strip of B stays in the second-level cache, a block of A in the third, partial sums of one thread somewhere near.
inline constexpr int64_t kStripBytes = int64_t{448} << 10, kBlockBytes = int64_t{3} << 20,
                         kPartialBytes = int64_t{4} << 20;

inline int64_t divided_up(int64_t count, int64_t by) {
  return (count + by - 1) / by;
}

template <typename A>
int64_t depth_of(int64_t k) {
  const int64_t pieces = std::max<int64_t>(1, divided_up(k, kMaxDepth<A>));
  return std::max<int64_t>(8, divided_up(divided_up(k, pieces), 8) * 8);
}

// Memory of one thread that grows to the largest request and is kept. 2 MiB pages where the system has them: a panel
// walks through many small ones.
class GemmScratch {
 public:
  // At least `bytes`, aligned to a cache line; what was there before is lost.
  void* reserve(size_t bytes);
  static GemmScratch& of_this_thread();

 private:
  struct Free {
    void operator()(void* memory) const;
  };
  std::unique_ptr<void, Free> memory_;
  size_t bytes_ = 0;
};

}  // namespace esp::kernel
