// Proves that a set of schedules, one per rank, computes its collective for every element and for every timing. Tests
// prove the built-in algorithms; schedule files must pass before they run.
//
// Properties proven:
//   · form: regions lie inside their buffers, the input is only read, rounds never decrease;
//   · messages: sends and receives of each pair match in order, size and round, and none is left over;
//   · no deadlock: run strictly in order with buffered sends, every rank finishes. Within one round no rank
//     receives into memory it sends, sends memory it receives, or changes memory it still sends, so all messages
//     of a round may be in flight together and rendezvous transports (a sender waits for its receiver) are safe;
//   · result: each output element contains each rank's contribution exactly once (for collectives
//     that do not reduce: the one element it must hold), and no unwritten memory is read.
//
// Buffer::input always means the values at the start of the call. For in-place calls the executor preserves the inputs
// that are still needed, so one proof covers both.
#pragma once

#include <span>
#include <string>

#include "esp/comm/schedule.h"

namespace esp::comm {

// Returns the first fault found, with rank, action and elements; empty if there is none. specs[r].rank must be r; the
// specs must be equal in all other fields except the counts of all_to_all_v.
std::string find_fault(std::span<const CollectiveSpec> specs, std::span<const Schedule> schedules);
// Throws the first fault as a UsageError.
void validate(std::span<const CollectiveSpec> specs, std::span<const Schedule> schedules);

// The spec of every rank, and the schedules an algorithm builds for them.
std::vector<CollectiveSpec> specs_for_all_ranks(const CollectiveSpec& spec);
std::vector<Schedule> build_all(const AlgorithmRow& row, std::span<const CollectiveSpec> specs);

// Number of elements of the input and the output on this rank.
struct BufferSizes {
  size_t input = 0, output = 0;
};
BufferSizes sizes_of(const CollectiveSpec& spec);

}  // namespace esp::comm
