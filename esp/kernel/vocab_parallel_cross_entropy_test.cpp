#include "esp/kernel/vocab_parallel_cross_entropy.h"

#include "esp/kernel/cross_entropy.h"
#include "esp/kernel/test_arrays.h"

namespace esp::kernel {
namespace {

constexpr double kScale = 0.37;

// The logits of all rows, split into three vocabulary shards, and the statistics reduced over the shards.
struct Parts {
  int64_t rows, classes;
  DType dtype, stat;
  std::vector<int64_t> borders;
  std::vector<Array> logits, tops, sums, picked;
  Array top, sum, target, losses;

  Parts(const Array& whole, int64_t num_rows, int64_t num_classes, DType type)
      : rows(num_rows),
        classes(num_classes),
        dtype(type),
        stat(accumulator_of(type)),
        borders{0, num_classes / 3, num_classes / 3, num_classes},  // the second shard is empty
        top(num_rows, stat),
        sum(num_rows, stat),
        target(num_rows, stat),
        losses(num_rows, stat) {
    for (size_t i = 0; i + 1 < borders.size(); ++i) {
      const int64_t width = borders[i + 1] - borders[i];
      Array part(std::max<int64_t>(1, rows * width), dtype);
      for (int64_t r = 0; r < rows; ++r)
        std::memcpy(static_cast<std::byte*>(part.data()) + static_cast<size_t>(r * width) * size_of(dtype),
                    static_cast<const std::byte*>(whole.data()) +
                        static_cast<size_t>(r * classes + borders[i]) * size_of(dtype),
                    static_cast<size_t>(width) * size_of(dtype));
      logits.push_back(std::move(part));
      for (auto* list : {&tops, &sums, &picked}) list->emplace_back(rows, stat);
    }
  }
  VocabShard part(size_t i) const { return {borders[i], borders[i + 1] - borders[i], borders[i + 1] - borders[i]}; }

  void run(const int32_t* targets, const device::Stream& stream) {
    for (size_t i = 0; i < logits.size(); ++i)
      vocab_cross_entropy_forward(tops[i].data(), sums[i].data(), picked[i].data(), logits[i].data(), targets, rows,
                                  part(i), dtype, stream);
    for (int64_t r = 0; r < rows; ++r) {
      double most = -1e300;
      for (const Array& own : tops) most = std::max(most, own[r]);
      top.set(r, most);
    }
    for (size_t i = 0; i < logits.size(); ++i)
      vocab_cross_entropy_rescale(sums[i].data(), tops[i].data(), top.data(), rows, dtype, {});
    for (int64_t r = 0; r < rows; ++r) {
      double all = 0, picks = 0;
      for (size_t i = 0; i < logits.size(); ++i) {
        all += sums[i][r];
        picks += picked[i][r];
      }
      sum.set(r, all);
      target.set(r, picks);
    }
    vocab_cross_entropy_losses(losses.data(), top.data(), sum.data(), target.data(), targets, rows, dtype, {});
    for (size_t i = 0; i < logits.size(); ++i)
      vocab_cross_entropy_backward(logits[i].data(), top.data(), sum.data(), targets, kScale, rows, part(i), dtype,
                                   stream);
  }
};

TEST(VocabCrossEntropy, ShardsCombineToFullLossAndGradient) {
  const Threads pair(2);
  for_each_target([&](const std::string& name) {
    for (const DType dtype : kFloating)
      for (const int64_t classes : {5, 64, 6001}) {
        constexpr int64_t kRows = 6;
        Array whole = Array::random(kRows * classes, dtype, 1, 12);
        std::vector<int32_t> targets;
        for (int32_t r = 0; r < kRows; ++r)
          targets.push_back(r % 4 == 3 ? -1 : static_cast<int32_t>((r * 7919 + 1) % classes));
        Parts parts(whole, kRows, classes, dtype);
        parts.run(targets.data(), pair);
        Array losses(kRows, accumulator_of(dtype));
        cross_entropy_fused(losses.data(), whole.data(), targets.data(), kScale, kRows, classes, classes, dtype, pair);
        const double loose = dtype == DType::f64 ? 1e-12 : 1e-5, loose_gradient = dtype == DType::f64   ? 1e-13
                                                                                  : dtype == DType::f32 ? 1e-6
                                                                                                        : 4e-3;
        for (int64_t r = 0; r < kRows; ++r) {
          EXPECT_NEAR(parts.losses[r], losses[r], loose) << name << ' ' << name_of(dtype) << ' ' << classes;
          for (size_t i = 0; i < parts.logits.size(); ++i)
            for (int64_t c = 0; c < parts.part(i).num_classes; ++c)
              ASSERT_NEAR(parts.logits[i][r * parts.part(i).num_classes + c], whole[r * classes + parts.borders[i] + c],
                          loose_gradient)
                  << name << ' ' << name_of(dtype) << ' ' << classes;
        }
      }
  });
}

TEST(VocabCrossEntropy, MatchesRef) {
  const Threads pair(2);
  for_each_target([&](const std::string& name) {
    for (const DType dtype : kFloating) {
      constexpr int64_t kRows = 5, kClasses = 2051;
      const VocabShard part{100, kClasses, kClasses};
      const std::vector<int32_t> targets{100, -1, 3, 2150, 2151};
      const DType stat = accumulator_of(dtype);
      Array a = Array::random(kRows * kClasses, dtype, 2, 12), b = a;
      std::vector<Array> mine, theirs;
      for (int i = 0; i < 3; ++i) {
        mine.emplace_back(kRows, stat);
        theirs.emplace_back(kRows, stat);
      }
      vocab_cross_entropy_forward(mine[0].data(), mine[1].data(), mine[2].data(), a.data(), targets.data(), kRows, part,
                                  dtype, pair);
      ref::vocab_cross_entropy_forward(theirs[0].data(), theirs[1].data(), theirs[2].data(), b.data(), targets.data(),
                                       kRows, part, dtype);
      for (int64_t r = 0; r < kRows; ++r) {
        EXPECT_EQ(mine[0][r], theirs[0][r]) << name;
        EXPECT_NEAR(mine[1][r] / theirs[1][r], 1, dtype == DType::f64 ? 1e-12 : 1e-5) << name << name_of(dtype);
        EXPECT_EQ(mine[2][r], theirs[2][r]) << name;
      }
      vocab_cross_entropy_backward(a.data(), theirs[0].data(), theirs[1].data(), targets.data(), kScale, kRows, part,
                                   dtype, pair);
      ref::vocab_cross_entropy_backward(b.data(), theirs[0].data(), theirs[1].data(), targets.data(), kScale, kRows,
                                        part, dtype);
      const double loose = dtype == DType::f64 ? 1e-13 : dtype == DType::f32 ? 1e-6 : 4e-3;
      for (int64_t i = 0; i < kRows * kClasses; ++i) ASSERT_NEAR(a[i], b[i], loose) << name << name_of(dtype);
    }
  });
}

}  // namespace
}  // namespace esp::kernel
