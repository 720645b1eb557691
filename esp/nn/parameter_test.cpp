#include "esp/nn/parameter.h"

#include <gtest/gtest.h>

#include <vector>

#include "esp/device/pool.h"

namespace esp::nn {
namespace {

TEST(Shard, SplitsDimensionEvenlyWithoutGaps) {
  for (int64_t n : {0, 1, 7, 12, 50257})
    for (int count : {1, 2, 3, 5}) {
      int64_t at = 0;
      for (int index = 0; index < count; ++index) {
        const IndexRange part = Shard{index, count}.of(n);
        EXPECT_EQ(part.begin, at);
        EXPECT_TRUE(part.count() == n / count || part.count() == n / count + 1);
        at = part.end;
      }
      EXPECT_EQ(at, n);
    }
}

struct Lists {
  device::MemoryAccount account;
  device::MemoryPool pool{account};
  const tensor::Context context{{}, &pool};

  void build(ParameterList& list) {
    list.begin_unit("a");
    list.add("packed", {5, 12 + 6 + 6}, Init::normal(1), true, {1, {12, 6, 6}, 2});
    list.add("rows", {11, 3}, Init::uniform(1), true, ShardSpec::along(0));
    list.add("bias", {24}, Init::normal(1), false, {0, {12, 6, 6}, 2});
    list.add("norm", {7}, Init::ones(), false);
    list.materialize(context, DType::f32, false);
    list.initialise(3, context.stream);
  }
};

// Every element of a shard equals the corresponding element of the whole parameter.
TEST(Parameters, ShardsGetInitialValuesOfWholeParameter) {
  Lists lists;
  ParameterList whole;
  lists.build(whole);
  for (int count : {2, 3})
    for (int index = 0; index < count; ++index) {
      ParameterList part(ModelShards{{index, count}, {}});
      lists.build(part);
      for (const Parameter& p : part.all()) {
        const Parameter& w = whole.find(p.name);
        EXPECT_EQ(p.global_shape, w.shape);
        const float *mine = p.weight.value.as<float>(), *all = w.weight.value.as<float>();
        if (p.cut_dim < 0) {
          EXPECT_EQ(std::vector<float>(mine, mine + p.count()), std::vector<float>(all, all + w.count()));
          EXPECT_EQ(p.counted, index == 0);
          continue;
        }
        EXPECT_TRUE(p.counted);
        std::vector<int64_t> places;  // index along the sharded dimension
        for (const IndexRange& section : p.sections)
          for (int64_t i = section.begin; i < section.end; ++i) places.push_back(i);
        ASSERT_EQ(static_cast<int64_t>(places.size()), p.shape.dim(p.cut_dim));
        const bool sharded_by_rows = p.cut_dim == 0 && p.shape.rank() == 2;
        const int64_t rows = p.shape.rank() == 1 ? 1 : p.shape.dim(0), cols = p.shape.dim(-1), of = w.shape.dim(-1);
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t j = 0; j < cols; ++j)
            EXPECT_EQ(mine[i * cols + j], sharded_by_rows ? all[places[static_cast<size_t>(i)] * of + j]
                                                          : all[i * of + places[static_cast<size_t>(j)]])
                << p.name;
      }
    }
}

TEST(Parameters, ShardingNeverSplitsAHead) {
  ParameterList list(ModelShards{{1, 3}, {}});
  const Parameter& p = list.add("qkv", {4, 24 + 12 + 12}, Init::zeros(), true, {1, {24, 12, 12}, 4});
  EXPECT_EQ(p.sections, (std::vector<IndexRange>{{8, 16}, {28, 32}, {40, 44}}));
  EXPECT_EQ(p.shape, (tensor::Shape{4, 16}));
}

}  // namespace
}  // namespace esp::nn
