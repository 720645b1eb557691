// How a run goes on after a rank was lost, as much as the launcher offers, from the nearest state there is:
//
//   in place   survivors keep their processes and meet again; where copies are equal all go on from the newest one's
//              memory, elsewhere from the newest snapshot
//   snapshot   all were started again and load the newest snapshot in the host's memory
//   disk       the same from a checkpoint, when there is no snapshot, or an older one
//   anew       there was nothing yet
//
// Each rung falls to the next by itself; which was taken is noted and written to events.jsonl.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "esp/ckpt/checkpoint.h"
#include "esp/train/engine.h"
#include "esp/train/heal_source.h"

namespace esp::train {

struct Recovery {
  bool again = false;               // a launcher starts this job once more: it goes on, however it was begun
  bool accept_changes = false;      // the folder's run goes on with another run file (run_changes.h)
  std::string snapshots;            // a folder of the launcher's in this host's memory; empty: none
  std::function<bool()> peer_lost;  // asked on any thread; null: nobody watches
  std::function<std::optional<CommError>()> loss;  // which one, and how; null: nobody knows
  // Tells the launcher what the run resumed from in place, on the first rank; null: there is no launcher.
  std::function<void(const std::string&)> resumed;
  // Closes the communicator of the former standing and meets the others again; nothing when the launcher calls no new
  // round. Null: not offered. The standing lends what the callee owns.
  std::function<std::optional<Standing>()> reform;
};

// Whether an error tells of a lost peer, rather than of what would happen again. May wait a moment: of a checkpoint
// that another rank gave up because of the loss, we may hear before we hear of the loss.
bool tells_of_loss(const Error& error, const Recovery& recovery);

// What to say of a lost peer.
CommError loss_told(const Recovery& recovery);

// Whether what ranks have in memory can be trusted: not where copies were found to differ, or a product wrong.
bool memory_is_good(const Error& error);

// A whole copy of what a rank trains, out of an engine's memory: parameters, optimizer state and counters, in the order
// the engine has them. For layouts whose copies are the same on every rank.
struct Replica {
  int64_t step = -1;  // none
  int64_t restarts = 0, optimizer_steps = 0, good_steps = 0;
  double loss_scale = 1;
  std::vector<std::byte> bytes;
};

// Whether every rank holds the same whole state after each step.
bool copies_are_whole(Engine& engine);
void take_replica(Engine& engine, int64_t restarts, Replica& replica);

// Collective. Finds the rank with the newest replica, which all then restore, and with it the engine. The bytes are
// given back when that is done; should it fail they are there for the next time. `survivor`: this rank has kept its
// process.
Healed heal(Engine& engine, Replica& replica, bool survivor);

// Collective. The folder all ranks write snapshots to: the run file's, or the first rank's launcher's when all see it;
// empty when there is none.
std::string agree_on_snapshots(const Standing& standing, const std::string& asked, const std::string& offered);

// The newest of both folders that is as it was written, a snapshot where they are of the same step. `skipped` names
// those passed over. IoError when there are checkpoints, and neither one of them nor a snapshot can be used.
struct Origin {
  ckpt::FoundCheckpoint found;
  bool snapshot = false;
};
std::optional<Origin> newest_origin(const std::string& snapshots, const std::string& checkpoints,
                                    std::vector<std::string>& skipped);

}  // namespace esp::train
