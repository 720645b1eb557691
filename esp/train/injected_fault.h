// Faults on demand, for tests of whoever must notice them: ESPALIER_FAULT=KIND:RANK:STEP[:WHAT], always compiled in, so
// that what is tested is what runs. It says so aloud at the start of the run; a text it does not understand is refused.
//
//   loop      the rank computes for ever at the beginning of the step, and answers signals as usual
//   flip      after the step bit WHAT of the rank's parameters and optimizer state, numbered through, is turned over
//   product   in the step one product of matrices comes out wrong
//   evaluate  like loop, at the beginning of the evaluation after that step
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace esp::train {

struct InjectedFault {
  enum class Kind { none, loop, flip, product, evaluate } kind = Kind::none;
  int rank = 0;
  int64_t step = 0;  // from 1, as they are told
  uint64_t what = 0;

  bool is(Kind asked, int at_rank, int64_t at_step) const {
    return kind == asked && rank == at_rank && at_step == step;
  }
};

// Empty: none. UsageError names the kinds.
InjectedFault parse_fault(std::string_view text);
std::string describe(const InjectedFault& fault);

// Until the process is ended.
[[noreturn]] void loop_forever();

}  // namespace esp::train
