// One rank of an MPI library for `bench comm --peers`: mpi_peer SOCKET LABEL [v]. With `v`, reduce_scatter calls
// MPI_Reduce_scatter. Its algorithms differ from those of MPI_Reduce_scatter_block, which is called otherwise.
#include <mpi.h>
#include <signal.h>
#include <sys/prctl.h>

#include <cstdio>
#include <string>
#include <vector>

#include "bench/peers/serve.h"

namespace {

using esp::bench::Layout;
using esp::bench::Request;

class Mpi : public esp::bench::Library {
 public:
  explicit Mpi(bool irregular) : irregular_(irregular) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::string refuses(const Request& request) override {
    if (request.dtype == "bf16" || request.dtype == "f16") return "MPI has no 16-bit floating type";
    if (request.reduce == "avg") return "MPI has no average reduction";
    if (request.inplace && request.op != "all_reduce") return "MPI is compared in place only for all_reduce";
    if (request.bytes / esp::bench::element_size(request.dtype) > (size_t{1} << 31) - 1) return "MPI counts are int";
    return "";
  }
  void barrier() override { MPI_Barrier(MPI_COMM_WORLD); }

  void prepare(const Request& request, const Layout& layout, void* in, void* out) override {
    request_ = request;
    in_ = in, out_ = out;
    count_ = static_cast<int>(layout.count), chunk_ = static_cast<int>(layout.chunk);
    counts_.assign(static_cast<size_t>(size_), chunk_);
    const std::string& d = request.dtype;
    type_ = d == "f64"   ? MPI_DOUBLE
            : d == "f32" ? MPI_FLOAT
            : d == "i64" ? MPI_INT64_T
            : d == "i32" ? MPI_INT32_T
            : d == "i16" ? MPI_INT16_T
            : d == "i8"  ? MPI_INT8_T
                         : MPI_UINT8_T;
    const std::string& o = request.reduce;
    op_ = o == "prod" ? MPI_PROD : o == "min" ? MPI_MIN : o == "max" ? MPI_MAX : MPI_SUM;
    kind_ = kind_of(request.op);
  }

  void call() override {
    const MPI_Comm world = MPI_COMM_WORLD;
    bool at_root = rank_ == request_.root;
    switch (kind_) {
      case 0:
        MPI_Allreduce(request_.inplace ? MPI_IN_PLACE : in_, out_, count_, type_, op_, world);
        break;
      case 1:
        MPI_Allgather(in_, chunk_, type_, out_, chunk_, type_, world);
        break;
      case 2:
        if (irregular_)
          MPI_Reduce_scatter(in_, out_, counts_.data(), type_, op_, world);
        else
          MPI_Reduce_scatter_block(in_, out_, chunk_, type_, op_, world);
        break;
      case 3:
        MPI_Bcast(out_, count_, type_, request_.root, world);
        break;
      case 4:
        MPI_Reduce(in_, at_root ? out_ : nullptr, count_, type_, op_, request_.root, world);
        break;
      case 5:
        MPI_Alltoall(in_, chunk_, type_, out_, chunk_, type_, world);
        break;
      case 6:
        MPI_Gather(in_, chunk_, type_, at_root ? out_ : nullptr, chunk_, type_, request_.root, world);
        break;
      case 7:
        MPI_Scatter(at_root ? in_ : nullptr, chunk_, type_, out_, chunk_, type_, request_.root, world);
        break;
      default:
        MPI_Sendrecv(in_, count_, type_, (rank_ + 1) % size_, 0, out_, count_, type_, (rank_ + size_ - 1) % size_, 0,
                     world, MPI_STATUS_IGNORE);
    }
  }

 private:
  static int kind_of(const std::string& op) {
    const char* names[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce",
                           "all_to_all", "gather",     "scatter",        "sendrecv"};
    for (int i = 0; i < 9; ++i)
      if (op == names[i]) return i;
    throw std::runtime_error("MPI worker: unknown operation " + op);
  }
  int rank_ = 0, size_ = 1, count_ = 0, chunk_ = 0, kind_ = 0;
  bool irregular_;
  Request request_;
  void* in_ = nullptr;
  void* out_ = nullptr;
  MPI_Datatype type_ = MPI_FLOAT;
  MPI_Op op_ = MPI_SUM;
  std::vector<int> counts_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: mpi_peer SOCKET LABEL [v]; started by espalier bench comm --peers\n");
    return 2;
  }
  // Ends this rank with its parent: if mpirun was killed, the rank would otherwise spin in a collective forever.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() == 1) return 1;
  MPI_Init(&argc, &argv);
  int code = 0;
  try {
    Mpi library(argc > 3 && std::string(argv[3]) == "v");
    esp::bench::LineChannel channel(esp::bench::connect_coordinator(argv[1]));
    code = esp::bench::serve(library, channel, argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mpi_peer: %s\n", error.what());
    code = 1;
  }
  if (code != 0) ::_exit(code);  // MPI_Finalize would hang after an error
  MPI_Finalize();
  return 0;
}
