#include "esp/kernel/copy.h"
#include "esp/kernel/cuda_dispatch.h"

#include <cstdint>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "esp/kernel/cpu/copy.cpp"
#include <hwy/foreach_target.h>
// Includes below this line must follow hwy/foreach_target.h.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// `dst` is aligned to a cache line and `bytes` is a multiple of the cache line size.
void stream_lines(uint8_t* HWY_RESTRICT dst, const uint8_t* HWY_RESTRICT src, size_t bytes) {
  const hn::ScalableTag<uint8_t> tag;
  const size_t lanes = hn::Lanes(tag);
  for (size_t at = 0; at < bytes; at += lanes) hn::Stream(hn::LoadU(tag, src + at), tag, dst + at);
}

}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace esp::kernel {

HWY_EXPORT(stream_lines);

void copy(void* dst, const void* src, size_t bytes) {
  if (bytes > 0) std::memcpy(dst, src, bytes);
}

void copy_rows(void* dst, size_t dst_stride, const void* src, size_t src_stride, size_t bytes, int64_t rows,
               const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::copy_rows(dst, dst_stride, src, src_stride, bytes, rows, stream);
  for (int64_t r = 0; r < rows; ++r)
    copy(static_cast<std::byte*>(dst) + static_cast<size_t>(r) * dst_stride,
         static_cast<const std::byte*>(src) + static_cast<size_t>(r) * src_stride, bytes);
}

void copy_streaming(void* dst, const void* src, size_t bytes) {
  constexpr size_t kLine = 64;
  auto* to = static_cast<uint8_t*>(dst);
  auto* from = static_cast<const uint8_t*>(src);
  size_t head = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
  if (bytes < head + kLine) return copy(dst, src, bytes);
  size_t body = (bytes - head) / kLine * kLine;
  copy(to, from, head);
  HWY_DYNAMIC_DISPATCH(stream_lines)(to + head, from + head, body);
  copy(to + head + body, from + head + body, bytes - head - body);
}

void finish_streaming() {
  hwy::FlushStream();
}

}  // namespace esp::kernel
#endif  // HWY_ONCE
