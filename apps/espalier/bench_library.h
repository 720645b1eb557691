// EspalierLibrary: one rank of Espalier's communicator, behind the interface that `bench comm` uses for every library.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/peers/serve.h"
#include "esp/comm/communicator.h"

namespace esp::app {

class EspalierLibrary final : public bench::Library {
 public:
  explicit EspalierLibrary(comm::Communicator& comm) : comm_(comm) {}
  int rank() const override { return comm_.rank(); }
  int size() const override { return comm_.size(); }
  std::string refuses(const bench::Request&) override { return ""; }
  void barrier() override { comm_.barrier(); }
  void prepare(const bench::Request& request, const bench::Layout& layout, void* in, void* out) override;
  void call() override;
  void* allocate_registered(size_t bytes) override;
  void release_registered(void* data) override { registered_.erase(data); }
  // Report on the calls since `prepare`, barriers excluded: the algorithm, the transport, and the traffic per call.
  std::string report() override;

 private:
  comm::Communicator& comm_;
  comm::Call call_, send_, receive_;
  std::string algorithm_;
  bool exchange_ = false;
  std::map<void*, std::shared_ptr<void>> registered_;
  std::vector<comm::CallStats> before_;
};

}  // namespace esp::app
