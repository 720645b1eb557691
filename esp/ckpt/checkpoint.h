// A checkpoint: global tensors by name, stored as slices that any number of ranks wrote, and a manifest with the
// location of every slice. A checkpoint can be read under any parallel layout.
//
//   step-N/  model-00001-of-00002.safetensors …   slices of parameters, readable by any safetensors tool
//            optimizer-00001-of-00002.safetensors …
//            manifest.json                          written last: a folder without it is incomplete
//
// Everything is written into a folder with a temporary name, synced, and renamed. The manifest has a checksum and the
// size of every file, and a reader verifies what it reads. Each rank calls from one thread. Ranks share only the
// folder, on a file system visible to all of them (coordination: save_attempt.h).
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

// One slice of a global tensor: the part that this rank holds. A box of the tensor starts at index `begin` and has the
// shape `extent`; an empty `begin` means the whole tensor. The slice is the contiguous range [first, first +
// values.count()) of the box's elements in row-major order.
struct TensorSlice {
  // full name, for example "blocks.3.attention.qkv.weight" or "optimizer.m.blocks.3.attention.qkv.weight"
  std::string name;
  tensor::Shape global_shape;
  std::vector<int64_t> begin, extent;
  int64_t first = 0;
  tensor::Tensor values;            // an offloaded tensor (`read` is set) has a shape and a type here, but no memory
  tensor::OffloadReader read = {};  // reads the values of an offloaded tensor; called on the thread that saves
};

struct Snapshot {
  int64_t step = 0;
  std::vector<TensorSlice> model, optimizer;
  // Everything else that the trainer resumes from: step counters, random seeds, data cursor, loss scale, the run file.
  // With several ranks, only rank 0's state is written.
  Json state;
};

struct SaveOptions {
  int keep = 0;  // number of complete checkpoints to keep (the newest); 0: keep all
  int64_t shard_bytes = int64_t{4} << 30;
  // Writes extra files (for example a tokenizer) into the given folder. They are listed in the manifest and stored next
  // to it. Called on rank 0.
  std::function<void(const std::string& folder)> add_files;

  // The writing rank. With several ranks, every rank calls `save` for the same step, with disjoint slices.
  int rank = 0, world = 1;
  // Identifies this attempt to save. All ranks use the same token, and no later attempt in the folder uses it again. A
  // rank therefore never mistakes files of a crashed attempt for files of this attempt. Letters, digits, '.', '_' and
  // '-'. Not needed for one rank.
  std::string token = {};
  Duration timeout = std::chrono::minutes(10);  // how long a rank waits for other ranks after it has written its files
  // How long a rank waits for rank 0 to create the folder; `timeout` applies if it is shorter. On a full disk rank 0
  // cannot report its failure, so this wait is short.
  Duration begin_timeout = std::chrono::seconds(30);
  // Becomes true when the process must stop. Then this rank waits only a few more seconds for other ranks.
  const std::atomic<bool>* stopping = nullptr;
  // throws if `dir` no longer belongs to the caller; called before files are changed
  std::function<void()> check_folder = {};
  std::function<bool()> peer_lost = {};  // returns true after a rank failure; then `save` stops waiting and throws
};

// Writes <dir>/step-N and returns its path. On failure it throws an IoError with the path and leaves no partial
// checkpoint under the final name. Either `save` returns on all ranks, or it throws the message of the first failure on
// all ranks. The message names a rank that did not write in time.
std::string save(const std::string& dir, const Snapshot& snapshot, const SaveOptions& options = {});

// The newest complete checkpoint under `dir`. A checkpoint is skipped and listed in `skipped` if its manifest is
// missing or unreadable, or if a file has the wrong size.
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
  // Fills `slice.values` from the named tensor, converted to the dtype of `slice.values`. Throws IoError if the
  // checkpoint has no such tensor, the shape differs, an element is missing from all stored slices, or a checksum
  // fails.
  virtual void read(const TensorSlice& slice) const = 0;
};

// Opens the checkpoint after it has verified every file against the manifest. Throws an IoError that names a damaged
// file and its damaged tensors.
std::unique_ptr<Checkpoint> open_checkpoint(const std::string& path);

// The newest checkpoint under `dir` whose files all match their checksums. Incomplete and damaged checkpoints are
// skipped and listed in `skipped` with the reason. Returns an empty value if `dir` has no checkpoint; throws IoError if
// all its checkpoints are damaged.
struct OpenedCheckpoint {
  std::string path;
  std::unique_ptr<Checkpoint> checkpoint;
};
std::optional<OpenedCheckpoint> newest_valid(const std::string& dir, std::vector<std::string>* skipped = nullptr);

}  // namespace esp::ckpt
