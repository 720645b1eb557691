// Expert parallelism (GShard 2020): experts are sharded over ranks. Every rank routes its own tokens; rows travel to
// the ranks of their experts and the outputs travel back.
//
// Of E experts rank r of the group holds the shard nn::Shard{r, size}.of(E). An all-to-all of counts goes first, then
// an irregular all-to-all of rows each way, and two more for the gradients. Received rows are sorted by (expert,
// sender, token), the order of a single rank that routes the senders' tokens concatenated, so the outputs are
// bit-identical to it.
#pragma once

#include <memory>

#include "esp/comm/communicator.h"
#include "esp/nn/moe/token_dispatcher.h"
#include "esp/obs/spans.h"

namespace esp::parallel {

// Null for an axis of size one. `experts`: the ranks that shard the experts. `context` and `rows`: the ranks that shard
// the tokens of a sequence, and the rows of a stream (sequence parallel).
struct ExpertAxes {
  comm::Communicator *experts = nullptr, *context = nullptr, *rows = nullptr;
};

class ExpertParallelDispatcher : public nn::TokenDispatcher {
 public:
  virtual double exposed_ms() const = 0;  // waited since reset_times
  virtual void reset_times() = 0;
};
std::unique_ptr<ExpertParallelDispatcher> make_token_dispatcher(const ExpertAxes& axes, Duration timeout,
                                                                obs::TraceRow* trace = nullptr);

}  // namespace esp::parallel
