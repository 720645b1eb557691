// Exchanges that run beside backward: on a thread and over a communicator of their own, in the order they were started.
//
// An exchange blocks its thread while codes travel and computes with one thread; whoever started it goes on and waits
// when the result is wanted. Every rank starts the same exchanges in the same order. A rank that is alone does them at
// once. Who goes while something is under way (an error in mid-step) ends the group.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "esp/base/work.h"
#include "esp/comm/communicator.h"
#include "esp/sync/tier/lane.h"
#include "esp/tensor/tensor.h"

namespace esp::sync {

class ExchangeLane {
 public:
  ExchangeLane(comm::Communicator* ranks, const tensor::Context& context);  // collective; null: alone
  ~ExchangeLane();
  ExchangeLane(const ExchangeLane&) = delete;
  ExchangeLane& operator=(const ExchangeLane&) = delete;

  comm::Communicator* ranks() const { return ranks_.get(); }   // what exchanges talk over; null: alone
  const tensor::Context& context() const { return context_; }  // what they compute with
  Work start(std::function<void()> exchange);

 private:
  const std::unique_ptr<comm::Communicator> ranks_;
  const tensor::Context context_;
  std::vector<Work> started_;   // those that may be under way
  std::unique_ptr<Lane> lane_;  // last: it ends before what it works with
};

}  // namespace esp::sync
