// Expert parallelism (GShard 2020): experts are sharded over ranks. Every rank routes its local tokens. One all-to-all
// sends the rows to the ranks of their experts (dispatch), another returns the outputs (combine).
//
// Rank r of the group holds the experts nn::Shard{r, size}.of(E) of E. First an all-to-all exchanges row counts. Then
// irregular all-to-alls exchange rows: two in forward (dispatch and combine) and two in backward. Received rows are
// sorted by (expert, sender, token). A single rank that has the tokens of all senders processes them in the same order,
// so the outputs are bit-identical.
#pragma once

#include <memory>

#include "esp/comm/communicator.h"
#include "esp/nn/moe/token_dispatcher.h"
#include "esp/obs/spans.h"

namespace esp::parallel {

// Communicators of the axes; null for an axis of size one. `experts`: the ranks that shard the experts. `context`: the
// ranks that shard the tokens of a sequence. `rows`: the ranks that shard the rows of a stream (sequence parallel).
struct ExpertAxes {
  comm::Communicator *experts = nullptr, *context = nullptr, *rows = nullptr;
};

class ExpertParallelDispatcher : public nn::TokenDispatcher {
 public:
  virtual double exposed_ms() const = 0;  // time spent waiting since reset_times
  virtual void reset_times() = 0;
};
std::unique_ptr<ExpertParallelDispatcher> make_token_dispatcher(const ExpertAxes& axes, Duration timeout,
                                                                obs::TraceRow* trace = nullptr);

}  // namespace esp::parallel
