#include "esp/base/work.h"

#include "esp/base/check.h"
#include "esp/base/error.h"

namespace esp {

Work Work::pending() {
  Work work;
  work.state_ = std::make_shared<State>();
  return work;
}

Work Work::failed(std::exception_ptr error) {
  Work work = pending();
  work.fail(std::move(error));
  return work;
}

bool Work::done() const {
  if (!state_) return true;
  std::lock_guard lock(state_->mutex);
  return state_->done;
}

void Work::wait(Deadline deadline) const {
  if (!state_) return;
  std::unique_lock lock(state_->mutex);
  if (!state_->changed.wait_until(lock, deadline.when(), [&] { return state_->done; }))
    throw CommError(CommError::Kind::timeout, -1, "timeout: the operation did not finish before its deadline");
  if (state_->error) std::rethrow_exception(state_->error);
}

std::exception_ptr Work::error() const {
  if (!state_) return nullptr;
  std::lock_guard lock(state_->mutex);
  return state_->error;
}

void Work::complete() const {
  fail(nullptr);
}

void Work::fail(std::exception_ptr error) const {
  ESP_CHECK(state_ != nullptr, "an empty Work cannot be completed");
  {
    std::lock_guard lock(state_->mutex);
    ESP_CHECK(!state_->done, "the Work has already completed");
    state_->done = true;
    state_->error = std::move(error);
  }
  state_->changed.notify_all();
}

}  // namespace esp
