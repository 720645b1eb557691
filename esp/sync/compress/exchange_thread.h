// Exchange thread: runs compressed exchanges beside backward, on a separate thread and communicator, in submission
// order.
//
// An exchange blocks this thread during communication and computes with one thread; the caller continues and waits when
// it needs the result. Every rank starts the same exchanges in the same order. With one rank an exchange runs at once
// in the caller. Destruction while an exchange is in flight (an error in mid-step) aborts the group.
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
  ExchangeThread(comm::Communicator* ranks, const tensor::Context& context);  // collective; null: one rank
  ~ExchangeThread();
  ExchangeThread(const ExchangeThread&) = delete;
  ExchangeThread& operator=(const ExchangeThread&) = delete;

  comm::Communicator* ranks() const { return ranks_.get(); }   // of the exchanges; null: one rank
  const tensor::Context& context() const { return context_; }  // of the exchanges
  Work start(std::function<void()> exchange);

 private:
  const std::unique_ptr<comm::Communicator> ranks_;
  const tensor::Context context_;
  std::vector<Work> started_;                 // possibly in flight
  std::unique_ptr<SerialExecutor> executor_;  // last member: ends before the objects it uses
};

}  // namespace esp::sync
