#include "esp/comm/nccl/library.h"

#include <dlfcn.h>

#include <fmt/format.h>

namespace esp::comm {
namespace {

template <typename F>
void find(NcclLibrary& library, void* handle, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(handle, name));
  if (!function && library.problem.empty()) library.problem = fmt::format("libnccl.so.2 has no {}", name);
}

NcclLibrary open() {
  NcclLibrary l;
  void* handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* why = dlerror();
    l.problem = fmt::format("NCCL cannot be loaded ({})", why ? why : "libnccl.so.2");
    return l;
  }
  find(l, handle, "ncclGetVersion", l.get_version);
  find(l, handle, "ncclGetErrorString", l.error_string);
  find(l, handle, "ncclGetUniqueId", l.get_unique_id);
  find(l, handle, "ncclCommInitRank", l.init_rank);
  find(l, handle, "ncclCommDestroy", l.destroy);
  find(l, handle, "ncclCommAbort", l.abort);
  find(l, handle, "ncclCommGetAsyncError", l.async_error);
  find(l, handle, "ncclGroupStart", l.group_start);
  find(l, handle, "ncclGroupEnd", l.group_end);
  find(l, handle, "ncclAllReduce", l.all_reduce);
  find(l, handle, "ncclReduce", l.reduce);
  find(l, handle, "ncclBroadcast", l.broadcast);
  find(l, handle, "ncclReduceScatter", l.reduce_scatter);
  find(l, handle, "ncclAllGather", l.all_gather);
  find(l, handle, "ncclSend", l.send);
  find(l, handle, "ncclRecv", l.recv);
  if (l.problem.empty() && l.get_version(&l.version) != ncclSuccess)
    l.problem = "NCCL cannot be used: ncclGetVersion failed";
  return l;
}

}  // namespace

const NcclLibrary& nccl_library() {
  static const NcclLibrary library = open();
  return library;
}

}  // namespace esp::comm
