// SaveAttempt: several ranks write one checkpoint. They coordinate only through files, with an atomic commit by rename.
//
//   .partial-step-N.TOKEN/  model-r00001-00001.safetensors …   written by the ranks, renumbered by rank 0
//                           parts/part-00001.json …            partial manifest of rank 1: the last file it writes
//                           manifest.json                      written by rank 0 once all partial manifests exist
//
// Rank 0 creates the folder; the other ranks wait for it. A rename decides the outcome, because the file system lets
// only one rename of the folder succeed:
//
//   commit  Rank 0 renames the folder to step-N once everything is written.
//   abort   A rank that fails or times out renames it to .failed-step-N.TOKEN, with the reason inside.
//
// Therefore no rank can abort a committed checkpoint, a full disk cannot hide a failure, and all ranks learn the
// outcome from the name. After the new name is synced, rank 0 removes parts/; the other ranks wait until then.
//
// Each rank uses one thread. A rank checks whether a file exists by listing the folder, because network file systems
// cache the answer that a name does not exist.
#pragma once

#include <string>
#include <vector>

#include "esp/ckpt/checkpoint.h"
#include "esp/ckpt/partial_manifest.h"

namespace esp::ckpt {

class SaveAttempt {
 public:
  SaveAttempt(const std::string& dir, int64_t step, const SaveOptions& options);

  const std::string& folder() const { return folder_; }  // the folder into which all ranks write their files
  const std::string& path() const { return path_; }      // final path of the checkpoint

  void begin();                              // rank 0 creates the folder, the other ranks wait for it
  void submit(const PartialManifest& part);  // on all ranks except 0: writes this rank's partial manifest
  // Rank 0 only: waits for the partial manifests of all ranks and returns them by rank. `own` is the partial manifest
  // of rank 0.
  std::vector<PartialManifest> collect_partials(PartialManifest own);
  void commit();           // rank 0 only: renames the folder to the final path; manifest.json must already be in it
  void wait_for_commit();  // all ranks except 0: returns after the commit

  // Call after a failure of this rank. The attempt then fails on all ranks, unless it is already committed. Returns the
  // reason; if another rank aborted first, the reason is that of the other rank.
  std::string abort(const std::string& why);

 private:
  enum class State { none, open, failed, complete };
  State state() const;
  std::string reason() const;
  bool is_decided() const;
  // Waits until ready() is true. Returns false on timeout.
  bool wait_until(const std::function<bool()>& ready, Duration timeout) const;
  PartialManifest read_partial(int rank) const;

  std::string dir_, token_, name_, path_, folder_, failed_;
  int64_t step_;
  int rank_, world_;
  Duration timeout_, begin_timeout_;
  const std::atomic<bool>* stopping_;
  std::function<bool()> peer_lost_;
  std::function<void()> check_folder_;
  bool begun_ = false;  // this rank has seen the folder
};

}  // namespace esp::ckpt
