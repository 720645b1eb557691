// Block sizes of the CPU GEMM, and the scratch memory for packed blocks.
//
// K is split into equal blocks of at most kMaxDepth. The split determines the order of summation, so it depends only on
// K. All other sizes may depend on the caches and on the number of threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace esp::kernel {

// Maximum depth of a block of K: a panel of A of this depth stays in L1.
template <typename A>
inline constexpr int64_t kMaxDepth = sizeof(A) == 8 ? 384 : 768;
// Limits in bytes, so that a strip of B stays in L2, a block of A stays in L3, and the partial sums of a thread stay in
// cache.
inline constexpr int64_t kStripBytes = int64_t{448} << 10, kBlockBytes = int64_t{3} << 20,
                         kPartialBytes = int64_t{4} << 20;

inline int64_t div_up(int64_t count, int64_t by) {
  return (count + by - 1) / by;
}

template <typename A>
int64_t k_block_depth(int64_t k) {
  const int64_t pieces = std::max<int64_t>(1, div_up(k, kMaxDepth<A>));
  return std::max<int64_t>(8, div_up(div_up(k, pieces), 8) * 8);
}

// Packing memory of one thread. It grows to the largest request and is freed when the thread ends. It uses huge pages
// (2 MiB) if available, because a panel would otherwise be spread over many 4 KiB pages.
class GemmScratch {
 public:
  // Returns at least `bytes`, aligned to a cache line. The previous content is lost.
  void* reserve(size_t bytes);
  static GemmScratch& of_this_thread();

 private:
  struct FreeDeleter {
    void operator()(void* memory) const;
  };
  std::unique_ptr<void, FreeDeleter> memory_;
  size_t bytes_ = 0;
};

}  // namespace esp::kernel
