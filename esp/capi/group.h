// PendingGroup: the calls made between esp_group_begin and esp_group_end. Each thread has one, because the C interface
// has no handle for a group.
#pragma once

#include <functional>
#include <vector>

#include "esp/capi/handles.h"
#include "esp/comm/call.h"

namespace esp::capi {

class PendingGroup {
 public:
  static PendingGroup& this_thread();

  bool open() const { return depth_ > 0; }
  void begin() { ++depth_; }
  // Closes one level of nesting. Closing the outermost level runs the queued calls.
  void end();

  // Queues a collective on one communicator; `work` may be null.
  void add(esp_comm* comm, const comm::Call& call, esp_work** work);
  // Queues a job that waits for other ranks. These ranks may have jobs in the same group, so each job runs on a
  // separate thread.
  void add(std::function<void()> job) { jobs_.push_back(std::move(job)); }
  // Queues a job that runs after all calls of the group: the destruction of a communicator that they use.
  void add_last(std::function<void()> job) { last_.push_back(std::move(job)); }

 private:
  struct QueuedCall {
    esp_comm* comm;
    comm::Call call;
    esp_work** work;
  };
  void run_jobs(std::vector<std::function<void()>> jobs);
  void run_calls(const std::vector<QueuedCall>& calls);

  int depth_ = 0;
  std::vector<std::function<void()>> jobs_, last_;
  std::vector<QueuedCall> calls_;
};

}  // namespace esp::capi
