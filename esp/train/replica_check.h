// Whether copies of the model are still the same: fingerprints of what every copy should hold alike, compared among the
// copies, and the copy that differs named by majority. Between two nobody can say which is wrong: both are named.
//
// What is compared: the parameters where every copy has all of them (all-reduce, ZeRO 1 and 2), and the optimizer's
// state where every copy has all of that (all-reduce, neither offloaded nor compressed). What is held once cannot be
// compared; copies that go their own ways are meant to differ.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "esp/train/engine.h"

namespace esp::train {

struct Difference {
  std::vector<int> ranks;  // to blame; all that disagree where there is no majority
  bool majority = false;
  size_t entry = 0;  // the first that differs
};
// `rows` are those of the copies, one after the other: its rank, then a number for each of `num_entries`.
std::optional<Difference> vote(std::span<const uint64_t> rows, size_t num_entries);

class ReplicaCheck {
 public:
  ReplicaCheck(Engine& engine, const RunConfig& config);

  bool applies() const { return !held_.empty(); }
  // Collective among all copies. CommError(corrupt) names who differs and in what; the same on all that compare.
  void compare(int64_t step);
  // For tests: turns bit `number` of all that is compared here, counted from 0 and around.
  void flip(uint64_t number);
  uint64_t bytes() const;  // that one comparison reads

 private:
  struct Entry {
    std::string name;  // «parameters of blocks.1», «m of head»
    tensor::Tensor values;
  };
  struct Held {
    comm::Communicator* copies;
    std::vector<Entry> entries;
    std::vector<uint64_t> own, all;
  };
  uint64_t fingerprint_of(const tensor::Tensor& values);
  [[noreturn]] void blame(const Held& held, const Difference& difference, int64_t step) const;

  Engine& engine_;
  std::vector<Held> held_;
  std::vector<std::byte> staging_;  // of values the host cannot read
};

}  // namespace esp::train
