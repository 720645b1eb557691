#include "esp/train/shard_sections.h"

#include <gtest/gtest.h>

#include <numeric>

#include "esp/device/pool.h"

namespace esp::train {
namespace {

using tensor::Tensor;

// A parameter list with shard `index` of `count`. of() adds a parameter with the given shape and sharding.
struct Held {
  nn::ParameterList list;
  const nn::Parameter& of(const tensor::Shape& shape, const nn::ShardSpec& cut) {
    return list.add("p", shape, nn::Init::zeros(), true, cut);
  }
  Held(int index, int count) : list(nn::ModelShards{{index, count}, {}}) {}
};

struct Case {
  tensor::Shape shape;
  nn::ShardSpec cut;
};
const Case kCases[] = {{{3, 14}, {1, {6, 4, 4}, 2}},
                       {{7, 5}, nn::ShardSpec::along(0)},
                       {{5, 7}, nn::ShardSpec::along(1)},
                       {{14}, {0, {6, 4, 4}, 1}},
                       {{4, 3}, nn::ShardSpec::none()}};

std::vector<double> counting(int64_t count) {
  std::vector<double> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), 0);
  return values;
}

// Converts every range of every shard to slices. Each element must have its global position and occur exactly once.
TEST(ShardSections, SlicesOfAnyRangeHaveGlobalPositions) {
  device::MemoryAccount account;
  device::MemoryPool pool(account);
  const tensor::Context context{{}, &pool};
  for (const Case& one : kCases)
    for (int count : {1, 2, 3}) {
      std::vector<double> whole = counting(one.shape.count());
      std::vector<int> seen(whole.size());
      for (int index = 0; index < count; ++index) {
        Held held(index, count);
        const nn::Parameter& p = held.of(one.shape, one.cut);
        std::vector<double> mine(static_cast<size_t>(p.count()));
        copy_shard(p, Tensor::borrow(whole.data(), one.shape, DType::f64),
                   Tensor::borrow(mine.data(), p.shape, DType::f64));
        const int64_t middle = p.count() / 2 - (p.count() > 3 ? 1 : 0);
        for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, middle}, {middle, p.count()}}) {
          if (begin == end) continue;
          const Tensor range = Tensor::borrow(mine.data() + begin, {end - begin}, DType::f64);
          std::vector<double> filled(static_cast<size_t>(end - begin));
          for (const ckpt::TensorSlice& slice : parameter_slices(p, "p", begin, end, range, context)) {
            for (int64_t i = 0; i < slice.values.count(); ++i) {
              int64_t at = 0, stride = 1, rest = slice.first + i;
              for (int d = one.shape.rank(); d-- > 0;) {
                const auto k = static_cast<size_t>(d);
                const int64_t extent = slice.begin.empty() ? one.shape.dim(d) : slice.extent[k];
                at += (rest % extent + (slice.begin.empty() ? 0 : slice.begin[k])) * stride;
                rest /= extent;
                stride *= one.shape.dim(d);
              }
              EXPECT_EQ(slice.values.as<double>()[i], whole[static_cast<size_t>(at)]);
              if (p.cut_dim >= 0 || index == 0) ++seen[static_cast<size_t>(at)];
            }
          }
          // An offloaded parameter gives the same values, with two reads per slice.
          const tensor::OffloadReader read = [&, begin = begin](int64_t first, const Tensor& to) {
            std::copy_n(mine.data() + begin + first, to.count(), to.as<double>());
          };
          const auto here = parameter_slices(p, "p", begin, end, range, context);
          const auto beyond =
              parameter_slices(p, "p", begin, end, Tensor::borrow(nullptr, {end - begin}, DType::f64), context, read);
          ASSERT_EQ(beyond.size(), here.size());
          for (size_t k = 0; k < here.size(); ++k) {
            EXPECT_FALSE(beyond[k].values.defined());
            EXPECT_EQ(beyond[k].first, here[k].first);
            const int64_t n = here[k].values.count();
            ASSERT_EQ(beyond[k].values.count(), n);
            std::vector<double> got(static_cast<size_t>(n));
            const Tensor all = Tensor::borrow(got.data(), {n}, DType::f64);
            beyond[k].read(n / 2, all.slice(n / 2, n));
            beyond[k].read(0, all.slice(0, n / 2));
            EXPECT_TRUE(std::equal(got.begin(), got.end(), here[k].values.as<double>()));
          }
          // In the other direction, each value that `read` stores into a slice arrives at its local position.
          std::vector<ckpt::TensorSlice> stored = parameter_slices(p, "p", begin, end, range, context);
          size_t next = 0;
          read_slices(p, "p", begin, end, Tensor::borrow(filled.data(), {end - begin}, DType::f64),
                      [&](const ckpt::TensorSlice& slice) {
                        const ckpt::TensorSlice& from = stored[next++];
                        EXPECT_EQ(slice.begin, from.begin);
                        EXPECT_EQ(slice.first, from.first);
                        ASSERT_EQ(slice.values.count(), from.values.count());
                        std::copy_n(from.values.as<double>(), from.values.count(), slice.values.as<double>());
                      });
          EXPECT_TRUE(std::equal(filled.begin(), filled.end(), mine.begin() + begin));
        }
      }
      EXPECT_EQ(seen, std::vector<int>(whole.size(), 1)) << one.shape.text() << " over " << count;
    }
}

// A shard of [q | k | v] becomes three slices, one per section, and not one slice per row.
TEST(ShardSections, MakesOneSlicePerSection) {
  device::MemoryAccount account;
  device::MemoryPool pool(account);
  const tensor::Context context{{}, &pool};
  Held held(1, 2);
  const nn::Parameter& p = held.of({3, 14}, {1, {6, 4, 4}, 2});
  std::vector<double> mine(static_cast<size_t>(p.count()));
  const Tensor all = Tensor::borrow(mine.data(), {p.count()}, DType::f64);
  EXPECT_EQ(parameter_slices(p, "p", 0, p.count(), all, context).size(), 3u);
  // A range within one row of one section needs no copy.
  const auto few = parameter_slices(p, "p", 0, 2, all.slice(0, 2), context);
  ASSERT_EQ(few.size(), 1u);
  EXPECT_EQ(few[0].values.data(), mine.data());
}

}  // namespace
}  // namespace esp::train
