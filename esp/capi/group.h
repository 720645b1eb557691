// The group a thread has open: what esp_group_end will do. One per thread, as the C interface has no handle for it.
#pragma once

#include <functional>
#include <vector>

#include "esp/capi/handles.h"
#include "esp/comm/call.h"

namespace esp::capi {

class OpenGroup {
 public:
  static OpenGroup& of_this_thread();

  bool open() const { return depth_ > 0; }
  void begin() { ++depth_; }
  // The outermost end does the work.
  void end();

  // A collective on one communicator; `work` may be null.
  void add(esp_comm* comm, const comm::Call& call, esp_work** work);
  // Something that waits for other ranks, which may be in this very group: gets a thread of its own.
  void add(std::function<void()> job) { jobs_.push_back(std::move(job)); }
  // The same when the calls are done: what ends a communicator they use.
  void add_last(std::function<void()> job) { last_.push_back(std::move(job)); }

 private:
  struct Asked {
    esp_comm* comm;
    comm::Call call;
    esp_work** work;
  };
  void run_jobs(std::vector<std::function<void()>> jobs);
  void run_calls(const std::vector<Asked>& calls);

  int depth_ = 0;
  std::vector<std::function<void()>> jobs_, last_;
  std::vector<Asked> calls_;
};

}  // namespace esp::capi
