#include "esp/parallel/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "esp/base/error.h"

namespace esp::parallel {
namespace {

using testing::HasSubstr;

LayoutSizes sizes() {
  LayoutSizes s;
  s.layers = 6;
  s.heads = 12;
  s.kv_heads = 4;
  s.ffn = 100;
  s.vocab = 251;
  s.seq_len = 24;
  s.global_batch = 24;
  s.micro_batch = 2;
  return s;
}

Layout of(const MeshShape& mesh) {
  Layout layout;
  layout.mesh = mesh;
  return layout;
}

std::string rule(const LayoutSizes& s, const Layout& layout) {
  const auto broken = find_violation(s, layout);
  return broken ? broken->text() : "";
}

TEST(Layout, AcceptsDivisibleSizes) {
  EXPECT_EQ(rule(sizes(), of({})), "");
  EXPECT_EQ(rule(sizes(), of({.tp = 4, .dp = 3, .pp = 2})), "");
  EXPECT_EQ(rule(sizes(), of({.tp = 2, .cp = 4, .dp = 2, .pp = 6})), "");
}

TEST(Layout, ViolationNamesRuleWithNumbers) {
  const auto check = [](const LayoutSizes& s, const Layout& layout, std::initializer_list<const char*> words) {
    for (const char* word : words) EXPECT_THAT(rule(s, layout), HasSubstr(word));
  };
  check(sizes(), of({.tp = 5}), {"parallel.tp = 5", "12 attention heads"});
  check(sizes(), of({.tp = 3}), {"parallel.tp = 3", "4 KV heads"});
  check(sizes(), of({.pp = 7}), {"parallel.pp = 7", "got 6"});
  check(sizes(), of({.dp = 5}), {"train.global_batch = 24", "multiple of dp = 5"});
  check(sizes(), of({.dp = 8}), {"train.micro_batch = 2", "share of 3 sequences"});
  check(sizes(), of({.cp = 13}), {"parallel.cp = 13", "2·cp = 26 tokens", "got 24"});
  check(sizes(), of({.dp = 2, .ep = 2}), {"parallel.ep = 2", "no experts"});

  Layout layout = of({.cp = 5});
  layout.context = "ulysses";
  check(sizes(), layout, {"parallel.cp = 5", "12 heads", "ring"});
  layout = of({.cp = 3});
  layout.context = "ulysses";
  check(sizes(), layout, {"whole KV heads", "the 4 KV heads per rank"});

  layout = of({});
  layout.sequence = true;
  check(sizes(), layout, {"parallel.sequence = true", "tp = 1"});
  LayoutSizes odd = sizes();
  odd.seq_len = 25;
  odd.micro_batch = 1;
  layout = of({.tp = 2});
  layout.sequence = true;
  check(odd, layout, {"parallel.sequence = true", "25 rows"});
  odd.micro_batch = 2;
  EXPECT_EQ(rule(odd, layout), "");

  layout = of({.pp = 2});
  layout.interleave = 2;
  check(sizes(), layout, {"parallel.interleave = 2", "interleaved"});
  layout.schedule = "interleaved";
  EXPECT_EQ(rule(sizes(), layout), "");
  layout.interleave = 4;
  check(sizes(), layout, {"parallel.interleave = 4", "at least 8 layers, got 6"});
  layout = of({.dp = 4, .pp = 2});
  layout.schedule = "interleaved";
  check(sizes(), layout, {"train.micro_batch = 2", "multiple of 2 micro-batches", "got 3"});

  LayoutSizes experts = sizes();
  experts.experts = 6;
  check(experts, of({.dp = 4, .ep = 4}), {"parallel.ep = 4", "6 experts"});
  check(experts, of({.dp = 4, .ep = 3}), {"parallel.ep = 3", "4 replicas"});
  EXPECT_EQ(rule(experts, of({.cp = 3, .dp = 2, .ep = 6})), "");

  LayoutSizes both = sizes();
  both.arch = "t5";
  check(both, of({.pp = 2}), {"parallel.pp = 2", "t5"});
  check(both, of({.cp = 2}), {"parallel.cp = 2", "t5"});
  EXPECT_EQ(rule(both, of({.tp = 2, .dp = 2})), "");
}

TEST(Layout, ErrorListsKnownNames) {
  Layout layout = of({.pp = 2});
  layout.schedule = "2f2b";
  EXPECT_THROW(find_violation(sizes(), layout), UsageError);
  layout = of({.cp = 2});
  layout.context = "star";
  EXPECT_THROW(find_violation(sizes(), layout), UsageError);
}

// For many worlds: every suggested layout is valid, has the same number of ranks, and no valid layout is nearer.
TEST(Layout, NearestLayoutsAreValid) {
  int num_offered = 0;
  for (int tp : {1, 2, 3, 5})
    for (int cp : {1, 2, 3})
      for (int dp : {1, 2, 5, 7})
        for (int pp : {1, 2, 7}) {
          const Layout layout = of({.tp = tp, .cp = cp, .dp = dp, .pp = pp});
          const auto near = nearest_layouts(sizes(), layout, 4);
          for (const Layout& one : near) {
            EXPECT_EQ(one.mesh.size(), layout.mesh.size());
            EXPECT_EQ(rule(sizes(), one), "") << one.text();
            ++num_offered;
          }
          if (!find_violation(sizes(), layout)) {
            ASSERT_FALSE(near.empty());
            EXPECT_EQ(near.front(), layout) << "a valid layout is the nearest layout to itself";
          }
        }
  EXPECT_GT(num_offered, 200);
}

TEST(Layout, ErrorNamesNearestLayouts) {
  try {
    check_layout(sizes(), of({.tp = 3, .dp = 2}));
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("4 KV heads"));
    EXPECT_THAT(error.what(), HasSubstr("layouts of 6 ranks that work"));
    EXPECT_THAT(error.what(), HasSubstr("tp=2"));
  }
  try {
    LayoutSizes s = sizes();
    s.layers = 1;
    s.seq_len = 4;
    check_layout(s, of({.dp = 11}));
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("no layout of 11 ranks works"));
  }
}

TEST(Layout, MeshSizesMultiplyToWorld) {
  EXPECT_EQ(mesh_shape(2, 1, 0, 2, 1, 8), (MeshShape{.tp = 2, .dp = 2, .pp = 2}));
  EXPECT_EQ(mesh_shape(1, 3, 2, 1, 2, 6), (MeshShape{.cp = 3, .dp = 2, .ep = 2}));
  EXPECT_THROW(mesh_shape(3, 1, 0, 1, 1, 8), UsageError);
  EXPECT_THROW(mesh_shape(2, 1, 2, 1, 1, 8), UsageError);
  EXPECT_THROW(mesh_shape(0, 1, 0, 1, 1, 8), UsageError);
  EXPECT_THROW(mesh_shape(1, 1, -1, 1, 1, 8), UsageError);
  EXPECT_THROW(mesh_shape(int64_t{1} << 62, 4, 0, 1, 1, 8), UsageError);
}

}  // namespace
}  // namespace esp::parallel
