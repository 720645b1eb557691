#include "esp/train/recover.h"

#include <cstring>
#include <filesystem>
#include <random>
#include <thread>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/ckpt/steps.h"
#include "esp/device/gpu.h"
#include "esp/obs/file.h"
#include "esp/train/gather_texts.h"

namespace esp::train {
namespace {

// f(values) for every tensor of the state, in one order on all ranks.
template <typename F>
void for_each_tensor(Engine& engine, F&& f) {
  for (Holding& holding : engine.holdings()) {
    for (const auto& unit : holding.parameters->units()) f(unit.values);
    for (const optim::OptimizerState& state : holding.optimizer->states()) f(state.memory());
  }
}

constexpr size_t kMostAtOnce = size_t{64} << 20;  // of a broadcast

// Into memory of its own until it is whole: a rank that has the state keeps it should the source be lost on the way.
void receive(comm::Communicator& ranks, int source, int64_t step, Replica& replica) {
  const bool here = ranks.rank() == source;
  Replica all;
  if (here) all = std::move(replica);
  int64_t counts[] = {all.restarts, all.optimizer_steps, all.good_steps, static_cast<int64_t>(all.bytes.size())};
  try {
    ranks.broadcast(counts, std::size(counts), DType::i64, source);
    ranks.broadcast(&all.loss_scale, 1, DType::f64, source);
    const auto bytes = static_cast<size_t>(counts[3]);
    all.bytes.resize(bytes);
    for (size_t at = 0; at < bytes; at += kMostAtOnce)
      ranks.broadcast(all.bytes.data() + at, std::min(kMostAtOnce, bytes - at), DType::u8, source);
  } catch (const CommError&) {
    if (here) replica = std::move(all);
    throw;
  }
  all.step = step;
  all.restarts = counts[0];
  all.optimizer_steps = counts[1];
  all.good_steps = counts[2];
  replica = std::move(all);
}

void restore(Engine& engine, const Replica& replica) {
  size_t at = 0;
  for_each_tensor(engine, [&](const tensor::Tensor& values) {
    ESP_CHECK(at + values.bytes() <= replica.bytes.size(), "a replica of {} bytes, and more wanted",
              replica.bytes.size());
    device::transfer(values.data(), replica.bytes.data() + at, values.bytes());
    at += values.bytes();
  });
  ESP_CHECK(at == replica.bytes.size(), "a replica of {} bytes, of which {} were wanted", replica.bytes.size(), at);
  engine.optimizer().set_num_steps(replica.optimizer_steps);
  engine.optimizer().states_restored();
  engine.loss_scale().restore(replica.loss_scale, replica.good_steps);
  engine.resume_at(replica.step);
}

}  // namespace

bool tells_of_loss(const Error& error, const Recovery& recovery) {
  if (dynamic_cast<const CommError*>(&error)) return true;
  if (!recovery.peer_lost || !dynamic_cast<const IoError*>(&error)) return false;
  if (dynamic_cast<const obs::FileChanged*>(&error)) return false;
  const Deadline soon = Deadline::after(std::chrono::seconds(1));
  while (!recovery.peer_lost() && !soon.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return recovery.peer_lost();
}

CommError loss_told(const Recovery& recovery) {
  if (recovery.loss)
    if (const auto known = recovery.loss()) return *known;
  return CommError(CommError::Kind::lost, -1, "another rank was lost");
}

bool memory_is_good(const Error& error) {
  const auto* comm = dynamic_cast<const CommError*>(&error);
  return !comm || comm->kind() != CommError::Kind::corrupt;
}

bool copies_are_whole(Engine& engine) {
  if (!engine.standing().ranks || engine.mesh().shape().dp != engine.standing().size()) return false;
  if (engine.method() != "allreduce" || engine.holdings().size() != 1 || engine.offload()) return false;
  sync::Strategy& strategy = engine.strategy();
  if (strategy.divergent_replicas() || strategy.async_workers() || !strategy.extra_state().empty()) return false;
  for (const auto& unit : engine.holdings().front().parameters->units())
    if (!unit.values.defined()) return false;
  return true;
}

void take_replica(Engine& engine, int64_t restarts, Replica& replica) {
  replica.step = engine.num_steps();
  replica.restarts = restarts;
  replica.optimizer_steps = engine.optimizer().num_steps();
  replica.loss_scale = engine.loss_scale().scale();
  replica.good_steps = engine.loss_scale().good_steps();
  size_t bytes = 0, at = 0;
  for_each_tensor(engine, [&](const tensor::Tensor& values) { bytes += values.bytes(); });
  replica.bytes.resize(bytes);
  for_each_tensor(engine, [&](const tensor::Tensor& values) {
    device::transfer(replica.bytes.data() + at, values.data(), values.bytes());
    at += values.bytes();
  });
}

Healed heal(Engine& engine, Replica& replica, bool survivor) {
  comm::Communicator* ranks = engine.standing().ranks;
  if (!ranks) return {};
  const int64_t mine[kHealWords] = {replica.step, survivor ? 1 : 0};
  std::vector<int64_t> words(kHealWords * static_cast<size_t>(ranks->size()));
  ranks->all_gather(mine, words.data(), kHealWords, DType::i64);
  Healed healed = source_of(words);
  if (healed.source < 0) return healed;
  receive(*ranks, healed.source, healed.step, replica);
  restore(engine, replica);
  return healed;
}

std::string agree_on_snapshots(const Standing& standing, const std::string& asked, const std::string& offered) {
  const std::string folder = broadcast_text(standing.ranks, asked.empty() ? offered : asked);
  if (folder.empty() || !standing.ranks || standing.local_size >= standing.size()) return folder;
  // Ranks of several hosts: a file of the first one's is seen by all, or the folder is not one that all share.
  std::random_device random;
  const std::string probe =
      broadcast_text(standing.ranks, fmt::format("{}/probe-{:08x}{:08x}", folder, random(), random()));
  std::error_code error;
  if (standing.rank() == 0) {
    std::filesystem::create_directories(folder, error);
    obs::write_whole_file(probe, "");
  }
  standing.ranks->barrier();
  int64_t seen = std::filesystem::exists(probe, error) ? 1 : 0;
  standing.ranks->all_reduce(&seen, &seen, 1, DType::i64, comm::ReduceOp::min);
  if (standing.rank() == 0) std::filesystem::remove(probe, error);
  return seen == 1 ? folder : "";
}

std::optional<Origin> newest_origin(const std::string& snapshots, const std::string& checkpoints,
                                    std::vector<std::string>& skipped) {
  std::optional<ckpt::FoundCheckpoint> near, far;
  try {
    if (!snapshots.empty()) near = ckpt::newest_sound(snapshots, &skipped);
  } catch (const IoError&) {
    // All are damaged, and named in `skipped`: the disk is left.
  }
  std::vector<std::string> ignored;
  const auto steps =
      checkpoints.empty() ? std::vector<std::pair<int64_t, std::string>>() : ckpt::steps_under(checkpoints, &ignored);
  const bool newer_there = !steps.empty() && (!near || steps.front().first > near->checkpoint->step());
  if (newer_there) {
    try {
      far = ckpt::newest_sound(checkpoints, &skipped);
    } catch (const IoError&) {
      if (!near) throw;
    }
  } else {
    skipped.insert(skipped.end(), ignored.begin(), ignored.end());
  }
  if (far && (!near || far->checkpoint->step() > near->checkpoint->step())) return Origin{std::move(*far), false};
  if (near) return Origin{std::move(*near), true};
  return std::nullopt;
}

}  // namespace esp::train
