#include "esp/parallel/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace esp::parallel {
namespace {

using testing::ElementsAre;

TEST(Mesh, TensorAxisIsFastestAndPipelineAxisSlowest) {
  const MeshShape s{.tp = 2, .cp = 1, .dp = 2, .pp = 4};
  EXPECT_EQ(s.size(), 16);
  EXPECT_THAT(members(s, MeshAxis::tensor, 3), ElementsAre(2, 3));
  EXPECT_THAT(members(s, MeshAxis::data, 0), ElementsAre(0, 2));
  EXPECT_THAT(members(s, MeshAxis::data, 5), ElementsAre(5, 7));
  EXPECT_THAT(members(s, MeshAxis::pipe, 9), ElementsAre(1, 5, 9, 13));
  EXPECT_THAT(members(s, MeshAxis::model, 0), ElementsAre(0, 1, 4, 5, 8, 9, 12, 13));
  EXPECT_EQ(s.text(), "tp 2 × cp 1 × dp 2 × pp 4");
}

TEST(Mesh, ExpertGroupsAreConsecutiveReplicas) {
  const MeshShape s{.tp = 1, .cp = 2, .dp = 4, .pp = 1, .ep = 4};
  EXPECT_THAT(members(s, MeshAxis::replicas, 3), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(members(s, MeshAxis::expert, 5), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(members(s, MeshAxis::expert_data, 5), ElementsAre(1, 5));
}

// For any factors, the groups of an axis partition the world, and all members compute the same group.
TEST(Mesh, GroupsPartitionWorld) {
  for (int tp : {1, 2, 3})
    for (int cp : {1, 2})
      for (int dp : {1, 3, 4})
        for (int pp : {1, 2, 5})
          for (int ep = 1; ep <= dp * cp; ++ep) {
            if (dp * cp % ep != 0) continue;
            const MeshShape s{tp, cp, dp, pp, ep};
            const size_t sizes[] = {size_t(tp), size_t(cp),      size_t(dp), size_t(dp * cp),
                                    size_t(pp), size_t(tp * pp), size_t(ep), size_t(dp * cp / ep)};
            for (int rank = 0; rank < s.size(); ++rank) ASSERT_EQ(s.rank_of(s.at(rank)), rank);
            for (MeshAxis axis : kMeshAxes) {
              std::set<std::vector<int>> groups;
              size_t covered = 0;
              for (int rank = 0; rank < s.size(); ++rank) groups.insert(members(s, axis, rank));
              for (const auto& group : groups) {
                EXPECT_EQ(group.size(), sizes[static_cast<size_t>(axis)]) << s.text() << ' ' << name_of(axis);
                covered += group.size();
                for (int rank : group) EXPECT_EQ(members(s, axis, rank), group);
              }
              EXPECT_EQ(covered, static_cast<size_t>(s.size()));
            }
          }
}

}  // namespace
}  // namespace esp::parallel
