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

// A Python interpreter that finds the package; importing it would take a second each time.
bool has_torch(const std::string& python) {
  if (python.empty()) return false;
  launch::LocalOptions options;
  options.output = launch::LocalOptions::Output::last_words;
  options.command = {python, "-c", "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"};
  launch::LocalJob job(options);
  return job.wait(Deadline::after(std::chrono::seconds(20))) && !job.failure();
}

std::string find_python(const TrainBench& bench) {
  if (!bench.python.empty()) {
    if (!has_torch(bench.python))
      throw UsageError(
          fmt::format("--python {}: has no torch. Install python3-torch, or set another interpreter.", bench.python));
    return bench.python;
  }
  for (const std::string& python : {find_program("python3"), std::string("/usr/bin/python3")})
    if (has_torch(python)) return python;
  throw UsageError("peer torch: no python3 with torch found. Install python3-torch, or set --python.");
}

launch::LocalOptions start_torch_with(const TrainBench& bench, const TrainCase& it, const Switchboard& board,
                                      const std::string& label, const std::string& blas) {
  const model::ModelConfig& m = it.model;
  if (m.arch != "gpt" || it.precision != "fp32" || it.recompute != "none" || m.dropout != 0 ||
      m.ffn_or_default() != 4 * m.dim)
    throw UsageError(
        fmt::format("peer {}: it has GPT-2 style models in fp32, without dropout or recomputation", label));
  const std::string script = peer_path("torch_train.py");
  if (script.empty()) throw UsageError("peer torch: torch_train.py not found beside this program");
  launch::LocalOptions options;
  options.output = launch::LocalOptions::Output::last_words;
  options.command = {find_python(bench), script, "--socket", board.name(), "--label", label, "--tokens", it.tokens};
  const std::pair<const char*, int64_t> numbers[] = {
      {"--layers", m.layers}, {"--heads", m.heads},  {"--dim", m.dim},          {"--vocab", m.vocab},
      {"--seq", it.seq},      {"--batch", it.batch}, {"--threads", it.threads}, {"--ranks", it.ranks}};
  for (const auto& [name, value] : numbers) {
    options.command.emplace_back(name);
    options.command.push_back(std::to_string(value));
  }
  if (it.power_rank > 0) options.command.insert(options.command.end(), {"--power-rank", std::to_string(it.power_rank)});
  options.num_ranks = it.ranks;
  if (it.ranks > 1) {
    options.command.insert(options.command.end(), {"--meet", fmt::format("{}.{}", it.tokens, board.name())});
    options.environment["GLOO_SOCKET_IFNAME"] = "lo";
  }
  options.environment["OMP_NUM_THREADS"] = std::to_string(it.threads);
  if (!blas.empty()) {
    const launch::Environment ours = launch::process_environment();
    const auto path = ours.find("LD_LIBRARY_PATH");
    options.environment["LD_LIBRARY_PATH"] = path == ours.end() ? blas : blas + ":" + path->second;
    if (const std::string core = better_blas_core(blas + "/libopenblas.so.0"); !core.empty())
      options.environment["OPENBLAS_CORETYPE"] = core;
  }
  return options;
}

// Its threads are OpenMP's; a BLAS with another kind of threads competes for the cores.
launch::LocalOptions start_torch(const TrainBench& bench, const TrainCase& it, const Switchboard& board) {
  return start_torch_with(bench, it, board, "torch", openmp_blas_folder());
}

launch::LocalOptions start_torch_as_installed(const TrainBench& bench, const TrainCase& it, const Switchboard& board) {
  return start_torch_with(bench, it, board, "torch-as-installed", "");
}

constexpr TrainBaseline kBaselines[] = {
    {"torch",
     "PyTorch (several ranks: DistributedDataParallel over gloo) with the OpenMP build of OpenBLAS, where there is one",
     start_torch},
    {"torch-as-installed", "PyTorch with the BLAS the system gives it", start_torch_as_installed},
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

// Per block: seven tensors of the width, qkv, two of the hidden layer, two matrices of scores, four statistics of
// norms; in addition: embedding and final norm with its statistics, logits and probabilities of a vocabulary padded to
// 128, losses.
uint64_t llmc_activations(const TrainCase& it) {
  const auto layers = static_cast<uint64_t>(it.model.layers), width = static_cast<uint64_t>(it.model.dim),
             heads = static_cast<uint64_t>(it.model.heads), length = static_cast<uint64_t>(it.seq),
             tokens = static_cast<uint64_t>(it.batch) * length,
             vocabulary = (static_cast<uint64_t>(it.model.vocab) + 127) / 128 * 128;
  const uint64_t block = tokens * (7 * width + 3 * width + 8 * width + 4) + 2 * heads * tokens * length;
  return layers * block + tokens * (2 * width + 2 + 2 * vocabulary + 1);
}

LlmcResult run_llmc(const std::string& program, int threads, int steps, Deadline deadline) {
  if (!std::filesystem::is_regular_file(program) || ::access(program.c_str(), X_OK) != 0)
    throw UsageError(fmt::format("--llmc {}: no such program. Set the path of llm.c's train_gpt2.", program));
  const std::string path = std::filesystem::absolute(program).string();
  launch::SpawnOptions options;
  // It looks for weights and tokens in its working directory and reports missing files on stderr.
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
  ::kill(-child.pid, SIGKILL);  // a separate process group
  ::waitpid(child.pid, nullptr, 0);
  if (result.step_s.size() < 2)
    throw IoError(fmt::format("{}: {} lines \"step N: train loss X (took Y ms)\"{}; the last it said: {}", program,
                              result.step_s.size(), deadline.passed() ? " in the time it had" : "", last));
  result.step_s.erase(result.step_s.begin());  // the first step is warm-up
  return result;
}

}  // namespace esp::app
