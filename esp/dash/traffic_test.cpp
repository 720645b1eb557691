#include "esp/dash/traffic.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace esp::dash {
namespace {

Json rank_of(int rank, int dp, int pp, std::vector<Json> rows) {
  return {
      {"rank", rank}, {"coords", {{"dp", dp}, {"tp", 0}, {"pp", pp}, {"cp", 0}, {"ep", 0}}}, {"comm", std::move(rows)}};
}

Json row(const char* group, const char* op, const char* algorithm, double bytes, const char* transport = "shm") {
  return {{"group", group},      {"op", op},      {"algo", algorithm}, {"transport", transport}, {"calls", 2},
          {"bytes_sent", bytes}, {"messages", 4}, {"ms", 1.5}};
}

// Counters of four ranks: two replicas of two pipeline stages.
std::vector<Json> ranks(const std::vector<Json>& rows) {
  return {rank_of(0, 0, 0, rows), rank_of(1, 0, 1, {}), rank_of(2, 1, 0, {}), rank_of(3, 1, 1, {})};
}

std::vector<double> sent_by_first(const TrafficMap& map) {
  return {map.tiers.at(0).bytes.begin(), map.tiers.at(0).bytes.begin() + 4};
}

TEST(TrafficMap, CountsTrafficToGroupMembers) {
  EXPECT_EQ(sent_by_first(build_traffic_map(ranks({row("copies", "all_reduce", "ring", 100)}), {})),
            (std::vector<double>{0, 0, 100, 0}));
  EXPECT_EQ(sent_by_first(build_traffic_map(ranks({row("world", "all_reduce", "ring", 90)}), {})),
            (std::vector<double>{0, 30, 30, 30}));
  EXPECT_EQ(sent_by_first(build_traffic_map(ranks({row("pipe_activations_out", "send", "direct", 7)}), {})),
            (std::vector<double>{0, 7, 0, 0}));
}

TEST(TrafficMap, FindsGroupMembersFromMesh) {
  // Mesh tp 2 × dp 2 × pp 2 with ranks numbered in that order; ep is 2.
  std::vector<Json> all;
  for (int rank = 0; rank < 8; ++rank)
    all.push_back(
        {{"coords", {{"tp", rank % 2}, {"dp", rank / 2 % 2}, {"pp", rank / 4}, {"cp", 0}, {"ep", rank / 2 % 2}}}});
  EXPECT_EQ(group_members(all, 5, "tensor"), (std::vector<int>{4, 5}));
  EXPECT_EQ(group_members(all, 5, "pipe"), (std::vector<int>{1, 5}));
  EXPECT_EQ(group_members(all, 5, "copies"), (std::vector<int>{5, 7}));
  EXPECT_EQ(group_members(all, 5, "model"), (std::vector<int>{0, 1, 4, 5}));
  EXPECT_EQ(group_members(all, 5, "expert"), (std::vector<int>{5, 7}));
  EXPECT_EQ(group_members(all, 5, "expert_data"), (std::vector<int>{5}));
  EXPECT_EQ(group_members(all, 5, "world").size(), 8u);
}

TEST(TrafficMap, DistributesBytesByAlgorithm) {
  const PeerShares ring = [](const std::string&, const std::string&, int size, int rank) {
    std::vector<double> parts(static_cast<size_t>(size));
    parts[static_cast<size_t>((rank + 1) % size)] = 1;
    return parts;
  };
  EXPECT_EQ(sent_by_first(build_traffic_map(ranks({row("world", "all_reduce", "ring", 90)}), ring)),
            (std::vector<double>{0, 90, 0, 0}));
}

TEST(TrafficMap, SeparatesTransportsAndSumsRows) {
  const TrafficMap map = build_traffic_map(
      ranks({row("copies", "all_reduce", "ring", 1, "shm"), row("copies", "all_gather", "ring", 5, "tcp")}), {});
  ASSERT_EQ(map.tiers.size(), 2u);
  EXPECT_EQ(map.tiers[1].name, "tcp");
  ASSERT_EQ(map.rows.size(), 2u);
  EXPECT_EQ(map.rows[0].bytes, 5);  // rows are ordered by bytes, largest first
}

TEST(TrafficMap, IgnoresInvalidFiles) {
  const std::vector<Json> odd = {Json::parse(R"({"comm":[1,{"bytes_sent":"x"},{}],"coords":[]})"), Json::object(),
                                 Json::parse(R"({"comm":{}})")};
  EXPECT_TRUE(build_traffic_map(odd, {}).tiers.empty());
  EXPECT_EQ(build_traffic_map({}, {}).num_ranks, 0u);
}

}  // namespace
}  // namespace esp::dash
