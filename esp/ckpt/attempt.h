// Several ranks write one checkpoint: how they begin, hand in and agree, over files alone.
//
//   .partial-step-N.TOKEN/  model-r00001-00001.safetensors …   written by the ranks, numbered through by rank 0
//                           parts/part-00001.json …            a rank's last file: its part is there
//                           manifest.json                      by rank 0, when all parts are there
//
// Rank 0 makes the folder and the others wait for it. How it ends is decided by renaming it, which the file system
// lets succeed once: rank 0 renames it to step-N when everything is there; whoever fails, or waited too long, renames
// it to .failed-step-N.TOKEN with his reason in it. So no rank can give up what another has completed, a full disk
// does not keep a failure from being told, and everybody learns the outcome by looking which name is there. Rank 0
// removes parts/ last, when the new name is synced: until then the others go on waiting.
//
// One thread per rank. Folders are listed rather than asked for one name: a network file system remembers for a while
// that a name was not there.
#pragma once

#include <string>
#include <vector>

#include "esp/ckpt/checkpoint.h"
#include "esp/ckpt/part.h"

namespace esp::ckpt {

class Attempt {
 public:
  Attempt(const std::string& dir, int64_t step, const SaveOptions& options);

  const std::string& folder() const { return folder_; }  // where files are written
  const std::string& path() const { return path_; }      // where they will be

  void begin();                         // rank 0 makes the folder, the others wait for it
  void hand_in(const Part& part);       // not rank 0
  std::vector<Part> collect(Part own);  // rank 0: everybody's, by rank
  void complete();                      // rank 0: the folder, which has its manifest, becomes the checkpoint
  void await_end();                     // not rank 0: returns when it is complete

  // After a failure of this rank: the attempt fails for all, unless it is complete. Returns why it failed, which is
  // another rank's reason when that was earlier.
  std::string give_up(const std::string& why);

 private:
  enum class State { none, open, failed, complete };
  State state() const;
  std::string reason() const;
  bool settled() const;
  // False when the time was up first.
  bool wait_until(const std::function<bool()>& ready, Duration timeout) const;
  Part read_part(int rank) const;

  std::string dir_, token_, name_, path_, folder_, failed_;
  int64_t step_;
  int rank_, world_;
  Duration timeout_, begin_timeout_;
  const std::atomic<bool>* leaving_;
  std::function<bool()> peer_lost_;
  std::function<void()> check_folder_;
  bool begun_ = false;  // this rank has seen the folder
};

}  // namespace esp::ckpt
