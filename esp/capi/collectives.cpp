#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/capi/group.h"
#include "esp/capi/handles.h"

namespace esp::capi {
namespace {

struct LastError {
  std::string text;
  int rank = -1;
};

LastError& last_error() {
  thread_local LastError error;
  return error;
}

esp_result remember(esp_result result, const char* text, int rank = -1) noexcept {
  try {
    last_error() = {text, rank};
  } catch (...) {
    last_error().rank = rank;  // there is no memory for the message, so only the rank is stored
  }
  return result;
}

DType to_dtype(esp_dtype dtype) {
  if (dtype < ESP_F64 || dtype > ESP_U8)
    throw UsageError(fmt::format("dtype: got {}; expected an esp_dtype, 0 to {}", dtype, static_cast<int>(ESP_U8)));
  return static_cast<DType>(dtype);
}

comm::ReduceOp to_reduce(esp_op op) {
  if (op < ESP_SUM || op > ESP_AVG)
    throw UsageError(fmt::format("op: got {}; expected an esp_op, 0 to {}", op, static_cast<int>(ESP_AVG)));
  return static_cast<comm::ReduceOp>(op);
}

comm::Call make_call(comm::Op op, const void* in, void* out, size_t count, esp_dtype dtype) {
  comm::Call call;
  call.op = op;
  call.in = in;
  call.out = out;
  call.count = count;
  call.dtype = to_dtype(dtype);
  return call;
}

size_t times_size(const esp_comm* comm, size_t count) {
  if (!comm) return 0;
  auto size = static_cast<size_t>(comm->communicator->size());
  if (count > std::numeric_limits<size_t>::max() / size)
    throw UsageError(fmt::format("count: got {} per rank; the total over {} ranks overflows size_t", count, size));
  return count * size;
}

// While a group is open, queues the call. Otherwise runs the call (if `work` is null) or starts it.
void submit(esp_comm* comm, const comm::Call& call, esp_work** work) {
  if (!comm) throw UsageError("comm: must not be NULL");
  PendingGroup& group = PendingGroup::this_thread();
  if (group.open()) return group.add(comm, call, work);
  if (!work) return comm->communicator->run(call);
  *work = nullptr;
  *work = new esp_work{comm->communicator->start(call)};
}

}  // namespace

esp_result store_current_exception() noexcept {
  try {
    throw;
  } catch (const CommError& error) {
    return remember(ESP_ERROR_COMM, error.what(), error.peer());
  } catch (const Error& error) {
    switch (error.exit_code()) {
      case ExitCode::usage:
        return remember(ESP_ERROR_USAGE, error.what());
      case ExitCode::files:
        return remember(ESP_ERROR_FILES, error.what());
      default:
        return remember(ESP_ERROR_INTERNAL, error.what());
    }
  } catch (const std::exception& error) {
    return remember(ESP_ERROR_INTERNAL, error.what());
  } catch (...) {
    return remember(ESP_ERROR_INTERNAL, "unknown exception, not derived from std::exception");
  }
}

}  // namespace esp::capi

using namespace esp;
using namespace esp::capi;
using comm::Call;
using comm::Op;

int esp_api_version(void) {
  return ESP_API_VERSION;
}
const char* esp_version(void) {
  return ESP_VERSION_TEXT;
}
const char* esp_last_error(void) {
  return last_error().text.c_str();
}
int esp_last_error_rank(void) {
  return last_error().rank;
}
int esp_rank(const esp_comm* comm) {
  return comm ? comm->communicator->rank() : -1;
}
int esp_size(const esp_comm* comm) {
  return comm ? comm->communicator->size() : -1;
}

esp_result esp_broadcast(esp_comm* comm, void* data, size_t count, esp_dtype dtype, int root, esp_work** work) {
  return run_guarded([&] {
    Call call = make_call(Op::broadcast, data, data, count, dtype);
    call.root = root;
    submit(comm, call, work);
  });
}

esp_result esp_reduce(esp_comm* comm, const void* in, void* out, size_t count, esp_dtype dtype, esp_op op, int root,
                      esp_work** work) {
  return run_guarded([&] {
    Call call = make_call(Op::reduce, in, out, count, dtype);
    call.reduce = to_reduce(op);
    call.root = root;
    submit(comm, call, work);
  });
}

esp_result esp_all_reduce(esp_comm* comm, const void* in, void* out, size_t count, esp_dtype dtype, esp_op op,
                          esp_work** work) {
  return run_guarded([&] {
    Call call = make_call(Op::all_reduce, in, out, count, dtype);
    call.reduce = to_reduce(op);
    submit(comm, call, work);
  });
}

esp_result esp_reduce_scatter(esp_comm* comm, const void* in, void* out, size_t recv_count, esp_dtype dtype, esp_op op,
                              esp_work** work) {
  return run_guarded([&] {
    Call call = make_call(Op::reduce_scatter, in, out, times_size(comm, recv_count), dtype);
    call.reduce = to_reduce(op);
    submit(comm, call, work);
  });
}

esp_result esp_all_gather(esp_comm* comm, const void* in, void* out, size_t send_count, esp_dtype dtype,
                          esp_work** work) {
  return run_guarded(
      [&] { submit(comm, make_call(Op::all_gather, in, out, times_size(comm, send_count), dtype), work); });
}

esp_result esp_gather(esp_comm* comm, const void* in, void* out, size_t send_count, esp_dtype dtype, int root,
                      esp_work** work) {
  return run_guarded([&] {
    Call call = make_call(Op::gather, in, out, times_size(comm, send_count), dtype);
    call.root = root;
    submit(comm, call, work);
  });
}

esp_result esp_scatter(esp_comm* comm, const void* in, void* out, size_t recv_count, esp_dtype dtype, int root,
                       esp_work** work) {
  return run_guarded([&] {
    Call call = make_call(Op::scatter, in, out, times_size(comm, recv_count), dtype);
    call.root = root;
    submit(comm, call, work);
  });
}

esp_result esp_all_to_all(esp_comm* comm, const void* in, void* out, size_t count_per_rank, esp_dtype dtype,
                          esp_work** work) {
  return run_guarded(
      [&] { submit(comm, make_call(Op::all_to_all, in, out, times_size(comm, count_per_rank), dtype), work); });
}

esp_result esp_all_to_all_v(esp_comm* comm, const void* in, const size_t* send_counts, const size_t* send_offsets,
                            void* out, const size_t* recv_counts, const size_t* recv_offsets, esp_dtype dtype,
                            esp_work** work) {
  return run_guarded([&] {
    if (!send_counts || !send_offsets || !recv_counts || !recv_offsets)
      throw UsageError("all_to_all_v: counts and offsets must not be NULL");
    Call call = make_call(Op::all_to_all_v, in, out, 0, dtype);
    auto size = times_size(comm, 1);
    call.send_counts = {send_counts, size};
    call.send_offsets = {send_offsets, size};
    call.recv_counts = {recv_counts, size};
    call.recv_offsets = {recv_offsets, size};
    submit(comm, call, work);
  });
}

esp_result esp_send(esp_comm* comm, const void* data, size_t count, esp_dtype dtype, int peer, esp_work** work) {
  return run_guarded([&] {
    Call call = make_call(Op::send, data, nullptr, count, dtype);
    call.root = peer;
    submit(comm, call, work);
  });
}

esp_result esp_recv(esp_comm* comm, void* data, size_t count, esp_dtype dtype, int peer, esp_work** work) {
  return run_guarded([&] {
    Call call = make_call(Op::recv, nullptr, data, count, dtype);
    call.root = peer;
    submit(comm, call, work);
  });
}

esp_result esp_barrier(esp_comm* comm, esp_work** work) {
  return run_guarded([&] { submit(comm, Call{}, work); });
}

esp_result esp_signal(esp_comm* comm, int peer) {
  return run_guarded([&] {
    Call call;
    call.op = Op::signal;
    call.root = peer;
    submit(comm, call, nullptr);
  });
}

esp_result esp_wait(esp_comm* comm, int peer, esp_work** work) {
  return run_guarded([&] {
    Call call;
    call.op = Op::wait;
    call.root = peer;
    submit(comm, call, work);
  });
}

esp_result esp_work_wait(esp_work* work, double timeout_s) {
  esp_result result = run_guarded([&] {
    if (!work) throw UsageError("work: must not be NULL");
    if (std::isnan(timeout_s))
      throw UsageError("timeout_s: got NaN; expected seconds, or a negative number for no limit");
    constexpr double kYear = 365.0 * 24 * 3600;
    double seconds = timeout_s < 0 || timeout_s > kYear ? kYear : timeout_s;
    work->work.wait(Deadline::after(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds))));
  });
  return result == ESP_ERROR_COMM && !work->work.done() ? ESP_NOT_DONE : result;
}

esp_result esp_work_test(esp_work* work, int* done) {
  return run_guarded([&] {
    if (!work || !done) throw UsageError("work and done: must not be NULL");
    *done = work->work.done() ? 1 : 0;
  });
}

esp_result esp_work_free(esp_work* work) {
  return run_guarded([&] { delete work; });
}

esp_result esp_group_begin(void) {
  return run_guarded([] { PendingGroup::this_thread().begin(); });
}

esp_result esp_group_end(void) {
  return run_guarded([] { PendingGroup::this_thread().end(); });
}
