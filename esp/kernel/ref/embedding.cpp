#include "esp/kernel/embedding.h"

#include <vector>

#include "esp/kernel/floating.h"

namespace esp::kernel::ref {

void embedding_forward(void* y, const int32_t* ids, const void* table, const void* positions, int64_t count,
                       int64_t dim, int64_t num_rows, int64_t period, int64_t first_position, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    for (int64_t i = 0; i < count; ++i)
      for (int64_t c = 0; c < dim; ++c) {
        const bool held = ids[i] >= 0 && ids[i] < num_rows;
        A value = held ? static_cast<A>(static_cast<const T*>(table)[ids[i] * dim + c]) : A{0};
        if (positions) {
          const int64_t position = first_position + i % period;
          value += static_cast<A>(static_cast<const T*>(positions)[position * dim + c]);
        }
        static_cast<T*>(y)[i * dim + c] = static_cast<T>(value);
      }
  });
}

namespace {

// table[row_of(i)] += dy[i] for all i in order. Each row is summed in the accumulation type and rounded once. If
// row_of(i) is negative, dy[i] is skipped.
template <typename T, typename RowOf>
void scatter_add(T* table, const T* dy, int64_t count, int64_t dim, int64_t num_rows, RowOf row_of) {
  using A = Accumulator<T>;
  std::vector<A> sums(static_cast<size_t>(num_rows * dim));
  for (size_t i = 0; i < sums.size(); ++i) sums[i] = static_cast<A>(table[i]);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = row_of(i);
    if (row < 0) continue;
    for (int64_t c = 0; c < dim; ++c) sums[static_cast<size_t>(row * dim + c)] += static_cast<A>(dy[i * dim + c]);
  }
  for (size_t i = 0; i < sums.size(); ++i) table[i] = static_cast<T>(sums[i]);
}

}  // namespace

void embedding_backward(void* dtable, const int32_t* ids, const void* dy, int64_t count, int64_t dim, int64_t num_rows,
                        DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    scatter_add(static_cast<T*>(dtable), static_cast<const T*>(dy), count, dim, num_rows,
                [&](int64_t i) { return ids[i] < num_rows ? int64_t{ids[i]} : -1; });
  });
}

void position_backward(void* dpositions, const void* dy, int64_t count, int64_t dim, int64_t period,
                       int64_t first_position, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    scatter_add(static_cast<T*>(dpositions) + first_position * dim, static_cast<const T*>(dy), count, dim,
                count < period ? count : period, [&](int64_t i) { return i % period; });
  });
}

}  // namespace esp::kernel::ref
