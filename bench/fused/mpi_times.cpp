// Times the collectives of an MPI library in the same way as fused_bench times Espalier's: batches of calls back to
// back, the median over the batches. Build with mpicxx.openmpi -O3, run under mpirun. Arguments: pairs of op and bytes.
#include <malloc.h>
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, -1);
  MPI_Init(&argc, &argv);
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (int i = 1; i + 1 < argc; i += 2) {
    std::string op = argv[i];
    size_t bytes = std::strtoull(argv[i + 1], nullptr, 10), count = bytes / 4;
    int n = static_cast<int>(count), part = n / size;
    float* in = static_cast<float*>(std::aligned_alloc(4096, bytes + 4096));
    float* out = static_cast<float*>(std::aligned_alloc(4096, bytes + 4096));
    std::memset(in, 0, bytes);
    std::memset(out, 0, bytes);
    auto once = [&] {
      if (op == "all_reduce") MPI_Allreduce(in, out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      if (op == "reduce_scatter") MPI_Reduce_scatter_block(in, out, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      if (op == "all_gather") MPI_Allgather(in, part, MPI_FLOAT, out, part, MPI_FLOAT, MPI_COMM_WORLD);
      if (op == "broadcast") MPI_Bcast(in, n, MPI_FLOAT, 0, MPI_COMM_WORLD);
      if (op == "all_to_all") MPI_Alltoall(in, part, MPI_FLOAT, out, part, MPI_FLOAT, MPI_COMM_WORLD);
      if (op == "barrier") MPI_Barrier(MPI_COMM_WORLD);
    };
    for (int k = 0; k < 3; ++k) once();
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    once();
    once();
    double guess = (MPI_Wtime() - start) / 2;
    MPI_Bcast(&guess, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    int batch = std::clamp(static_cast<int>(1e-3 / guess), 1, 2000);
    int batches = std::clamp(static_cast<int>(0.4 / (guess * batch)), 5, 101);
    std::vector<double> times;
    for (int b = 0; b < batches; ++b) {
      MPI_Barrier(MPI_COMM_WORLD);
      double t0 = MPI_Wtime();
      for (int k = 0; k < batch; ++k) once();
      times.push_back((MPI_Wtime() - t0) / batch);
    }
    std::sort(times.begin(), times.end());
    double mine = times[times.size() / 2] * 1e6, worst = 0;
    MPI_Reduce(&mine, &worst, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) std::printf("%s %zu %d %.2f\n", op.c_str(), bytes, size, worst);
    std::fflush(stdout);
    std::free(in);
    std::free(out);
  }
  MPI_Finalize();
}
