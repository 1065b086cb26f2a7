// What a conversion did, as a table for a person.
#include <fmt/format.h>

#include <map>
#include <utility>

#include "base/progress.h"
#include "convert/convert.h"

namespace halfbyte {

std::string report_table(const ConvertReport& report) {
  struct Row {
    int64_t matrices = 0, elements = 0;
  };
  std::map<std::pair<WeightFormat, WeightFormat>, Row> rows;
  CastCounts all;
  int64_t inexact_matrices = 0;
  for (const auto& matrix : report.matrices) {
    Row& row = rows[{matrix.from, matrix.to}];
    ++row.matrices;
    row.elements += matrix.elements;
    all += matrix.cast;
    inexact_matrices += matrix.cast.lossy > 0;
  }
  std::string text = fmt::format("{:<24}{:>10}{:>16}\n", "what", "tensors", "size");
  for (const auto& [formats, row] : rows)
    text += fmt::format("{:<24}{:>10}{:>16}\n",
                        fmt::format("{} -> {}", name_of(formats.first), name_of(formats.second)),
                        row.matrices,
                        fmt::format("{:.1f} M values", 1e-6 * static_cast<double>(row.elements)));
  text += fmt::format("{:<24}{:>10}{:>16}\n", "as stored", report.copied_tensors,
                      format_bytes(report.copied_bytes));
  for (const auto& [what, left_out] : {std::pair{"layers left out", report.layers_left_out},
                                       std::pair{"experts left out", report.experts_left_out}})
    if (left_out.tensors > 0)
      text +=
          fmt::format("{:<24}{:>10}{:>16}\n", what, left_out.tensors, format_bytes(left_out.bytes));
  text +=
      fmt::format("{} read, {} written, {} file{}\n", format_bytes(report.read_bytes),
                  format_bytes(report.written_bytes), report.shards, report.shards == 1 ? "" : "s");
  if (all.total() > 0) {
    const auto line = [&](const char* what, int64_t count) {
      return fmt::format("  {:<44}{:>16}  {:>9.5f} %\n", what, count,
                         100.0 * static_cast<double>(count) / static_cast<double>(all.total()));
    };
    text += "blocks of 16 from MXFP4\n";
    text += line("exact, codes unchanged", all.exact);
    text += line("exact, re-coded", all.recoded);
    text += line("not representable, nearest chosen", all.lossy);
    text += all.lossy == 0
                ? "every value of the experts is the same as before\n"
                : fmt::format("{} matrices hold blocks whose values changed (see the report)\n",
                              inexact_matrices);
  }
  return text;
}

}  // namespace halfbyte
