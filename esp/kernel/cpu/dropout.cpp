// Vectorised dropout. Random words are drawn in chunks that stay in L1 until they are used.
#include "esp/kernel/dropout.h"
#include "esp/kernel/cuda_dispatch.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "esp/kernel/cpu/dropout.cpp"
#include <hwy/foreach_target.h>
// Includes below this line must follow hwy/foreach_target.h.
#include "esp/kernel/cpu/elements-inl.h"
#include "esp/kernel/cpu/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {

constexpr int64_t kChunk = 1024;

// Draws the words of the stream, starting at word 4·block. `words` needs room for `count` words, rounded up to whole
// vectors of blocks.
HWY_INLINE void draw_words(uint32_t* words, uint64_t block, int64_t count, DropoutKey key) {
  const hn::ScalableTag<uint32_t> d;
  const int64_t n = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < count; i += 4 * n) {
    const auto w = philox_words(key.seed, key.purpose, block + static_cast<uint64_t>(i / 4));
    hn::StoreInterleaved4(w.w0, w.w1, w.w2, w.w3, d, words + i);
  }
}

// Applies dropout to elements with consecutive global indices, starting at `index`.
template <typename T>
void drop_elements(T* y, const T* x, const T* residual, int64_t count, uint64_t index, double rate, DropoutKey key) {
  using A = Accumulator<T>;
  const Tag<T> d;
  // The last vector may load words after the drawn ones. Those are 0 and are not used.
  HWY_ALIGN uint32_t words[kChunk + 4 + 4 * hn::MaxLanes(hn::ScalableTag<uint32_t>())] = {};
  const auto scale = hn::Set(d, static_cast<A>(1 / (1 - rate)));
  const uint32_t least = static_cast<uint32_t>(std::min(std::ceil(rate * 0x1p32), 4294967295.0));
  for (int64_t first = 0; first < count; first += kChunk) {
    const int64_t n = std::min(kChunk, count - first), skip = static_cast<int64_t>(index % 4);
    draw_words(words, index / 4, skip + n, key);
    const uint32_t* word = words + skip;
    each_vector<T>(n, [&](auto lanes, int64_t i) HWY_ATTR {
      const hn::RebindToUnsigned<Tag<T>> wide;
      auto drawn = hn::Undefined(wide);
      if constexpr (sizeof(A) == 8) {
        drawn = hn::PromoteTo(wide, hn::LoadU(hn::Rebind<uint32_t, decltype(wide)>(), word + i));
      } else {
        drawn = hn::LoadU(wide, word + i);
      }
      const auto dropped = hn::RebindMask(d, hn::Lt(drawn, hn::Set(wide, least)));
      auto v = hn::IfThenZeroElse(dropped, hn::Mul(lanes.load(x + first + i), scale));
      if (residual) v = hn::Add(v, lanes.load(residual + first + i));
      lanes.store(v, y + first + i);
    });
    index += static_cast<uint64_t>(n);
  }
}

void dropout_range(void* y, const void* x, const void* residual, int64_t count, uint64_t index, double rate,
                   DropoutKey key, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    drop_elements(static_cast<T*>(y), static_cast<const T*>(x), static_cast<const T*>(residual), count, index, rate,
                  key);
  });
}

}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace esp::kernel {

HWY_EXPORT(dropout_range);

void dropout(void* y, const void* x, const void* residual, const DropoutShape& shape, DropoutKey key, DType dtype,
             const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::dropout(y, x, residual, shape, key, dtype, stream);
  ESP_CHECK(shape.rate >= 0 && shape.rate < 1, "dropout rate: got {}; must be >= 0 and < 1", shape.rate);
  const auto piece = HWY_DYNAMIC_DISPATCH(dropout_range);
  const int64_t stride = shape.row_stride ? shape.row_stride : shape.cols;
  const int64_t origin = shape.first_row * stride + shape.first_col;
  auto run = [&](int64_t i, int64_t count, int64_t index) {
    piece(at(y, i, dtype), at(x, i, dtype), at(residual, i, dtype), count, static_cast<uint64_t>(index), shape.rate,
          key, dtype);
  };
  if (stride == shape.cols) {  // rows are contiguous in the global tensor too: process them as one range
    device::parallel_for(stream, shape.rows * shape.cols, kElementGrain,
                         [&](int64_t begin, int64_t end) { run(begin, end - begin, origin + begin); });
  } else {
    device::parallel_for(stream, shape.rows, row_grain(shape.cols), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) run(r * shape.cols, shape.cols, origin + r * stride);
    });
  }
}

}  // namespace esp::kernel
#endif
