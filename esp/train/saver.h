// Writes checkpoints, at once or behind the training's back.
//
// Behind its back means: the state is copied to host memory (on the account's tier `host`) by all compute threads, a
// thread of the saver's own writes the copy, and training goes on. The copy's memory is kept for the next one: pages
// that were touched once cost nothing the second time. One write at a time: the next waits for the one before. An error
// of the thread is thrown by the next call. What lies beyond memory (Piece::read) is written at once: there is no room
// for a copy of it.
//
// Of several ranks each has one, made with the same token; they save the same steps, and a failure of any is thrown by
// the next call on all.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <string>
#include <thread>

#include "esp/ckpt/checkpoint.h"
#include "esp/device/stream.h"

namespace esp::train {

class Saver {
 public:
  // `stream`, on the host, lends its threads to the copy.
  Saver(std::string dir, ckpt::SaveOptions options, bool in_background, device::MemoryAccount& account,
        const device::Stream& stream = {})
      : dir_(std::move(dir)),
        options_(std::move(options)),
        in_background_(in_background),
        account_(account),
        stream_(stream) {}
  ~Saver();

  void save(ckpt::Snapshot snapshot) { save(std::move(snapshot), in_background_); }  // one rank's pieces
  void save(ckpt::Snapshot snapshot, bool in_background);
  // The path of the last checkpoint written, when everything handed over is on the disk; empty when there was none.
  std::string finish();
  bool writing() const { return writing_; }
  // Processor time of the thread for all checkpoints so far, in seconds: it may compete with training for cores.
  double writer_s() const { return static_cast<double>(writer_ns_) * 1e-9; }

 private:
  void join();
  ckpt::SaveOptions next_options();
  ckpt::Snapshot copied(ckpt::Snapshot snapshot);

  std::string dir_;
  ckpt::SaveOptions options_;
  bool in_background_;
  device::MemoryAccount& account_;
  device::Stream stream_;
  device::HostBuffer copy_;  // read by the thread, written when it was joined
  int64_t num_saves_ = 0;    // the same on all ranks
  std::atomic<bool> leaving_{false}, writing_{false};
  std::atomic<int64_t> writer_ns_{0};
  std::thread thread_;
  // Written by the thread, read after it was joined.
  std::string last_path_;
  std::exception_ptr error_;
};

}  // namespace esp::train
