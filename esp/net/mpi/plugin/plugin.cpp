// Implements the functions of table.h with the MPI that this file is compiled against.
#include <mpi.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <string>

#include "esp/net/mpi/plugin/table.h"

namespace {

// State of MPI in this process; MPI exists once per process.
struct Process {
  std::mutex mutex;  // locked during every MPI call if MPI does not support several threads
  bool serial = true;
  bool initialised_here = false;  // this plug-in called MPI_Init
  MPI_Comm all = MPI_COMM_NULL;
  int local_size = 0;
};

Process& process() {
  static Process one;
  return one;
}

std::unique_lock<std::mutex> guard() {
  Process& mine = process();
  return mine.serial ? std::unique_lock(mine.mutex) : std::unique_lock<std::mutex>();
}

int init() {
  Process& mine = process();
  auto lock = guard();
  if (mine.all != MPI_COMM_NULL) return MPI_SUCCESS;
  int running = 0, level = MPI_THREAD_SINGLE;
  MPI_Initialized(&running);
  if (running)
    MPI_Query_thread(&level);
  else if (int failed = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level))
    return failed;
  mine.initialised_here = !running;
  // A duplicated communicator separates these messages from other users of MPI in this process.
  if (int failed = MPI_Comm_dup(MPI_COMM_WORLD, &mine.all)) return failed;
  MPI_Comm_set_errhandler(mine.all, MPI_ERRORS_RETURN);
  MPI_Comm here;
  if (int failed = MPI_Comm_split_type(mine.all, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here)) return failed;
  MPI_Comm_size(here, &mine.local_size);
  MPI_Comm_free(&here);
  mine.serial = level != MPI_THREAD_MULTIPLE;
  return MPI_SUCCESS;
}

int finalize() {
  Process& mine = process();
  auto lock = guard();
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (mine.all == MPI_COMM_NULL || finalized) return MPI_SUCCESS;
  if (int failed = MPI_Comm_free(&mine.all)) return failed;
  return mine.initialised_here ? MPI_Finalize() : MPI_SUCCESS;
}

int rank() {
  int value = -1;
  MPI_Comm_rank(process().all, &value);
  return value;
}

int size() {
  int value = 0;
  MPI_Comm_size(process().all, &value);
  return value;
}

int local_size() {
  return process().local_size;
}

int tag_limit() {
  int *value = nullptr, found = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &value, &found);
  return found ? *value : 32767;  // minimum that the MPI standard guarantees
}

int broadcast(void* data, int bytes, int root) {
  auto lock = guard();
  return MPI_Bcast(data, bytes, MPI_BYTE, root, process().all);
}

// Starts an MPI operation and returns its request through a pointer, because the type of a request depends on the MPI
// library.
template <typename Start>
int begin(EspMpiRequest* out, Start start) {
  auto* request = new (std::nothrow) MPI_Request(MPI_REQUEST_NULL);
  if (!request) return MPI_ERR_NO_MEM;
  auto lock = guard();
  int failed = start(request);
  if (failed) {
    delete request;
    request = nullptr;
  }
  *out = request;
  return failed;
}

int isend(const void* data, int bytes, int peer, int tag, EspMpiRequest* out) {
  return begin(
      out, [&](MPI_Request* request) { return MPI_Isend(data, bytes, MPI_BYTE, peer, tag, process().all, request); });
}

int irecv(void* data, int bytes, int peer, int tag, EspMpiRequest* out) {
  return begin(
      out, [&](MPI_Request* request) { return MPI_Irecv(data, bytes, MPI_BYTE, peer, tag, process().all, request); });
}

int test(EspMpiRequest* handle, int* done, int* bytes) {
  auto* request = static_cast<MPI_Request*>(*handle);
  MPI_Status status;
  auto lock = guard();
  int failed = MPI_Test(request, done, &status);
  if (failed || !*done) return failed;
  int cancelled = 0;
  MPI_Test_cancelled(&status, &cancelled);
  *bytes = 0;
  if (!cancelled) MPI_Get_count(&status, MPI_BYTE, bytes);
  delete request;
  *handle = nullptr;
  return MPI_SUCCESS;
}

int cancel(EspMpiRequest handle) {
  auto lock = guard();
  return MPI_Cancel(static_cast<MPI_Request*>(handle));
}

void describe(int code, char* text, int bytes) {
  char whole[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, whole, &length);
  std::strncpy(text, whole, static_cast<size_t>(bytes) - 1);
  text[bytes - 1] = '\0';
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const EspMpiTable espalier_mpi_table = {ESP_MPI_TABLE_VERSION,
                                                                                          ESP_MPI_NAME,
                                                                                          init,
                                                                                          finalize,
                                                                                          rank,
                                                                                          size,
                                                                                          local_size,
                                                                                          tag_limit,
                                                                                          broadcast,
                                                                                          isend,
                                                                                          irecv,
                                                                                          test,
                                                                                          cancel,
                                                                                          describe};
