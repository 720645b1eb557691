#include "esp/train/recovery.h"

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

// Calls f(values) for every tensor of the training state, in the same order on all ranks.
template <typename F>
void for_each_tensor(Engine& engine, F&& f) {
  for (ParameterGroup& group : engine.parameter_groups()) {
    for (const auto& unit : group.parameters->units()) f(unit.values);
    for (const optim::OptimizerState& state : group.optimizer->states()) f(state.memory());
  }
}

constexpr size_t kMostAtOnce = size_t{64} << 20;  // maximum number of bytes per broadcast

// Broadcasts a replica from rank `source`. Other ranks receive it into a separate buffer: if the source is lost during
// the broadcast, they still have their previous replica.
void receive(comm::Communicator& ranks, int source, int64_t step, HostReplica& replica) {
  const bool here = ranks.rank() == source;
  HostReplica all;
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

void restore(Engine& engine, const HostReplica& replica) {
  size_t at = 0;
  for_each_tensor(engine, [&](const tensor::Tensor& values) {
    ESP_CHECK(at + values.bytes() <= replica.bytes.size(), "replica in memory: got {} bytes; the engine needs more",
              replica.bytes.size());
    device::transfer(values.data(), replica.bytes.data() + at, values.bytes());
    at += values.bytes();
  });
  ESP_CHECK(at == replica.bytes.size(), "replica in memory: got {} bytes; the engine needs {}", replica.bytes.size(),
            at);
  engine.optimizer().set_num_steps(replica.optimizer_steps);
  engine.optimizer().states_restored();
  engine.loss_scale().restore(replica.loss_scale, replica.good_steps);
  engine.resume_at(replica.step);
}

}  // namespace

bool is_peer_loss(const Error& error, const RecoveryOptions& recovery) {
  if (dynamic_cast<const CommError*>(&error)) return true;
  if (!recovery.peer_lost || !dynamic_cast<const IoError*>(&error)) return false;
  if (dynamic_cast<const obs::FileChanged*>(&error)) return false;
  const Deadline soon = Deadline::after(std::chrono::seconds(1));
  while (!recovery.peer_lost() && !soon.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return recovery.peer_lost();
}

CommError peer_loss_error(const RecoveryOptions& recovery) {
  if (recovery.peer_loss)
    if (const auto known = recovery.peer_loss()) return *known;
  return CommError(CommError::Kind::lost, -1, "another rank was lost");
}

bool is_memory_trusted(const Error& error) {
  const auto* comm = dynamic_cast<const CommError*>(&error);
  return !comm || comm->kind() != CommError::Kind::corrupt;
}

bool replicas_are_full(Engine& engine) {
  if (!engine.job().ranks || engine.mesh().shape().dp != engine.job().size()) return false;
  if (engine.method() != "allreduce" || engine.parameter_groups().size() != 1 || engine.offload()) return false;
  sync::Strategy& strategy = engine.strategy();
  if (strategy.divergent_replicas() || strategy.async_workers() || !strategy.extra_state().empty()) return false;
  for (const auto& unit : engine.parameter_groups().front().parameters->units())
    if (!unit.values.defined()) return false;
  return true;
}

void save_replica(Engine& engine, int64_t restarts, HostReplica& replica) {
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

ReplicaSource restore_from_replica(Engine& engine, HostReplica& replica, bool survivor) {
  comm::Communicator* ranks = engine.job().ranks;
  if (!ranks) return {};
  const int64_t mine[kReplicaStatusFields] = {replica.step, survivor ? 1 : 0};
  std::vector<int64_t> words(kReplicaStatusFields * static_cast<size_t>(ranks->size()));
  ranks->all_gather(mine, words.data(), kReplicaStatusFields, DType::i64);
  ReplicaSource newest = choose_replica_source(words);
  if (newest.rank < 0) return newest;
  receive(*ranks, newest.rank, newest.step, replica);
  restore(engine, replica);
  return newest;
}

std::string choose_snapshot_folder(const JobContext& job, const std::string& asked, const std::string& offered) {
  const std::string folder = broadcast_text(job.ranks, asked.empty() ? offered : asked);
  if (folder.empty() || !job.ranks || job.local_size >= job.size()) return folder;
  // If the ranks are on several hosts, rank 0 writes a file with a random name. The folder is shared only if all ranks
  // see this file.
  std::random_device random;
  const std::string probe = broadcast_text(job.ranks, fmt::format("{}/probe-{:08x}{:08x}", folder, random(), random()));
  std::error_code error;
  if (job.rank() == 0) {
    std::filesystem::create_directories(folder, error);
    obs::write_whole_file(probe, "");
  }
  job.ranks->barrier();
  int64_t seen = std::filesystem::exists(probe, error) ? 1 : 0;
  job.ranks->all_reduce(&seen, &seen, 1, DType::i64, comm::ReduceOp::min);
  if (job.rank() == 0) std::filesystem::remove(probe, error);
  return seen == 1 ? folder : "";
}

std::optional<ResumePoint> find_resume_point(const std::string& snapshots, const std::string& checkpoints,
                                             std::vector<std::string>& skipped) {
  std::optional<ckpt::OpenedCheckpoint> near, far;
  try {
    if (!snapshots.empty()) near = ckpt::newest_valid(snapshots, &skipped);
  } catch (const IoError&) {
    // All snapshots are damaged; they are listed in `skipped`. The checkpoints on disk are used instead.
  }
  std::vector<std::string> ignored;
  const auto steps =
      checkpoints.empty() ? std::vector<std::pair<int64_t, std::string>>() : ckpt::list_steps(checkpoints, &ignored);
  const bool newer_there = !steps.empty() && (!near || steps.front().first > near->checkpoint->step());
  if (newer_there) {
    try {
      far = ckpt::newest_valid(checkpoints, &skipped);
    } catch (const IoError&) {
      if (!near) throw;
    }
  } else {
    skipped.insert(skipped.end(), ignored.begin(), ignored.end());
  }
  if (far && (!near || far->checkpoint->step() > near->checkpoint->step())) return ResumePoint{std::move(*far), false};
  if (near) return ResumePoint{std::move(*near), true};
  return std::nullopt;
}

}  // namespace esp::train
