#include "esp/sync/compress/exchange_thread.h"

namespace esp::sync {

ExchangeThread::ExchangeThread(comm::Communicator* ranks, const tensor::Context& context)
    : ranks_(ranks && ranks->size() > 1 ? ranks->split(0, ranks->rank()) : nullptr),
      context_{{context.stream.device, nullptr, nullptr}, context.pool} {
  if (ranks_) executor_ = std::make_unique<SerialExecutor>("esp-compress");
}

ExchangeThread::~ExchangeThread() {
  std::erase_if(started_, [](const Work& work) { return work.done(); });
  if (!started_.empty()) ranks_->abort("this rank left in the middle of a step");
}

Work ExchangeThread::start(std::function<void()> exchange) {
  if (!executor_) {
    exchange();
    return {};
  }
  std::erase_if(started_, [](const Work& work) { return work.done(); });
  const Work work = started_.emplace_back(Work::pending());
  executor_->post([work, exchange = std::move(exchange)] {
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
