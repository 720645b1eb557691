// espalier lab compression: measures accuracy and speed of compressors. Then it shows gradient descent with compressed
// gradients, with and without error feedback.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/command.h"
#include "apps/espalier/lab_descent.h"
#include "apps/espalier/lab_output.h"
#include "apps/espalier/lab_picture.h"
#include "apps/espalier/lab_svg.h"
#include "apps/espalier/text_table.h"
#include "esp/base/clock.h"
#include "esp/base/error.h"
#include "esp/kernel/elementwise.h"

namespace esp::app {
namespace {

struct CompressionLabOptions {
  int nproc = 8;
  int64_t values = 1 << 20, dim = 64, steps = 1500;
  int draws = 8;
  double lr = 0.05, noise = 0, heterogeneity = 1;
  std::string compress = "topk:0.0625", json, out;
};

// One compressor on normally distributed values: its theoretical guarantee and its measured error.
struct CompressorResult {
  std::string compressor;
  int64_t bytes = 0;
  sync::Guarantee guarantee;
  double error = 0;         // E‖C(x) − x‖² / ‖x‖²
  double bias_squared = 0;  // ‖mean C(x) − x‖² / ‖x‖²; decreases with the number of draws if C is unbiased
  double encode_gbs = 0, decode_gbs = 0;
};

double squared(const std::vector<double>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

CompressorResult measure(const CompressionLabOptions& o, const std::string& spec, const std::vector<float>& x) {
  const auto compressor = sync::make_compressor(spec);
  compressor->check(o.values);
  CompressorResult result;
  result.compressor = spec;
  result.guarantee = compressor->guarantee(o.values);
  std::vector<std::byte> encoded(compressor->encoded_bytes(o.values, DType::f32));
  std::vector<float> y(x.size());
  std::vector<double> mean(x.size());
  double norm = 0, encode_s = 1e30, decode_s = 1e30;
  for (const float one : x) norm += static_cast<double>(one) * one;
  for (int k = 0; k < o.draws; ++k) {
    const sync::RandomKey draw{1, static_cast<uint64_t>(k), 0};
    const int64_t begun = now_ns();
    const size_t length = compressor->encode(encoded.data(), x.data(), o.values, DType::f32, draw, {});
    const int64_t between = now_ns();
    compressor->decode(y.data(), sync::WriteMode::overwrite, {encoded.data(), length}, o.values, DType::f32, draw, {});
    decode_s = std::min(decode_s, static_cast<double>(now_ns() - between) * 1e-9);
    encode_s = std::min(encode_s, static_cast<double>(between - begun) * 1e-9);
    result.bytes = static_cast<int64_t>(length);
    double error = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      error += std::pow(static_cast<double>(y[i]) - x[i], 2);
      mean[i] += y[i] / static_cast<double>(o.draws);
    }
    result.error += error / norm / o.draws;
  }
  result.bias_squared = squared(mean, x) / norm;
  result.encode_gbs = 4e-9 * static_cast<double>(o.values) / encode_s;
  result.decode_gbs = 4e-9 * static_cast<double>(o.values) / decode_s;
  return result;
}

std::vector<CompressorResult> measure_all(const CompressionLabOptions& o) {
  std::vector<float> x(static_cast<size_t>(o.values));
  kernel::fill_normal(x.data(), 0, 1, 1, 0, 0, o.values, DType::f32, {});
  std::vector<CompressorResult> all;
  for (const char* spec :
       {"identity", "fp16", "bf16", "int8:256", "int8:256:stochastic", "int4:128", "qsgd:16:512", "natural", "sign",
        "onebit", "topk:0.01", "topk:0.05", "randomk:0.01", "randomk:0.01:unscaled", "threshold:2.5"})
    all.push_back(measure(o, spec, x));
  return all;
}

std::string bound_text(const sync::Guarantee& guarantee) {
  if (guarantee.omega) return fmt::format("ω ≤ {:.3g}", *guarantee.omega);
  return guarantee.delta ? fmt::format("δ ≥ {:.3g}", *guarantee.delta) : "";
}

std::string compressors_text(const CompressionLabOptions& o, const std::vector<CompressorResult>& all) {
  std::vector<Cells> rows;
  for (const CompressorResult& result : all)
    rows.push_back(
        {result.compressor, fmt::format("{}", result.bytes),
         fmt::format("{:.1f}×", 4.0 * static_cast<double>(o.values) / static_cast<double>(result.bytes)),
         bound_text(result.guarantee),
         result.guarantee.omega ? fmt::format("ω = {:.3g}", result.error) : fmt::format("δ = {:.3g}", 1 - result.error),
         fmt::format("{:.1e}", result.bias_squared), fmt::format("{:.1f}", result.encode_gbs),
         fmt::format("{:.1f}", result.decode_gbs)});
  return text_table({"compressor", "bytes", "ratio", "theory", "measured", "bias²", "encode GB/s", "decode GB/s"},
                    rows);
}

std::vector<DescentCase> cases_of(const CompressionLabOptions& o) {
  return {{"parallel SGD", "identity", "none"},
          {"no feedback", o.compress, "none"},
          {"EF", o.compress, "ef"},
          {"DoubleSqueeze", o.compress, "doublesqueeze"},
          {"EF21", o.compress, "ef21"},
          {"NEOLITHIC, R = 2", o.compress, "neolithic:2"},
          {"QSGD", "qsgd:16", "none"},
          {"int8, EF", "int8:64", "ef"},
          {"sign, EF", "sign", "ef"}};
}

std::string descents_text(const std::vector<Descent>& runs) {
  std::vector<Cells> rows;
  for (const Descent& run : runs)
    rows.push_back({run.spec.name, run.spec.compress, std::string(sync::name_of(run.method)),
                    fmt::format("{:.1f}", run.bytes_per_step), fmt::format("{:.1f}", run.formula_bytes),
                    fmt::format("{:.2e}", run.error.back()), run.error.back() > run.error.front() ? "diverges" : ""});
  return text_table({"error feedback", "compressor", "aggregation", "bytes/step", "formula", "‖x − x*‖²/d", ""}, rows);
}

Json descents_json(const std::vector<Descent>& runs) {
  Json rows = Json::array();
  for (const Descent& run : runs)
    rows.push_back({{"name", run.spec.name},
                    {"compress", run.spec.compress},
                    {"feedback", run.spec.feedback},
                    {"way", sync::name_of(run.method)},
                    {"bytes_per_step", run.bytes_per_step},
                    {"formula_bytes", run.formula_bytes},
                    {"error", run.error}});
  return rows;
}

Json report_of(const CompressionLabOptions& o, const std::vector<CompressorResult>& all,
               const std::vector<Descent>& example, const std::vector<Descent>& runs) {
  Json rows = Json::array();
  for (const CompressorResult& result : all) {
    Json row = {
        {"compressor", result.compressor}, {"bytes", result.bytes},           {"lost", result.error},
        {"bias", result.bias_squared},     {"encode_gbs", result.encode_gbs}, {"decode_gbs", result.decode_gbs}};
    if (result.guarantee.omega) row["omega"] = *result.guarantee.omega;
    if (result.guarantee.delta) row["delta"] = *result.guarantee.delta;
    rows.push_back(row);
  }
  return {{"values", o.values},
          {"draws", o.draws},
          {"ranks", o.nproc},
          {"steps", o.steps},
          {"lr", o.lr},
          {"noise", o.noise},
          {"dim", o.dim},
          {"compressors", rows},
          {"heterogeneity", o.heterogeneity},
          {"diverging", descents_json(example)},
          {"descents", descents_json(runs)}};
}

std::vector<PictureSeries> series_of(const std::vector<Descent>& runs) {
  std::vector<PictureSeries> all;
  for (const Descent& run : runs) {
    PictureSeries series{run.spec.name, {}, run.spec.feedback == "none" && run.spec.name != "parallel SGD"};
    double next = 1;
    for (size_t k = 0; k < run.error.size(); ++k) {
      if (static_cast<double>(k + 1) < next) continue;
      // Limits the plotted values: smaller ones are rounding errors, and larger ones would compress all other curves.
      series.points.emplace_back(static_cast<double>(k + 1), std::clamp(run.error[k], 1e-16, 1e6));
      next = std::max(next + 1, next * 1.03);
    }
    all.push_back(std::move(series));
  }
  return all;
}

// Stacks two SVG pictures vertically.
std::string stacked(const std::string& above, const std::string& below, double width, double height) {
  return svg_open(width, 2 * height) + above + fmt::format("<g transform=\"translate(0 {})\">\n", height) + below +
         "</g>\n</svg>\n";
}

void check(const CompressionLabOptions& o) {
  if (o.nproc < 2 || o.nproc > 64) throw UsageError(fmt::format("--nproc: got {}; expected 2 to 64 ranks", o.nproc));
  if (o.values < 1024 || o.draws < 1 || o.steps < 10 || o.dim < 1 || o.dim > 1'000'000)
    throw UsageError(fmt::format(
        "got --values {}, --draws {}, --steps {}, --dim {}; expected --values >= 1024, --draws >= 1, --steps >= "
        "10, --dim from 1 to 1000000",
        o.values, o.draws, o.steps, o.dim));
  if (!(o.lr > 0) || !(o.noise >= 0) || !(o.heterogeneity >= 0))
    throw UsageError(fmt::format(
        "got --lr {}, --noise {}, --heterogeneity {}; expected --lr > 0, --noise >= 0, --heterogeneity >= 0", o.lr,
        o.noise, o.heterogeneity));
  sync::make_compressor(o.compress)->check(o.dim);
}

Findings findings_of(const std::vector<Descent>& example, const std::vector<Descent>& runs) {
  Findings findings;
  for (const auto* list : {&example, &runs})
    for (const Descent& one : *list)
      findings.exact(fmt::format("{}: bytes per step", one.spec.name), "", one.formula_bytes, one.bytes_per_step, "B");
  findings.holds("Top-1 without feedback", "diverges", "grows", fmt::format("{:.1e}", example[0].error.back()),
                 example[0].error.back() > example[0].error.front());
  for (size_t i = 1; i < example.size(); ++i)
    findings.holds(fmt::format("{}: distance from the minimum", example[i].spec.name), "converges", "falls",
                   fmt::format("{:.1e}", example[i].error.back()), example[i].error.back() < 1e-12);
  constexpr std::pair<const char*, const char*> kTable[] = {{"parallel SGD", "93.99 %"},
                                                            {"EF", "94.35 % (MEM-SGD)"},
                                                            {"DoubleSqueeze", "94.11 %"},
                                                            {"EF21", "87.37 %"},
                                                            {"NEOLITHIC, R = 2", "94.63 %"}};
  for (const auto& [name, printed] : kTable)
    for (const Descent& one : runs)
      if (one.spec.name == name)
        findings
            .show(fmt::format("{}: accuracy in the lecture, distance from the minimum here", name), printed, "",
                  fmt::format("{:.1e}", one.error.back()))
            .note =
            "another task: ResNet-18 on CIFAR-10, 5 % of the gradients, on GPUs; only the order can be compared";
  return findings;
}

int run_lab_compression(const CompressionLabOptions& o) {
  check(o);
  const std::vector<CompressorResult> all = measure_all(o);
  std::vector<Descent> example, runs;
  const DescentProblem spread = spread_problem();
  for (const char* feedback : {"none", "ef", "doublesqueeze", "ef21", "neolithic:2"})
    example.push_back(descend(spread, {std::string("topk:1, ") + feedback, "topk:1", feedback}, 0.02, 1000));
  const DescentProblem quadratic = quadratic_problem(o.nproc, o.dim, o.heterogeneity, o.noise);
  for (const DescentCase& spec : cases_of(o)) runs.push_back(descend(quadratic, spec, o.lr, o.steps));
  const std::string text = fmt::format(
      "{} normally distributed values, {} draws, one core. The theoretical bound holds for every vector; the "
      "measured columns are for these values.\n\n{}\n"
      "Top-1 of 3 coordinates on 3 ranks, f_i = ⟨a_i, x⟩² + ¼‖x‖² (Beznosikov et al. 2020), step 0.02, 1000 steps: "
      "the\ncoordinates that the ranks send cancel, so without error feedback x diverges.\n\n{}\n"
      "{} heterogeneous ranks, {} coordinates, heterogeneity {}, σ = {}, step {}, {} steps. Bytes are those of "
      "the\nbusiest rank, from its communicator.\n\n{}",
      o.values, o.draws, compressors_text(o, all), descents_text(example), o.nproc, o.dim, o.heterogeneity, o.noise,
      o.lr, o.steps, descents_text(runs));
  const auto picture = [](const std::string& title, const std::vector<Descent>& of) {
    return draw_svg(title, "steps", "‖x − x*‖² / d", series_of(of), Axes::plain);
  };
  return finish_lab({o.json, o.out}, "compression", text, report_of(o, all, example, runs),
                    stacked(picture("Top-1 with and without feedback, 3 ranks", example),
                            picture(fmt::format("{}, {} heterogeneous ranks", o.compress, o.nproc), runs), 860, 520),
                    findings_of(example, runs));
}

}  // namespace

void define_lab_compression(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<CompressionLabOptions>(app, chosen, run_lab_compression);
  app.add_option("--values", o->values, "values per vector in the first table [1048576]").type_name("N");
  app.add_option("--draws", o->draws, "draws of randomised compressors [8]").type_name("N");
  app.add_option("--nproc", o->nproc, "ranks [8]").type_name("N");
  app.add_option("--compress", o->compress, "compressor [topk:0.0625]").type_name("SPEC");
  app.add_option("--dim", o->dim, "dimension of the problem [64]").type_name("D");
  app.add_option("--heterogeneity", o->heterogeneity, "heterogeneity of the nodes' minima [1]").type_name("Z");
  app.add_option("--noise", o->noise, "standard deviation of gradient noise [0]").type_name("S");
  app.add_option("--steps", o->steps, "steps of each method [1500]").type_name("N");
  app.add_option("--lr", o->lr, "step size [0.05]").type_name("G");
  app.add_option("--json", o->json, "write the figures as JSON").type_name("FILE");
  app.add_option("--out", o->out, "folder for text, JSON and picture").type_name("DIR");
}

}  // namespace esp::app
