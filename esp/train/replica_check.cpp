#include "esp/train/replica_check.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "esp/base/error.h"
#include "esp/device/gpu.h"
#include "esp/kernel/fingerprint.h"
#include "esp/train/rank_identity.h"

namespace esp::train {
namespace {

constexpr size_t kStagingBytes = size_t{16} << 20;

bool values_are_whole(const RunConfig& config, sync::Strategy& strategy) {
  const std::string& method = config.sync.method;
  return (method == "allreduce" || method == "zero1" || method == "zero2") && !strategy.divergent_replicas() &&
         !strategy.async_workers();
}
bool states_are_whole(const RunConfig& config) {
  return config.sync.method == "allreduce" && config.sync.offload == "none" && config.sync.compress == "none";
}

}  // namespace

std::optional<ReplicaMismatch> find_mismatch(std::span<const uint64_t> rows, size_t num_entries) {
  const size_t width = num_entries + 1, num_replicas = rows.size() / width;
  ReplicaMismatch difference;
  std::vector<bool> bad(num_replicas);
  bool found = false;
  difference.majority = true;
  for (size_t entry = 0; entry < num_entries; ++entry) {
    std::map<uint64_t, size_t> votes;
    for (size_t replica = 0; replica < num_replicas; ++replica) ++votes[rows[replica * width + 1 + entry]];
    if (votes.size() == 1) continue;
    if (!std::exchange(found, true)) difference.entry = entry;
    const auto most = std::ranges::max_element(votes, {}, [](const auto& one) { return one.second; });
    const bool majority = 2 * most->second > num_replicas;
    difference.majority = difference.majority && majority;
    for (size_t replica = 0; replica < num_replicas; ++replica)
      if (!majority || rows[replica * width + 1 + entry] != most->first) bad[replica] = true;
  }
  if (!found) return std::nullopt;
  for (size_t replica = 0; replica < num_replicas; ++replica)
    if (bad[replica]) difference.ranks.push_back(static_cast<int>(rows[replica * width]));
  return difference;
}

ReplicaCheck::ReplicaCheck(Engine& engine, const RunConfig& config) : engine_(engine) {
  constexpr parallel::MeshAxis kReplicaAxes[] = {parallel::MeshAxis::replicas, parallel::MeshAxis::expert_data};
  for (size_t i = 0; i < engine.parameter_groups().size(); ++i) {
    ParameterGroup& group = engine.parameter_groups()[i];
    ComparedGroup held{engine.mesh().group(kReplicaAxes[i]), {}, {}, {}};
    if (!held.replicas || held.replicas->size() < 2 || !values_are_whole(config, *group.strategy)) continue;
    const auto& units = group.parameters->units();
    for (const auto& unit : units)
      if (unit.values.defined()) held.entries.push_back({fmt::format("parameters of {}", unit.name), unit.values});
    if (states_are_whole(config))
      for (const optim::OptimizerState& state : group.optimizer->states())
        held.entries.push_back(
            {fmt::format("{} of {}", state.slot, units[static_cast<size_t>(state.range.unit)].name), state.memory()});
    if (held.entries.empty()) continue;
    held.own.resize(held.entries.size() + 1);
    held.all.resize(held.own.size() * static_cast<size_t>(held.replicas->size()));
    held_.push_back(std::move(held));
  }
}

uint64_t ReplicaCheck::bytes() const {
  uint64_t sum = 0;
  for (const ComparedGroup& held : held_)
    for (const Entry& entry : held.entries) sum += entry.values.bytes();
  return sum;
}

uint64_t ReplicaCheck::fingerprint_of(const tensor::Tensor& values) {
  const device::Stream host = device::host_side(engine_.context().stream);
  const auto* from = values.as<std::byte>();
  const auto bytes = static_cast<size_t>(values.bytes());
  if (bytes == 0 || device::is_host_accessible(from)) return kernel::fingerprint(from, bytes, host);
  staging_.resize(kStagingBytes);
  uint64_t all = 0;
  for (size_t at = 0; at < bytes; at += kStagingBytes) {
    const size_t part = std::min(kStagingBytes, bytes - at);
    device::transfer(staging_.data(), from + at, part);
    all = (all ^ kernel::fingerprint(staging_.data(), part, host)) * 0x9e3779b97f4a7c15u;
  }
  return all;
}

void ReplicaCheck::compare(int64_t step) {
  for (ComparedGroup& held : held_) {
    held.own[0] = static_cast<uint64_t>(engine_.job().rank());
    for (size_t i = 0; i < held.entries.size(); ++i) held.own[i + 1] = fingerprint_of(held.entries[i].values);
    held.replicas->all_gather(held.own.data(), held.all.data(), held.own.size(), DType::i64);
    const auto difference = find_mismatch(held.all, held.entries.size());
    if (!difference) continue;
    // The first rank that throws ends the run, so each rank first waits until all ranks know the result. If the barrier
    // fails, the result is still thrown.
    try {
      held.replicas->barrier();
    } catch (const CommError&) {
    }
    throw_corrupt(held, *difference, step);
  }
}

void ReplicaCheck::throw_corrupt(const ComparedGroup& held, const ReplicaMismatch& difference, int64_t step) const {
  const std::string where = fmt::format("the {} after step {}", held.entries[difference.entry].name, step);
  const std::string text =
      difference.majority
          ? fmt::format("rank {} differs from the {} other replicas in {}", fmt::join(difference.ranks, ", rank "),
                        held.replicas->size() - std::ssize(difference.ranks), where)
          : fmt::format("ranks {} differ in {}, and no value has a majority", fmt::join(difference.ranks, " and "),
                        where);
  throw CommError(
      CommError::Kind::corrupt, difference.ranks.front(),
      fmt::format("{}. The {} are not the cause: they were equal on all ranks at the start. The cause is a hardware "
                  "error or a bug. Resume from an earlier checkpoint (checkpoint.resume); if it happens again, "
                  "exclude that "
                  "machine",
                  text, kComparedByRanks));
}

void ReplicaCheck::flip_bit(uint64_t number) {
  if (bytes() == 0) return;
  number %= bytes() * 8;
  for (ComparedGroup& held : held_)
    for (Entry& entry : held.entries) {
      const auto bits = static_cast<uint64_t>(entry.values.bytes()) * 8;
      if (number >= bits) {
        number -= bits;
        continue;
      }
      auto* at = entry.values.as<std::byte>() + number / 8;
      std::byte one;
      device::transfer(&one, at, 1);
      one ^= std::byte{1} << (number % 8);
      return device::transfer(at, &one, 1);
    }
}

}  // namespace esp::train
