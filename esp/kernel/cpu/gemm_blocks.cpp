#include "esp/kernel/cpu/gemm_blocks.h"

#include <sys/mman.h>

#include <cstdlib>
#include <new>

namespace esp::kernel {

void GemmScratch::FreeDeleter::operator()(void* memory) const {
  std::free(memory);
}

void* GemmScratch::reserve(size_t bytes) {
  if (bytes > bytes_) {
    constexpr size_t kHugePage = size_t{2} << 20;
    const size_t alignment = bytes < kHugePage ? 4096 : kHugePage;
    const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
    memory_.reset();
    bytes_ = 0;
    memory_.reset(std::aligned_alloc(alignment, rounded));
    if (!memory_) throw std::bad_alloc();
    // only a hint to Linux; the result is ignored
    if (alignment == kHugePage) madvise(memory_.get(), rounded, MADV_HUGEPAGE);
    bytes_ = rounded;
  }
  return memory_.get();
}

GemmScratch& GemmScratch::of_this_thread() {
  thread_local GemmScratch scratch;
  return scratch;
}

}  // namespace esp::kernel
