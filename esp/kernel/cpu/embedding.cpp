// Embedding lookups copy rows. Gradients are summed in the order of ids. Threads split the columns of the token table,
// or the positions of the position table.
//
// Gradients of 16-bit tables are summed in fp32 and rounded once per call, because rounding every addition would lose
// small gradients of frequent tokens. The ids are sorted first, so that all gradients of one table row are consecutive.
#include "esp/kernel/embedding.h"
#include "esp/kernel/cuda_dispatch.h"

#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "esp/kernel/cpu/embedding.cpp"
#include <hwy/foreach_target.h>
// Includes below this line must follow hwy/foreach_target.h.
#include "esp/kernel/cpu/elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {

template <typename T>
void look_up(T* y, const int32_t* ids, const T* table, const T* positions, int64_t dim, int64_t num_rows,
             int64_t period, int64_t first_position, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    T* to = y + r * dim;
    const bool held = ids[r] >= 0 && ids[r] < num_rows;
    const T* from = held ? table + ids[r] * dim : nullptr;
    const T* other = positions ? positions + (first_position + r % period) * dim : nullptr;
    if (from && other) {
      each_vector<T>(dim, [=](auto lanes, int64_t i)
                              HWY_ATTR { lanes.store(hn::Add(lanes.load(from + i), lanes.load(other + i)), to + i); });
    } else if (from || other) {
      std::memcpy(static_cast<void*>(to), from ? from : other, static_cast<size_t>(dim) * sizeof(T));
    } else {
      std::memset(static_cast<void*>(to), 0, static_cast<size_t>(dim) * sizeof(T));
    }
  }
}

template <typename T>
HWY_INLINE void add_row(T* to, const T* from, int64_t width) {
  each_vector<T>(width, [=](auto lanes, int64_t i)
                            HWY_ATTR { lanes.store(hn::Add(lanes.load(to + i), lanes.load(from + i)), to + i); });
}

// to[c] += Σ_k dy[order(k)][c] for columns [0, width). Terms are added in order, and the sum is rounded once.
template <typename T, class Order>
HWY_INLINE void add_rows_once(T* to, const T* dy, int64_t dim, int64_t width, int64_t count, Order order) {
  constexpr int64_t kStrip = 256;
  HWY_ALIGN Accumulator<T> sums[kStrip];
  Accumulator<T>* sum = sums;
  for (int64_t c = 0; c < width; c += kStrip) {
    const int64_t n = std::min(kStrip, width - c);
    each_vector<T>(n, [=](auto lanes, int64_t i) HWY_ATTR { lanes.store(lanes.load(to + c + i), sum + i); });
    for (int64_t k = 0; k < count; ++k) {
      const T* from = dy + order(k) * dim + c;
      each_vector<T>(n, [=](auto lanes, int64_t i)
                            HWY_ATTR { lanes.store(hn::Add(lanes.load(sum + i), lanes.load(from + i)), sum + i); });
    }
    each_vector<T>(n, [=](auto lanes, int64_t i) HWY_ATTR { lanes.store(lanes.load(sum + i), to + c + i); });
  }
}

void look_up_range(void* y, const int32_t* ids, const void* table, const void* positions, int64_t dim, int64_t num_rows,
                   int64_t period, int64_t first_position, int64_t begin, int64_t end, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    look_up(static_cast<T*>(y), ids, static_cast<const T*>(table), static_cast<const T*>(positions), dim, num_rows,
            period, first_position, begin, end);
  });
}

// Processes columns [begin, end). `sorted` holds id·2^32 + i for every valid ids[i], ascending. If it is null, ids are
// processed in the given order.
void scatter_range(void* dtable, const int32_t* ids, const uint64_t* sorted, const void* dy, int64_t count, int64_t dim,
                   int64_t num_rows, int64_t begin, int64_t end, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    T* table = static_cast<T*>(dtable) + begin;
    const T* from = static_cast<const T*>(dy) + begin;
    if (!sorted) {
      for (int64_t i = 0; i < count; ++i)
        if (ids[i] >= 0 && ids[i] < num_rows) add_row(table + ids[i] * dim, from + i * dim, end - begin);
      return;
    }
    for (int64_t i = 0; i < count;) {
      const uint64_t id = sorted[i] >> 32;
      int64_t next = i + 1;
      while (next < count && sorted[next] >> 32 == id) ++next;
      add_rows_once(table + static_cast<int64_t>(id) * dim, from, dim, end - begin, next - i,
                    [=](int64_t k) { return static_cast<int64_t>(sorted[i + k] & 0xffffffffu); });
      i = next;
    }
  });
}

// Gradient of rows [begin, end) of the position table: dpositions[p] is the sum of dy[i] over i mod period = p.
void position_range(void* dpositions, const void* dy, int64_t count, int64_t dim, int64_t period, int64_t begin,
                    int64_t end, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    for (int64_t p = begin; p < end; ++p)
      add_rows_once(static_cast<T*>(dpositions) + p * dim, static_cast<const T*>(dy), dim, dim,
                    (count - p + period - 1) / period, [=](int64_t k) { return p + k * period; });
  });
}

}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace esp::kernel {

HWY_EXPORT(look_up_range);
HWY_EXPORT(scatter_range);
HWY_EXPORT(position_range);

void embedding_forward(void* y, const int32_t* ids, const void* table, const void* positions, int64_t count,
                       int64_t dim, int64_t num_rows, int64_t period, int64_t first_position, DType dtype,
                       const device::Stream& stream) {
  if (is_cuda(stream))
    return cuda::embedding_forward(y, ids, table, positions, count, dim, num_rows, period, first_position, dtype,
                                   stream);
  ESP_CHECK(!positions || period >= 1, "position period: got {}; must be >= 1", period);
  const auto piece = HWY_DYNAMIC_DISPATCH(look_up_range);
  device::parallel_for(stream, count, row_grain(dim), [&](int64_t begin, int64_t end) {
    piece(y, ids, table, positions, dim, num_rows, period, first_position, begin, end, dtype);
  });
}

void embedding_backward(void* dtable, const int32_t* ids, const void* dy, int64_t count, int64_t dim, int64_t num_rows,
                        DType dtype, const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::embedding_backward(dtable, ids, dy, count, dim, num_rows, dtype, stream);
  static thread_local std::vector<uint64_t> sorted;  // grows to the largest call and is reused
  const bool sort = dtype == DType::bf16 || dtype == DType::f16;
  int64_t num_sorted = count;
  if (sort) {
    sorted.clear();
    for (int64_t i = 0; i < count; ++i)
      if (ids[i] >= 0 && ids[i] < num_rows)
        sorted.push_back(static_cast<uint64_t>(ids[i]) << 32 | static_cast<uint64_t>(i));
    std::sort(sorted.begin(), sorted.end());
    num_sorted = static_cast<int64_t>(sorted.size());
  }
  const uint64_t* order = sort ? sorted.data() : nullptr;
  const auto piece = HWY_DYNAMIC_DISPATCH(scatter_range);
  device::parallel_for(stream, dim, std::max<int64_t>(64, row_grain(count)), [&](int64_t begin, int64_t end) {
    piece(dtable, ids, order, dy, num_sorted, dim, num_rows, begin, end, dtype);
  });
}

void position_backward(void* dpositions, const void* dy, int64_t count, int64_t dim, int64_t period,
                       int64_t first_position, DType dtype, const device::Stream& stream) {
  if (is_cuda(stream))
    return cuda::position_backward(dpositions, dy, count, dim, period, first_position, dtype, stream);
  ESP_CHECK(period >= 1, "position period: got {}; must be >= 1", period);
  const auto piece = HWY_DYNAMIC_DISPATCH(position_range);
  void* first = at(dpositions, first_position * dim, dtype);
  device::parallel_for(stream, std::min(count, period), row_grain(dim),
                       [&](int64_t begin, int64_t end) { piece(first, dy, count, dim, period, begin, end, dtype); });
}

}  // namespace esp::kernel
#endif
