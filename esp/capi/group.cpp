#include "esp/capi/group.h"

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "esp/base/error.h"
#include "esp/comm/arguments.h"

namespace esp::capi {

PendingGroup& PendingGroup::this_thread() {
  thread_local PendingGroup group;
  return group;
}

void PendingGroup::add(esp_comm* comm, const comm::Call& call, esp_work** work) {
  if (work) *work = nullptr;
  calls_.push_back({comm, call, work});
}

void PendingGroup::end() {
  if (depth_ == 0) throw UsageError("esp_group_end: no group is open. Call esp_group_begin first");
  if (--depth_ > 0) return;
  auto jobs = std::exchange(jobs_, {}), last = std::exchange(last_, {});
  auto calls = std::exchange(calls_, {});
  std::exception_ptr failed;
  try {
    run_jobs(std::move(jobs));
    run_calls(calls);
  } catch (...) {
    failed = std::current_exception();
  }
  run_jobs(std::move(last));
  if (failed) std::rethrow_exception(failed);
}

void PendingGroup::run_jobs(std::vector<std::function<void()>> jobs) {
  std::vector<std::exception_ptr> errors(jobs.size());
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < jobs.size(); ++i)
      threads.emplace_back([&, i] {
        try {
          jobs[i]();
        } catch (...) {
          errors[i] = std::current_exception();
        }
      });
  }
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
}

void PendingGroup::run_calls(const std::vector<QueuedCall>& queued) {
  std::vector<esp_comm*> comms;
  for (const QueuedCall& one : queued)
    if (std::find(comms.begin(), comms.end(), one.comm) == comms.end()) comms.push_back(one.comm);
  // All calls are checked before any is started. If one were invalid after others had started, their ranks would wait
  // for each other.
  for (const QueuedCall& one : queued)
    comm::check_arguments(one.call, one.comm->communicator->rank(), one.comm->communicator->size());
  // The bool is true if the caller keeps a work for every call of this communicator; esp_group_end then does not wait.
  std::vector<std::pair<Work, bool>> started;
  std::exception_ptr first;
  for (esp_comm* comm : comms) {
    std::vector<comm::Call> calls;
    for (const QueuedCall& one : queued)
      if (one.comm == comm) calls.push_back(one.call);
    try {
      Work work = comm->communicator->start_group(calls);
      bool all_kept = true;
      for (const QueuedCall& one : queued) {
        if (one.comm != comm) continue;
        if (one.work) *one.work = new esp_work{work};
        all_kept &= one.work != nullptr;
      }
      started.emplace_back(work, all_kept);
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  for (auto& [work, kept] : started) {
    if (kept) continue;
    try {
      // no limit in practice: each call has its own deadline
      work.wait(Deadline::after(std::chrono::hours(24 * 365)));
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace esp::capi
