// One rank of Gloo for `bench comm --peers`: gloo_peer SOCKET LABEL STORE_FOLDER ring|bcube|halving. RANK and
// WORLD_SIZE give rank and size. Ranks find each other through files in the folder and communicate over loopback TCP.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/gather.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/scatter.h>
#include <gloo/transport/tcp/device.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <string>

#include "bench/peers/serve.h"

namespace {

using esp::bench::Layout;
using esp::bench::Request;

class Gloo : public esp::bench::Library {
 public:
  Gloo(int rank, int size, const std::string& folder, std::string algorithm)
      : algorithm_(std::move(algorithm)), context_(std::make_shared<gloo::rendezvous::Context>(rank, size)) {
    gloo::transport::tcp::attr attributes;
    attributes.iface = "lo";
    gloo::rendezvous::FileStore store(folder);
    context_->setTimeout(std::chrono::seconds(60));
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    context_->connectFullMesh(store, device);
  }
  int rank() const override { return context_->rank; }
  int size() const override { return context_->size; }

  std::string refuses(const Request& request) override {
    if (request.dtype != "f32" && request.dtype != "f64" && request.dtype != "i32")
      return "Gloo is compared only in f32, f64 and i32";
    if (request.reduce != "sum") return "Gloo is compared only with the reduction sum";
    if (request.inplace) return "Gloo is compared only out of place";
    return "";
  }
  void barrier() override {
    gloo::BarrierOptions options(context_);
    gloo::barrier(options);
  }
  void prepare(const Request& request, const Layout& layout, void* in, void* out) override {
    if (request.dtype == "f64")
      prepare_as<double>(request, layout, static_cast<double*>(in), static_cast<double*>(out));
    else if (request.dtype == "i32")
      prepare_as<int32_t>(request, layout, static_cast<int32_t*>(in), static_cast<int32_t*>(out));
    else
      prepare_as<float>(request, layout, static_cast<float*>(in), static_cast<float*>(out));
  }
  void call() override { call_(); }

 private:
  // Creates options and registered buffers once per request: this is the fastest use of Gloo.
  template <typename T>
  void prepare_as(const Request& request, const Layout& layout, T* in, T* out) {
    size_t n = layout.count, chunk = layout.chunk;
    bool at_root = rank() == request.root;
    if (request.op == "all_reduce" && algorithm_ == "halving") {
      auto algorithm =
          std::make_shared<gloo::AllreduceHalvingDoubling<T>>(context_, std::vector<T*>{out}, static_cast<int>(n));
      call_ = [=] {
        std::memcpy(out, in, n * sizeof(T));
        algorithm->run();
      };
    } else if (request.op == "all_reduce") {
      auto options = std::make_shared<gloo::AllreduceOptions>(context_);
      options->setInput(in, n);
      options->setOutput(out, n);
      options->setAlgorithm(algorithm_ == "bcube" ? gloo::AllreduceOptions::Algorithm::BCUBE
                                                  : gloo::AllreduceOptions::Algorithm::RING);
      options->setReduceFunction(static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<T>));
      call_ = [=] { gloo::allreduce(*options); };
    } else if (request.op == "all_gather") {
      auto options = std::make_shared<gloo::AllgatherOptions>(context_);
      options->setInput(in, chunk);
      options->setOutput(out, n);
      call_ = [=] { gloo::allgather(*options); };
    } else if (request.op == "reduce_scatter") {
      // The algorithm works in place: the result is at the start of the buffer.
      auto work = std::make_shared<std::vector<T>>(n);
      auto algorithm = std::make_shared<gloo::ReduceScatterHalvingDoubling<T>>(
          context_, std::vector<T*>{work->data()}, static_cast<int>(n),
          std::vector<int>(static_cast<size_t>(size()), static_cast<int>(chunk)));
      call_ = [=] {
        std::memcpy(work->data(), in, n * sizeof(T));
        algorithm->run();
        std::memcpy(out, work->data(), chunk * sizeof(T));
      };
    } else if (request.op == "broadcast") {
      auto options = std::make_shared<gloo::BroadcastOptions>(context_);
      options->setOutput(out, n);
      options->setRoot(request.root);
      call_ = [=] { gloo::broadcast(*options); };
    } else if (request.op == "reduce") {
      auto options = std::make_shared<gloo::ReduceOptions>(context_);
      options->setInput(in, n);
      options->setOutput(out, n);
      options->setRoot(request.root);
      options->setReduceFunction(static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<T>));
      call_ = [=] { gloo::reduce(*options); };
    } else if (request.op == "all_to_all") {
      auto options = std::make_shared<gloo::AlltoallOptions>(context_);
      options->setInput(in, n);
      options->setOutput(out, n);
      call_ = [=] { gloo::alltoall(*options); };
    } else if (request.op == "gather") {
      auto options = std::make_shared<gloo::GatherOptions>(context_);
      options->setInput(in, chunk);
      if (at_root) options->setOutput(out, n);
      options->setRoot(request.root);
      call_ = [=] { gloo::gather(*options); };
    } else if (request.op == "scatter") {
      auto options = std::make_shared<gloo::ScatterOptions>(context_);
      std::vector<T*> parts;
      for (int k = 0; k < size(); ++k) parts.push_back(in + static_cast<size_t>(k) * chunk);
      if (at_root) options->setInputs(parts, chunk);
      options->setOutput(out, chunk);
      options->setRoot(request.root);
      call_ = [=] { gloo::scatter(*options); };
    } else {
      std::shared_ptr<gloo::transport::UnboundBuffer> from = context_->createUnboundBuffer(in, n * sizeof(T));
      std::shared_ptr<gloo::transport::UnboundBuffer> to = context_->createUnboundBuffer(out, n * sizeof(T));
      int right = (rank() + 1) % size(), left = (rank() + size() - 1) % size();
      call_ = [=] {
        to->recv(left, 7);
        from->send(right, 7);
        from->waitSend(std::chrono::seconds(60));
        to->waitRecv(std::chrono::seconds(60));
      };
    }
  }

  std::string algorithm_;
  std::shared_ptr<gloo::rendezvous::Context> context_;
  std::function<void()> call_;
};

}  // namespace

int main(int argc, char** argv) {
  const char* rank = std::getenv("RANK");
  const char* size = std::getenv("WORLD_SIZE");
  if (argc < 5 || !rank || !size) {
    std::fprintf(
        stderr,
        "usage: gloo_peer SOCKET LABEL STORE_FOLDER ring|bcube|halving; started by espalier bench comm --peers\n");
    return 2;
  }
  try {
    Gloo library(std::atoi(rank), std::atoi(size), argv[3], argv[4]);
    esp::bench::LineChannel channel(esp::bench::connect_coordinator(argv[1]));
    return esp::bench::serve(library, channel, argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gloo_peer: %s\n", error.what());
    return 1;
  }
}
