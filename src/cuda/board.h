// SM clock and power of a GPU, from the driver's management library, beside a measurement.
#pragma once

#include <thread>
#include <vector>

namespace halfbyte {

struct BoardState {
  double sm_mhz = 0, watts = 0;  // 0: not known
};

class Board {
 public:
  // Without libnvidia-ml.so.1, or if it refuses, nothing is known.
  explicit Board(int cuda_device);
  BoardState read() const;

 private:
  void* device_ = nullptr;
};

// Reads the board every 20 ms, on a thread of its own, from here to `finish`.
class BoardSampler {
 public:
  explicit BoardSampler(const Board& board);
  BoardState finish();  // medians of the later half of the readings

 private:
  std::vector<BoardState> readings_;
  std::jthread thread_;
};

}  // namespace halfbyte
