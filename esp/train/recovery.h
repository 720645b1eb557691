// Recovery of a run after a rank failure. It uses what the launcher supports, and the most recent state that is
// available:
//
//   in place   surviving ranks keep their processes and reconnect. If replicas are equal, all ranks restore from the
//              newest replica in memory, otherwise from the newest snapshot
//   snapshot   all ranks were restarted and load the newest snapshot in host memory
//   disk       all ranks load the newest checkpoint, if there is no snapshot or only an older one
//   step_0     there is no saved state yet: the run starts at step 0
//
// If one source is not available, the next is tried. The log and events.jsonl say which one was used.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "esp/ckpt/checkpoint.h"
#include "esp/train/engine.h"
#include "esp/train/replica_source.h"

namespace esp::train {

struct RecoveryOptions {
  // The launcher has restarted this job: the run continues from its own state, even if checkpoint.resume says
  // otherwise.
  bool is_restart = false;
  bool accept_changes = false;  // resumes even if the run file or the data has changed (run_changes.h)
  std::string snapshot_folder;  // folder for snapshots in this host's memory, owned by the launcher; empty: none
  // returns true if a peer was lost; called on any thread; null: there is no failure detector
  std::function<bool()> peer_lost;
  std::function<std::optional<CommError>()> peer_loss;  // returns which peer was lost, and how; null: not known
  // Called on rank 0 after a recovery in place. The text tells the launcher from which state the run has resumed. Null:
  // there is no launcher.
  std::function<void(const std::string&)> on_resumed;
  // Closes the communicator and joins the next round together with the other ranks. Returns empty if the launcher
  // starts no new round. Null: restart in place is not supported. The callee owns the objects that the returned context
  // references.
  std::function<std::optional<JobContext>()> restart_in_place;
};

// True if a lost peer caused the error, so that the error would not repeat. Waits up to 1 s for the failure detector,
// because the failure of a joint checkpoint may arrive before the loss that caused it.
bool is_peer_loss(const Error& error, const RecoveryOptions& recovery);

// The error to throw after a peer was lost; it names the peer if known.
CommError peer_loss_error(const RecoveryOptions& recovery);

// True if the state in the ranks' memory can be trusted after this error. False if replicas differed or a GEMM gave a
// wrong result.
bool is_memory_trusted(const Error& error);

// A full copy of a rank's training state in host memory: parameters, optimizer state and counters. Used only with
// layouts in which every rank has an equal replica.
struct HostReplica {
  int64_t step = -1;  // step of this state; -1: there is no state
  int64_t restarts = 0, optimizer_steps = 0, good_steps = 0;
  double loss_scale = 1;
  std::vector<std::byte> bytes;
};

// True if every rank has the same full state after each step.
bool replicas_are_full(Engine& engine);
void save_replica(Engine& engine, int64_t restarts, HostReplica& replica);

// Collective. Finds the rank with the newest replica, broadcasts this replica, and restores the engine from it on all
// ranks. After a CommError the source still has its replica, for the next attempt. `survivor` is true if this rank has
// kept its process.
ReplicaSource restore_from_replica(Engine& engine, HostReplica& replica, bool survivor);

// Collective. Returns the folder to which all ranks write snapshots: `asked` from the run file; if empty, `offered` by
// rank 0's launcher, provided that all ranks can access it. Empty: no snapshots.
std::string choose_snapshot_folder(const JobContext& job, const std::string& asked, const std::string& offered);

// Returns the newest valid snapshot or checkpoint of the two folders; if both have the same step, the snapshot.
// `skipped` lists the damaged ones. Returns empty if both folders are empty. IoError if all snapshots and checkpoints
// are damaged.
struct ResumePoint {
  ckpt::OpenedCheckpoint found;
  bool snapshot = false;
};
std::optional<ResumePoint> find_resume_point(const std::string& snapshots, const std::string& checkpoints,
                                             std::vector<std::string>& skipped);

}  // namespace esp::train
