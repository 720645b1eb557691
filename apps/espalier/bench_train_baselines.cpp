// The baselines (other trainers), and how each is started with its best settings.
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>

#include "apps/espalier/baselines.h"
#include "apps/espalier/bench_blas.h"
#include "apps/espalier/bench_train.h"
#include "apps/espalier/machine.h"
#include "esp/base/error.h"
#include "esp/launch/spawn.h"

namespace esp::app {
namespace {

constexpr const char* kOpenMpBlasFolder = "/usr/lib/x86_64-linux-gnu/openblas-openmp";

// Whether this Python interpreter finds torch. Does not import it: an import takes a second.
bool has_torch(const std::string& python) {
  if (python.empty()) return false;
  launch::LocalOptions options;
  options.output = launch::LocalOptions::Output::stderr_tail;
  options.command = {python, "-c", "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"};
  launch::LocalJob job(options);
  return job.wait(Deadline::after(std::chrono::seconds(20))) && !job.failure();
}

std::string find_python(const TrainBenchOptions& bench) {
  if (!bench.python.empty()) {
    if (!has_torch(bench.python))
      throw UsageError(fmt::format(
          "--python: got {}, which has no torch module. Install python3-torch, or choose another interpreter",
          bench.python));
    return bench.python;
  }
  for (const std::string& python : {find_program("python3"), std::string("/usr/bin/python3")})
    if (has_torch(python)) return python;
  throw UsageError("--peers torch: found no python3 with the torch module. Install python3-torch, or set --python");
}

launch::LocalOptions start_torch_with(const TrainBenchOptions& bench, const TrainCase& spec,
                                      const RankListener& listener, const std::string& label, const std::string& blas) {
  const model::ModelConfig& m = spec.model;
  if (m.arch != "gpt" || spec.precision != "fp32" || spec.recompute != "none" || m.dropout != 0 ||
      m.ffn_or_default() != 4 * m.dim)
    throw UsageError(fmt::format(
        "--peers {}: supports only GPT-2 style models in fp32, without dropout and activation recomputation", label));
  const std::string script = baseline_path("torch_train.py");
  if (script.empty()) throw UsageError("--peers torch: torch_train.py not found beside this program");
  launch::LocalOptions options;
  options.output = launch::LocalOptions::Output::stderr_tail;
  options.command = {find_python(bench), script, "--socket", listener.name(),
                     "--label",          label,  "--tokens", spec.tokens};
  const std::pair<const char*, int64_t> numbers[] = {
      {"--layers", m.layers},      {"--heads", m.heads},   {"--dim", m.dim},
      {"--vocab", m.vocab},        {"--seq", spec.seq},    {"--batch", spec.batch},
      {"--threads", spec.threads}, {"--ranks", spec.ranks}};
  for (const auto& [name, value] : numbers) {
    options.command.emplace_back(name);
    options.command.push_back(std::to_string(value));
  }
  if (spec.power_rank > 0)
    options.command.insert(options.command.end(), {"--power-rank", std::to_string(spec.power_rank)});
  options.num_ranks = spec.ranks;
  if (spec.ranks > 1) {
    options.command.insert(options.command.end(), {"--meet", fmt::format("{}.{}", spec.tokens, listener.name())});
    options.environment["GLOO_SOCKET_IFNAME"] = "lo";
  }
  options.environment["OMP_NUM_THREADS"] = std::to_string(spec.threads);
  if (!blas.empty()) {
    const launch::Environment ours = launch::process_environment();
    const auto path = ours.find("LD_LIBRARY_PATH");
    options.environment["LD_LIBRARY_PATH"] = path == ours.end() ? blas : blas + ":" + path->second;
    if (const std::string core = openblas_core_override(blas + "/libopenblas.so.0"); !core.empty())
      options.environment["OPENBLAS_CORETYPE"] = core;
  }
  return options;
}

// PyTorch uses OpenMP threads; a BLAS with another threading library would compete for the cores.
launch::LocalOptions start_torch(const TrainBenchOptions& bench, const TrainCase& spec, const RankListener& listener) {
  return start_torch_with(bench, spec, listener, "torch", openmp_blas_folder());
}

launch::LocalOptions start_torch_as_installed(const TrainBenchOptions& bench, const TrainCase& spec,
                                              const RankListener& listener) {
  return start_torch_with(bench, spec, listener, "torch-as-installed", "");
}

constexpr TrainBaseline kBaselines[] = {
    {"torch",
     "PyTorch (several ranks: DistributedDataParallel over gloo) with the OpenMP build of OpenBLAS, where there is one",
     start_torch},
    {"torch-as-installed", "PyTorch with the default BLAS of the system", start_torch_as_installed},
};

}  // namespace

std::span<const TrainBaseline> train_baselines() {
  return kBaselines;
}

std::string openmp_blas_folder() {
  return ::access((std::string(kOpenMpBlasFolder) + "/libopenblas.so.0").c_str(), R_OK) == 0 ? kOpenMpBlasFolder : "";
}

uint64_t peak_resident_bytes(int pid) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::strtoull(line.c_str() + 6, nullptr, 10) * 1024;
  return 0;
}

void read_llmc_line(const std::string& line, LlmcResult& result) {
  int step = 0;
  double loss = 0, ms = 0;
  unsigned long long activations = 0;
  if (std::sscanf(line.c_str(), "step %d: train loss %lf (took %lf ms)", &step, &loss, &ms) == 3) {
    result.step_s.push_back(ms * 1e-3);
    result.loss = loss;
  } else if (std::sscanf(line.c_str(), "num_activations: %llu", &activations) == 1) {
    result.activations = activations;
  }
}

// Number of activations that llm.c allocates. Per block: seven tensors of the model width, qkv, two of the hidden
// layer, two matrices of attention scores, four statistics of norms. In addition: the embedding, the final norm with
// its statistics, logits and probabilities of a vocabulary padded to a multiple of 128, and the losses.
uint64_t llmc_activations(const TrainCase& spec) {
  const auto layers = static_cast<uint64_t>(spec.model.layers), width = static_cast<uint64_t>(spec.model.dim),
             heads = static_cast<uint64_t>(spec.model.heads), length = static_cast<uint64_t>(spec.seq),
             tokens = static_cast<uint64_t>(spec.batch) * length,
             vocabulary = (static_cast<uint64_t>(spec.model.vocab) + 127) / 128 * 128;
  const uint64_t block = tokens * (7 * width + 3 * width + 8 * width + 4) + 2 * heads * tokens * length;
  return layers * block + tokens * (2 * width + 2 + 2 * vocabulary + 1);
}

LlmcResult run_llmc(const std::string& program, int threads, int steps, Deadline deadline) {
  if (!std::filesystem::is_regular_file(program) || ::access(program.c_str(), X_OK) != 0)
    throw UsageError(fmt::format("--llmc: got {}; expected the path of llm.c's program train_gpt2", program));
  const std::string path = std::filesystem::absolute(program).string();
  launch::SpawnOptions options;
  // llm.c reads weights and tokens from its working directory and reports missing files on stderr.
  options.command = {"/bin/sh", "-c", "cd \"$(dirname \"$0\")\" && exec stdbuf -oL \"$0\" 2>&1", path};
  options.environment = launch::process_environment();
  options.environment["OMP_NUM_THREADS"] = std::to_string(threads);
  options.capture_stderr = false;
  launch::Child child = launch::spawn(options);
  LlmcResult result;
  std::string text, last;
  while (static_cast<int>(result.step_s.size()) < steps && !deadline.passed()) {
    pollfd waiting{child.out.fd(), POLLIN, 0};
    if (::poll(&waiting, 1, deadline.left_ms()) <= 0) continue;
    char bytes[4096];
    const ssize_t got = ::read(child.out.fd(), bytes, sizeof bytes);
    if (got <= 0) break;
    text.append(bytes, static_cast<size_t>(got));
    for (size_t end; (end = text.find('\n')) != std::string::npos; text.erase(0, end + 1)) {
      last = text.substr(0, end);
      read_llmc_line(last, result);
    }
    result.peak_bytes = std::max(result.peak_bytes, peak_resident_bytes(child.pid));
  }
  ::kill(-child.pid, SIGKILL);  // llm.c runs in its own process group: kills all of it
  ::waitpid(child.pid, nullptr, 0);
  if (result.step_s.size() < 2)
    throw IoError(
        fmt::format("{}: got {} lines \"step N: train loss X (took Y ms)\"{}; expected at least 2. Last "
                    "output: {}",
                    program, result.step_s.size(), deadline.passed() ? " before the deadline" : "", last));
  result.step_s.erase(result.step_s.begin());  // the first step is warm-up
  return result;
}

}  // namespace esp::app
