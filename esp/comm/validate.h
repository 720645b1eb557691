// Proof that a set of schedules, one per rank, does what its collective says, for every element and in every timing.
// Built-in algorithms are held to it by tests; schedules that users bring must pass before they run.
//
// What is shown:
//  · form: regions lie inside their buffers, the input is only read, rounds do not go backwards;
//  · messages: sends and receives of each pair match in order, size and round, none is left over;
//  · no deadlock: run strictly in order with sends buffered, every rank reaches its end. Moreover, within one round no
//    rank receives into what it sends, sends what it receives, or changes what it still sends, so all messages of a
//    round can be under way at once and transports that make a sender wait for its receiver are safe too;
//  · the result, in symbols: each element of each output holds each rank's contribution exactly once (for the
//  collectives
//    that do not reduce: the one element it must hold), and nothing unwritten is read.
//
// Buffer::input always means the values the call was made with. In place the executor keeps what is still needed, so
// one proof serves both.
#pragma once

#include <span>
#include <string>

#include "esp/comm/schedule.h"

namespace esp::comm {

// The first fault found, in words with rank, action and elements; empty when there is none. problems[r].rank is r, and
// all agree on the rest but for the counts of all_to_all_v.
std::string find_fault(std::span<const Problem> problems, std::span<const Schedule> schedules);
// Throws it as a UsageError.
void validate(std::span<const Problem> problems, std::span<const Schedule> schedules);

// The problem as each rank sees it, and what a row makes of it.
std::vector<Problem> for_every_rank(const Problem& problem);
std::vector<Schedule> build_all(const AlgorithmRow& row, std::span<const Problem> problems);

// Elements of the input and the output on this rank.
struct Sizes {
  size_t input = 0, output = 0;
};
Sizes sizes_of(const Problem& problem);

}  // namespace esp::comm
