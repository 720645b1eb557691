// Experts divided over ranks (expert parallelism, GShard 2020): every rank routes its own tokens, rows travel to the
// ranks that hold their experts and what these say travels back.
//
// Of E experts rank r of the group holds the share nn::Share{r, size}.of(E). Counts go first, an all-to-all of a few
// integers, then rows: an irregular all-to-all each way, and two more for the gradients. Arrived rows are put in the
// order (expert, sender, token), which is that of one rank routing the senders' tokens laid end to end: outputs have
// the same bits.
#pragma once

#include <memory>

#include "esp/comm/communicator.h"
#include "esp/nn/moe/exchange.h"
#include "esp/obs/spans.h"

namespace esp::parallel {

// Null where there is nobody else. `experts`: those who divide the experts; `context` and `rows`: those who divide the
// tokens of a sequence, and the rows of a stream (sequence parallel).
struct ExpertAxes {
  comm::Communicator *experts = nullptr, *context = nullptr, *rows = nullptr;
};

class ExpertExchange : public nn::ExpertExchange {
 public:
  virtual double exposed_ms() const = 0;  // waited since forget_times
  virtual void forget_times() = 0;
};
std::unique_ptr<ExpertExchange> make_expert_exchange(const ExpertAxes& axes, Duration timeout,
                                                     obs::TraceRow* trace = nullptr);

}  // namespace esp::parallel
