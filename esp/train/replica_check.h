// ReplicaCheck: detects replicas that have silently become different. It compares fingerprints of state that must be
// equal on all replicas, and finds the deviating rank by majority. Two replicas have no majority, so both are named.
//
// The check compares the parameters if every replica has all of them (all-reduce, ZeRO 1 and 2), and the optimizer
// state if every replica has all of it (all-reduce, neither offloaded nor compressed). State that exists only once
// cannot be compared. Divergent replicas are not compared, because they differ by design.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "esp/train/engine.h"

namespace esp::train {

struct ReplicaMismatch {
  std::vector<int> ranks;  // the deviating ranks; without a majority, all ranks
  bool majority = false;
  size_t entry = 0;  // index of the first entry that differs
};
// Finds the first difference. `rows` has one row per replica: its rank, then `num_entries` fingerprints.
std::optional<ReplicaMismatch> find_mismatch(std::span<const uint64_t> rows, size_t num_entries);

class ReplicaCheck {
 public:
  ReplicaCheck(Engine& engine, const RunConfig& config);

  bool applies() const { return !held_.empty(); }
  // Collective over all replicas. If they differ, throws CommError(corrupt) with the same message on all ranks. It
  // names the deviating ranks and the state that differs.
  void compare(int64_t step);
  // For tests: flips one bit of the compared state on this rank. `number` is the index of the bit, modulo the number of
  // bits.
  void flip_bit(uint64_t number);
  uint64_t bytes() const;  // number of bytes that one comparison reads

 private:
  struct Entry {
    std::string name;  // for example «parameters of blocks.1» or «m of head»
    tensor::Tensor values;
  };
  struct ComparedGroup {
    comm::Communicator* replicas;
    std::vector<Entry> entries;
    std::vector<uint64_t> own, all;
  };
  uint64_t fingerprint_of(const tensor::Tensor& values);
  [[noreturn]] void throw_corrupt(const ComparedGroup& held, const ReplicaMismatch& difference, int64_t step) const;

  Engine& engine_;
  std::vector<ComparedGroup> held_;
  std::vector<std::byte> staging_;  // host buffer to which device memory is copied
};

}  // namespace esp::train
