#include "esp/sync/compress/exchange_lane.h"

namespace esp::sync {

ExchangeLane::ExchangeLane(comm::Communicator* ranks, const tensor::Context& context)
    : ranks_(ranks && ranks->size() > 1 ? ranks->split(0, ranks->rank()) : nullptr),
      context_{{context.stream.device, nullptr, nullptr}, context.pool} {
  if (ranks_) lane_ = std::make_unique<Lane>("esp-compress");
}

ExchangeLane::~ExchangeLane() {
  std::erase_if(started_, [](const Work& work) { return work.done(); });
  if (!started_.empty()) ranks_->abort("this rank left in the middle of a step");
}

Work ExchangeLane::start(std::function<void()> exchange) {
  if (!lane_) {
    exchange();
    return {};
  }
  std::erase_if(started_, [](const Work& work) { return work.done(); });
  const Work work = started_.emplace_back(Work::pending());
  lane_->post([work, exchange = std::move(exchange)] {
    try {
      exchange();
      work.complete();
    } catch (...) {
      work.fail(std::current_exception());
    }
  });
  return work;
}

}  // namespace esp::sync
