// Replaces nccl/ in builds without CUDA.
#include "esp/base/error.h"
#include "esp/comm/nccl/nccl.h"

namespace esp::comm {
namespace {

constexpr const char* kWhy = "this espalier was built without CUDA (configure with -DESP_CUDA=ON)";

}  // namespace

std::string nccl_version(std::string* spec) {
  if (spec) *spec = kWhy;
  return {};
}

std::string nccl_unsupported_reason(Communicator&, device::Device) {
  return kWhy;
}

std::unique_ptr<Communicator> make_nccl(Communicator&, const device::Stream&, device::MemoryAccount&) {
  throw UsageError(kWhy);
}

}  // namespace esp::comm
