// Fault injection, to test the failure detectors: ESPALIER_FAULT=KIND:RANK:STEP[:WHAT]. It is always compiled in, so
// that tests can run the product binary. A run with an injected fault logs a warning at its start. An invalid value is
// an error.
//
//   loop      the rank loops forever at the start of the step and handles signals as usual
//   flip      after the step, one bit in the rank's parameters and optimizer state is flipped; WHAT is the index of the
//             bit in all of this memory
//   product   one GEMM in the step gets a wrong result
//   evaluate  like loop, but at the start of the evaluation after that step
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace esp::train {

struct InjectedFault {
  enum class Kind { none, loop, flip, product, evaluate } kind = Kind::none;
  int rank = 0;
  int64_t step = 0;  // counts from 1, as in the log
  uint64_t what = 0;

  bool is(Kind asked, int at_rank, int64_t at_step) const {
    return kind == asked && rank == at_rank && at_step == step;
  }
};

// An empty text means no fault. UsageError lists the possible kinds.
InjectedFault parse_fault(std::string_view text);
std::string describe(const InjectedFault& fault);

// Loops until the process is killed.
[[noreturn]] void loop_forever();

}  // namespace esp::train
