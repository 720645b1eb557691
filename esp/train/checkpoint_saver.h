// CheckpointSaver: writes checkpoints, either synchronously or in the background.
//
// In the background: all compute threads copy the state to host memory (MemoryTier::host), a thread of the
// saver writes the copy, and training continues. The host buffer is kept for the next save, because its pages are
// already mapped. There is one write at a time: the next save waits for the previous one. If the writer thread fails,
// the next call throws its error. A snapshot with offloaded slices (TensorSlice::read) is written synchronously,
// because there is no memory for a copy of them.
//
// With several ranks, each rank has one saver, and all have the same token. All ranks save after the same steps. If the
// write fails on any rank, the next call throws on all ranks.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <string>
#include <thread>

#include "esp/ckpt/checkpoint.h"
#include "esp/device/stream.h"

namespace esp::train {

class CheckpointSaver {
 public:
  // `stream` is a host stream; its threads copy the state.
  CheckpointSaver(std::string dir, ckpt::SaveOptions options, bool in_background, device::MemoryAccount& account,
                  const device::Stream& stream = {})
      : dir_(std::move(dir)),
        options_(std::move(options)),
        in_background_(in_background),
        account_(account),
        stream_(stream) {}
  ~CheckpointSaver();

  // `snapshot` has the slices of this rank
  void save(ckpt::Snapshot snapshot) { save(std::move(snapshot), in_background_); }
  void save(ckpt::Snapshot snapshot, bool in_background);
  // Waits until every save is on disk. Returns the path of the last checkpoint, or empty if there was none.
  std::string finish();
  bool writing() const { return writing_; }
  // CPU time that the writer thread has used for all checkpoints so far, in seconds. The thread may compete with
  // training for cores.
  double writer_s() const { return static_cast<double>(writer_ns_) * 1e-9; }

 private:
  void join();
  ckpt::SaveOptions next_options();
  ckpt::Snapshot copy_to_host(ckpt::Snapshot snapshot);

  std::string dir_;
  ckpt::SaveOptions options_;
  bool in_background_;
  device::MemoryAccount& account_;
  device::Stream stream_;
  device::HostBuffer copy_;  // read by the writer thread; changed only while no writer thread runs
  int64_t num_saves_ = 0;    // number of saves so far, equal on all ranks
  std::atomic<bool> cancelled_{false}, writing_{false};
  std::atomic<int64_t> writer_ns_{0};
  std::thread thread_;
  // Written by the writer thread, and read only after the thread was joined.
  std::string last_path_;
  std::exception_ptr error_;
};

}  // namespace esp::train
