#include "esp/sync/local/server_mean.h"

#include <algorithm>

#include "esp/kernel/weighted_sum.h"

namespace esp::sync {
namespace {

using tensor::Tensor;

void add_call(std::vector<comm::Call>& calls, comm::Op op, const Tensor& part, int peer) {
  if (part.count() == 0) return;
  comm::Call call;
  call.op = op;
  if (op == comm::Op::send)
    call.in = part.data();
  else
    call.out = part.data();
  call.count = static_cast<size_t>(part.count());
  call.dtype = part.dtype();
  call.root = peer;
  calls.push_back(call);
}

void run(TimedCommunicator& replicas, const std::vector<comm::Call>& calls, const char* what) {
  if (!calls.empty()) replicas.wait(replicas.start_group(calls), what);
}

}  // namespace

void server_mean(TimedCommunicator& replicas, const tensor::Context& context, const Tensor& mean, const Tensor& x,
                 std::span<const MeanClient> clients, int num_servers) {
  const int here = replicas.rank();
  const auto part_of = [&](const Tensor& all, int server) {
    const comm::Chunk chunk = comm::chunk_of(static_cast<size_t>(all.count()), num_servers, server);
    return all.slice(static_cast<int64_t>(chunk.offset), static_cast<int64_t>(chunk.offset + chunk.count));
  };
  const bool serves = here < num_servers;
  const bool pushes =
      std::any_of(clients.begin(), clients.end(), [&](const MeanClient& c) { return c.replica == here; });

  std::vector<comm::Call> calls;
  for (int server = 0; pushes && server < num_servers; ++server)
    if (server != here) add_call(calls, comm::Op::send, part_of(x, server), server);
  std::vector<Tensor> pushed;
  std::vector<kernel::WeightedTerm> terms;
  for (const MeanClient& client : clients) {
    if (!serves) break;
    Tensor part = part_of(x, here);
    if (client.replica != here) {
      part = tensor::empty(context, part.shape(), part.dtype(), device::MemoryCategory::buffer);
      add_call(calls, comm::Op::recv, part, client.replica);
    }
    terms.push_back({part.data(), client.weight});
    pushed.push_back(std::move(part));
  }
  run(replicas, calls, "pushes");
  if (serves && mean.count() > 0) {
    const Tensor own = part_of(mean, here);
    if (own.count() > 0) kernel::weighted_sum(own.data(), terms, own.count(), own.dtype(), context.stream);
  }

  calls.clear();
  for (int peer = 0; serves && peer < replicas.size(); ++peer)
    if (peer != here) add_call(calls, comm::Op::send, part_of(mean, here), peer);
  for (int server = 0; server < num_servers; ++server)
    if (server != here) add_call(calls, comm::Op::recv, part_of(mean, server), server);
  run(replicas, calls, "pulls");
}

}  // namespace esp::sync
