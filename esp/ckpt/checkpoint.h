// A checkpoint: global tensors by name, cut into pieces that any number of ranks wrote, and a manifest that says where
// everything is. The layout that wrote it does not bind the one that reads it.
//
//   step-N/  model-00001-of-00002.safetensors …   pieces of parameters, readable by any safetensors tool
//            optimizer-00001-of-00002.safetensors …
//            manifest.json                          written last: complete only once it is there
//
// Everything is written into a folder with a temporary name, synced, and renamed; the manifest carries a checksum and
// the size of every file. A reader verifies what it reads. One thread per rank; ranks share the folder (a file system
// all of them see) and nothing else: attempt.h tells how they agree.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "esp/base/clock.h"
#include "esp/base/json.h"
#include "esp/tensor/tensor.h"

namespace esp::ckpt {

// A piece of a global tensor that this rank holds: the flat elements [first, first + values.count()) of the box that
// begins at `begin` and has `extent`, row-major within the box. Empty begin: the whole tensor.
struct Piece {
  std::string name;  // "blocks.3.attention.qkv.weight", "optimizer.m.blocks.3.attention.qkv.weight"
  tensor::Shape global_shape;
  std::vector<int64_t> begin, extent;
  int64_t first = 0;
  tensor::Tensor values;      // where they are to be written from beyond memory: shape and type alone, and
  tensor::ReadRun read = {};  // how to read them, on the thread that saves
};

struct Snapshot {
  int64_t step = 0;
  std::vector<Piece> model, optimizer;
  Json state;  // step counters, random seeds, data cursor, loss scale, the run file: whatever the trainer resumes from.
               // Of several ranks, rank 0's is written.
};

struct SaveOptions {
  int keep = 0;  // complete checkpoints to keep, newest first; 0: all
  int64_t shard_bytes = int64_t{4} << 30;
  // Writes files of the caller's own (a tokenizer) into the folder it is given; they are listed in the manifest and lie
  // beside it. Called on rank 0.
  std::function<void(const std::string& folder)> add_files;

  // Who writes. With more than one rank, every one calls `save` for the same step with pieces that no other has.
  int rank = 0, world = 1;
  // Names this attempt: the same on all ranks, and never the same twice in one folder, so that nobody takes what a
  // crashed attempt left for his own. Letters, digits, '.', '_' and '-'; one rank needs none.
  std::string token = {};
  Duration timeout = std::chrono::minutes(10);  // for the other ranks, once this rank's own files are written
  // For rank 0 to begin, where that is less: on a disk that takes nothing at all it cannot even say that it failed.
  Duration begin_timeout = std::chrono::seconds(30);
  const std::atomic<bool>* leaving = nullptr;  // once true, the others get a few seconds more: the caller has to go
  std::function<void()> check_folder = {};  // throws where `dir` is not the caller's any more: nothing is then changed
  std::function<bool()> peer_lost = {};     // true: a rank is gone, and waits for other ranks end
};

// Writes <dir>/step-N and returns its path. IoError names the path and leaves no half checkpoint under the final name.
// Of several ranks all return, or all throw with the same message: that of the first failure. A rank that did not come
// in time is named.
std::string save(const std::string& dir, const Snapshot& snapshot, const SaveOptions& options = {});

// The newest complete checkpoint under `dir`; incomplete and damaged ones (manifest missing or unreadable, a file of
// the wrong size) are passed over and named in `skipped`.
std::optional<std::string> newest_complete(const std::string& dir, std::vector<std::string>* skipped = nullptr);

class Checkpoint {
 public:
  virtual ~Checkpoint() = default;
  virtual int64_t step() const = 0;
  virtual const Json& state() const = 0;
  virtual std::vector<std::string> names() const = 0;
  virtual bool has(std::string_view name) const = 0;
  virtual tensor::Shape shape_of(std::string_view name) const = 0;
  virtual DType dtype_of(std::string_view name) const = 0;
  // Fills `piece.values` (its dtype may differ: values are converted) from the named tensor. IoError when the name is
  // missing, the shape differs, an element is in no piece, or a checksum fails.
  virtual void read(const Piece& piece) const = 0;
};

// Verifies every file against the manifest; IoError names a damaged one, and the tensors in it that are not as written.
std::unique_ptr<Checkpoint> open_checkpoint(const std::string& path);

// The newest checkpoint under `dir` that is what was written, to the bit. Incomplete and damaged ones are passed over,
// each named in `skipped` with what is wrong. Nothing where there is none; IoError where there are and all are damaged.
struct FoundCheckpoint {
  std::string path;
  std::unique_ptr<Checkpoint> checkpoint;
};
std::optional<FoundCheckpoint> newest_sound(const std::string& dir, std::vector<std::string>* skipped = nullptr);

}  // namespace esp::ckpt
