// Compares embedding lookups, embedding gradients, rotary position embedding and dropout with the reference kernels
// (ref).
#include "esp/kernel/cuda/test_gpu.h"
#include "esp/kernel/dropout.h"
#include "esp/kernel/embedding.h"

namespace esp::kernel {
namespace {

class EmbeddingOnGpu : public GpuTest {};

std::vector<int32_t> ids_of(int64_t count, int64_t num_rows, uint64_t seed, bool crowded) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    const double u = random_unit(seed, 1, static_cast<uint64_t>(i));
    // Some ids are negative and some are >= num_rows. If `crowded` is set, most ids are equal.
    const double at = crowded && u < 0.8 ? 3 : u * static_cast<double>(num_rows + 4) - 2;
    ids.push_back(static_cast<int32_t>(std::floor(at)));
  }
  return ids;
}

TEST_F(EmbeddingOnGpu, LookupMatchesRef) {
  for (DType dtype : kFloating)
    for (int64_t dim : {7, 64, 768}) {
      const int64_t count = 130, num_rows = 50, period = 26;
      const auto ids = ids_of(count, num_rows, 1, false);
      Array table = Array::random(num_rows * dim, dtype, 1), positions = Array::random((period + 3) * dim, dtype, 2);
      Array y(count * dim, dtype);
      GpuVector<int32_t> on_ids(*this, ids);
      GpuArray on_table(*this, table), on_positions(*this, positions), on_y(*this, y);
      for (bool with : {false, true}) {
        embedding_forward(on_y, on_ids, on_table, with ? static_cast<void*>(on_positions) : nullptr, count, dim,
                          num_rows, period, 3, dtype, stream);
        ref::embedding_forward(y.data(), ids.data(), table.data(), with ? positions.data() : nullptr, count, dim,
                               num_rows, period, 3, dtype);
        EXPECT_TRUE(on_y.fetch().same_bits(y)) << name_of(dtype) << dim;
      }
    }
}

// The table is in host memory. The kernel reads the requested rows directly over PCIe.
TEST_F(EmbeddingOnGpu, LookupReadsTableInPinnedHostMemory) {
  const auto pinned = device::pinned_memory({device::DeviceKind::cuda, 0});
  for (DType dtype : kFloating)
    for (int64_t dim : {7, 768}) {
      const int64_t count = 1000, num_rows = 50;
      const auto ids = ids_of(count, num_rows, 1, false);
      const Array table = Array::random(num_rows * dim, dtype, 1);
      Array y(count * dim, dtype);
      const size_t bytes = static_cast<size_t>(num_rows * dim) * size_of(dtype);
      std::byte* const on_host = pinned->take(bytes);
      std::memcpy(on_host, table.data(), bytes);
      GpuVector<int32_t> on_ids(*this, ids);
      GpuArray on_y(*this, y);
      embedding_forward(on_y, on_ids, on_host, nullptr, count, dim, num_rows, 1, 0, dtype, stream);
      ref::embedding_forward(y.data(), ids.data(), table.data(), nullptr, count, dim, num_rows, 1, 0, dtype);
      EXPECT_TRUE(on_y.fetch().same_bits(y)) << name_of(dtype) << dim;
      pinned->give(on_host, bytes);
    }
}

TEST_F(EmbeddingOnGpu, TableGradientsMatchRefAndAreDeterministic) {
  for (DType dtype : kFloating)
    for (bool crowded : {false, true})
      for (auto [count, dim] : {std::pair<int64_t, int64_t>{1, 8}, {31, 5}, {33, 64}, {1000, 768}, {3000, 40}}) {
        const int64_t num_rows = 60;
        const std::string where = fmt::format("{} {}x{}{}", name_of(dtype), count, dim, crowded ? " crowded" : "");
        const auto ids = ids_of(count, num_rows, 2, crowded);
        Array dtable = Array::random(num_rows * dim, dtype, 3), dy = Array::random(count * dim, dtype, 4);
        GpuVector<int32_t> on_ids(*this, ids);
        GpuArray first(*this, dtable), second(*this, dtable), on_dy(*this, dy);
        embedding_backward(first, on_ids, on_dy, count, dim, num_rows, dtype, stream);
        embedding_backward(second, on_ids, on_dy, count, dim, num_rows, dtype, stream);
        ref::embedding_backward(dtable.data(), ids.data(), dy.data(), count, dim, num_rows, dtype);
        expect_near(first.fetch(), dtable, 256, 30, where);
        EXPECT_TRUE(first.fetch().same_bits(second.fetch())) << where;
      }
}

TEST_F(EmbeddingOnGpu, PositionGradientsMatchRef) {
  for (DType dtype : kFloating)
    for (auto [count, period] : {std::pair<int64_t, int64_t>{10, 16}, {64, 16}, {70, 16}, {16 * 75 + 3, 16}}) {
      const int64_t dim = 24;
      Array dpositions = Array::random(20 * dim, dtype, 5), dy = Array::random(count * dim, dtype, 6);
      GpuArray on_positions(*this, dpositions), on_dy(*this, dy);
      position_backward(on_positions, on_dy, count, dim, period, 2, dtype, stream);
      ref::position_backward(dpositions.data(), dy.data(), count, dim, period, 2, dtype);
      expect_near(on_positions.fetch(), dpositions, 8, 4, "positions");
    }
}

TEST_F(EmbeddingOnGpu, RotaryMatchesRef) {
  for (DType dtype : kFloating)
    for (int64_t head_dim : {6, 64, 128})
      for (int64_t first : {0, 100000})
        for (const auto& [angles, part] :
             {std::pair{RotaryAngles{}, false},
              {RotaryAngles{}, true},
              {RotaryAngles{.scaling = RopeScaling::linear, .factor = 2.5}, false},
              {RotaryAngles{.scaling = RopeScaling::yarn, .factor = 4, .original_seq_len = 512}, true},
              {RotaryAngles{.scaling = RopeScaling::llama3, .factor = 8, .original_seq_len = 8192}, false}}) {
          RotaryShape shape;
          shape.rows = 21, shape.heads = 3, shape.head_dim = head_dim, shape.row_stride = 4 * head_dim;
          shape.period = 9, shape.first_position = first, shape.angles = angles;
          if (part) shape.begin = 2, shape.end = 7, shape.inverse = true;
          Array x = Array::random(shape.rows * shape.row_stride, dtype, 7);
          GpuArray on_x(*this, x);
          rotary(on_x, shape, dtype, stream);
          ref::rotary(x.data(), shape, dtype);
          // The fp64 tolerance is large, because the angle is the product of 10^5 and a power, and both are rounded.
          expect_near(on_x.fetch(), x, dtype == DType::f64 ? 1e6 : 8, 1,
                      fmt::format("{} {}", name_of(dtype), head_dim));
        }
}

TEST_F(EmbeddingOnGpu, DropoutMaskMatchesCpu) {
  for (DType dtype : kFloating)
    for (const DropoutShape& shape : {DropoutShape{3, 64, 0, 0, 0, 0.3},
                                      {5, 77, 11, 0, 0, 0.1},
                                      {4, 32, 2, 32, 128, 0.5},
                                      {7, 10, 1, 3, 33, 0.9},
                                      {2, 4096, 0, 0, 0, 0}})
      for (bool residual : {false, true}) {
        const int64_t count = shape.rows * shape.cols;
        Array x = Array::random(count, dtype, 8), other = Array::random(count, dtype, 9), y(count, dtype);
        GpuArray on_x(*this, x), on_other(*this, other), on_y(*this, y);
        const DropoutKey key{77, uint64_t{5} << 40 | 9};
        dropout(on_y, on_x, residual ? static_cast<void*>(on_other) : nullptr, shape, key, dtype, stream);
        ref::dropout(y.data(), x.data(), residual ? other.data() : nullptr, shape, key, dtype);
        const Array got = on_y.fetch();
        expect_near(got, y, 2, 1, "dropout");
        if (!residual) {
          for (int64_t i = 0; i < count; ++i) ASSERT_EQ(got[i] == 0, y[i] == 0) << i;
        }
      }
}

}  // namespace
}  // namespace esp::kernel
