// Exchange thread: runs compressed exchanges during backward, on a separate thread and communicator, in submission
// order.
//
// The exchange thread blocks during communication and uses no thread pool. The caller continues, and waits when it
// needs the result. Every rank must start the same exchanges in the same order. With a single rank an exchange runs at
// once in the caller. Destruction while an exchange is in flight (after an error in a step) aborts the group.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "esp/base/work.h"
#include "esp/comm/communicator.h"
#include "esp/sync/tier/serial_executor.h"
#include "esp/tensor/tensor.h"

namespace esp::sync {

class ExchangeThread {
 public:
  // collective; `ranks` is null for a single rank
  ExchangeThread(comm::Communicator* ranks, const tensor::Context& context);
  ~ExchangeThread();
  ExchangeThread(const ExchangeThread&) = delete;
  ExchangeThread& operator=(const ExchangeThread&) = delete;

  comm::Communicator* ranks() const { return ranks_.get(); }   // communicator of the exchanges; null for a single rank
  const tensor::Context& context() const { return context_; }  // context of the exchanges
  Work start(std::function<void()> exchange);

 private:
  const std::unique_ptr<comm::Communicator> ranks_;
  const tensor::Context context_;
  std::vector<Work> started_;                 // exchanges that may be in flight
  std::unique_ptr<SerialExecutor> executor_;  // last member: ends before the objects it uses
};

}  // namespace esp::sync
