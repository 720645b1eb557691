#include "esp/dash/traffic.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include <nlohmann/json.hpp>

namespace esp::dash {
namespace {

constexpr size_t kMaxMappedRanks = 256;
constexpr std::array<std::string_view, 4> kAxes = {"dp", "tp", "pp", "cp"};

// Mesh axes of a group. Its members differ only in the axes listed in `free`; all other coordinates are equal.
struct Axes {
  std::string_view group, free;
  bool experts = false;
};
constexpr Axes kGroups[] = {{"world", "dp tp pp cp"}, {"tensor", "tp"},          {"context", "cp"},
                            {"data", "dp"},           {"copies", "dp cp"},       {"pipe", "pp"},
                            {"model", "tp pp"},       {"expert", "dp cp", true}, {"expert_data", "dp cp", true}};
// for all other groups: shard groups, replica groups and parameter servers are subsets of the data-parallel ranks
constexpr Axes kOther = {"", "dp cp"};

const Axes& group_axes(std::string_view group) {
  for (const Axes& row : kGroups)
    if (row.group == group) return row;
  return kOther;
}

int coordinate(const Json& rank, const char* axis) {
  const auto coords = rank.find("coords");
  if (coords == rank.end() || !coords->is_object()) return 0;
  const auto value = coords->find(axis);
  return value != coords->end() && value->is_number_integer() ? value->get<int>() : 0;
}

double number(const Json& row, const char* key) {
  const auto at = row.find(key);
  return at != row.end() && at->is_number() ? std::max(0.0, at->get<double>()) : 0;
}

std::string text(const Json& row, const char* key) {
  const auto at = row.find(key);
  return at != row.end() && at->is_string() ? at->get<std::string>() : "";
}

// The peer of a rank in a pipeline group: the next stage, the previous stage, or the stage at the other end.
std::vector<int> pipe_peers(const std::vector<Json>& ranks, size_t of, const std::string& group) {
  const std::vector<int> line = group_members(ranks, of, "pipe");
  const auto here = std::find(line.begin(), line.end(), static_cast<int>(of));
  if (line.size() < 2 || here == line.end()) return {};
  const auto at = static_cast<size_t>(here - line.begin()), n = line.size();
  if (group == "pipe_activations_out" || group == "pipe_gradients_in") return {line[(at + 1) % n]};
  if (group == "pipe_gradients_out" || group == "pipe_activations_in") return {line[(at + n - 1) % n]};
  return {at == 0 ? line.back() : line.front()};  // group tied_table: the first and the last stage share the embedding
}

struct Target {
  int rank;
  double part;
};

std::vector<Target> targets(const std::vector<Json>& ranks, size_t of, const Json& row, const PeerShares& shares) {
  const std::string group = text(row, "group");
  std::vector<Target> out;
  if (group.starts_with("pipe_") || group == "tied_table") {
    for (const int peer : pipe_peers(ranks, of, group)) out.push_back({peer, 1});
    return out;
  }
  const std::vector<int> members = group_members(ranks, of, group);
  const auto here = std::find(members.begin(), members.end(), static_cast<int>(of));
  if (members.size() < 2 || here == members.end()) return {};
  const auto size = static_cast<int>(members.size());
  std::vector<double> parts;
  if (shares) parts = shares(text(row, "op"), text(row, "algo"), size, static_cast<int>(here - members.begin()));
  if (parts.size() != members.size()) parts.assign(members.size(), 1.0 / (size - 1));
  for (size_t i = 0; i < members.size(); ++i)
    if (members[i] != static_cast<int>(of) && parts[i] > 0) out.push_back({members[i], parts[i]});
  return out;
}

}  // namespace

std::vector<int> group_members(const std::vector<Json>& ranks, size_t of, const std::string& group) {
  const Axes& axes = group_axes(group);
  const auto most = [&](const char* axis) {
    int size = 0;
    for (const Json& rank : ranks) size = std::max(size, coordinate(rank, axis) + 1);
    return size;
  };
  // The experts are sharded over `ep` consecutive data-parallel ranks.
  const int cp = axes.experts ? most("cp") : 1, ep = axes.experts ? most("ep") : 1;
  const auto copy = [&](size_t i) { return coordinate(ranks[i], "cp") + cp * coordinate(ranks[i], "dp"); };
  std::vector<int> members;
  for (size_t i = 0; i < ranks.size(); ++i) {
    bool same = true;
    for (const std::string_view axis : kAxes)
      same = same && (axes.free.find(axis) != std::string_view::npos ||
                      coordinate(ranks[i], axis.data()) == coordinate(ranks[of], axis.data()));
    if (group == "expert") same = same && copy(i) / ep == copy(of) / ep;
    if (group == "expert_data") same = same && copy(i) % ep == copy(of) % ep;
    if (same) members.push_back(static_cast<int>(i));
  }
  return members;
}

TrafficMap build_traffic_map(const std::vector<Json>& ranks, const PeerShares& shares) {
  TrafficMap map;
  if (ranks.size() <= kMaxMappedRanks) map.num_ranks = ranks.size();
  std::map<std::tuple<std::string, std::string, std::string, std::string>, TrafficRow> rows;
  std::map<std::string, std::vector<double>> tiers;
  for (size_t from = 0; from < ranks.size(); ++from) {
    const auto comm = ranks[from].find("comm");
    if (comm == ranks[from].end() || !comm->is_array()) continue;
    for (const Json& row : *comm) {
      if (!row.is_object()) continue;
      TrafficRow one{text(row, "group"), text(row, "op"), text(row, "algo"), text(row, "transport")};
      TrafficRow& sum = rows.try_emplace({one.group, one.op, one.algorithm, one.transport}, one).first->second;
      const double bytes = number(row, "bytes_sent");
      sum.calls = std::max(sum.calls, number(row, "calls"));
      sum.bytes += bytes;
      sum.messages += number(row, "messages");
      sum.ms = std::max(sum.ms, number(row, "ms"));
      if (map.num_ranks == 0 || bytes == 0) continue;
      std::vector<double>& tier = tiers[one.transport];
      tier.resize(map.num_ranks * map.num_ranks);
      for (const Target& target : targets(ranks, from, row, shares))
        tier[from * map.num_ranks + static_cast<size_t>(target.rank)] += bytes * target.part;
    }
  }
  for (auto& [name, bytes] : tiers) map.tiers.push_back({name, std::move(bytes)});
  for (auto& [key, row] : rows) map.rows.push_back(row);
  std::stable_sort(map.rows.begin(), map.rows.end(),
                   [](const TrafficRow& a, const TrafficRow& b) { return a.bytes > b.bytes; });
  return map;
}

Json to_json(const TrafficMap& map) {
  Json json = {{"ranks", map.num_ranks}, {"tiers", Json::array()}, {"rows", Json::array()}};
  for (const TransportTraffic& tier : map.tiers) json["tiers"].push_back({{"name", tier.name}, {"bytes", tier.bytes}});
  for (const TrafficRow& row : map.rows)
    json["rows"].push_back({{"group", row.group},
                            {"op", row.op},
                            {"algo", row.algorithm},
                            {"transport", row.transport},
                            {"calls", row.calls},
                            {"bytes", row.bytes},
                            {"messages", row.messages},
                            {"ms", row.ms}});
  return json;
}

}  // namespace esp::dash
