#include "moe/routing.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace halfbyte {
namespace {

struct Sorted {
  std::vector<int64_t> offsets, order;
};

Sorted sort(const std::vector<int32_t>& ids, int num_experts) {
  Sorted sorted{std::vector<int64_t>(static_cast<size_t>(num_experts) + 1, -7),
                std::vector<int64_t>(ids.size(), -7)};
  const int64_t kept = sort_slots(ids.data(), static_cast<int64_t>(ids.size()), num_experts,
                                  sorted.offsets.data(), sorted.order.data());
  sorted.order.resize(static_cast<size_t>(kept));
  return sorted;
}

TEST(Routing, SortsByExpertAndKeepsTheOrderOfSlots) {
  const Sorted sorted = sort({2, 0, 2, 1, 0}, 4);
  EXPECT_EQ(sorted.offsets, (std::vector<int64_t>{0, 2, 3, 5, 5}));
  EXPECT_EQ(sorted.order, (std::vector<int64_t>{1, 4, 3, 0, 2}));
}

// moe-faults B57, B58: foreign, stale and huge ids are left out.
TEST(Routing, LeavesOutIdsOutsideTheRange) {
  const Sorted sorted = sort({-1, 3, 4, 5, 1000000, INT32_MAX, INT32_MIN, 0}, 4);
  EXPECT_EQ(sorted.offsets, (std::vector<int64_t>{0, 1, 1, 1, 2}));
  EXPECT_EQ(sorted.order, (std::vector<int64_t>{7, 1}));
}

TEST(Routing, NoSlots) {
  const Sorted sorted = sort({}, 3);
  EXPECT_EQ(sorted.offsets, (std::vector<int64_t>{0, 0, 0, 0}));
}

// moe-faults B65, B66, B67: a bijection on the valid slots, whatever the sizes, repeats included.
TEST(Routing, EveryValidSlotComesExactlyOnceUnderItsExpert) {
  std::mt19937 random(1);
  for (int experts : {1, 5, 127, 128, 129, 512, 897})
    for (int slots : {1, 15, 16, 17, 255, 256, 257, 511, 513, 4096}) {
      std::vector<int32_t> ids(static_cast<size_t>(slots));
      for (int32_t& id : ids)
        id = static_cast<int32_t>(random() % static_cast<unsigned>(experts + 2)) - 1;
      const Sorted sorted = sort(ids, experts);
      std::vector<int> seen(ids.size());
      for (int e = 0; e < experts; ++e) {
        const int64_t begin = sorted.offsets[static_cast<size_t>(e)];
        for (int64_t i = begin; i < sorted.offsets[static_cast<size_t>(e) + 1]; ++i) {
          const int64_t slot = sorted.order[static_cast<size_t>(i)];
          EXPECT_EQ(ids[static_cast<size_t>(slot)], e);
          if (i > begin) {
            EXPECT_LT(sorted.order[static_cast<size_t>(i - 1)], slot);
          }
          ++seen[static_cast<size_t>(slot)];
        }
      }
      for (size_t s = 0; s < ids.size(); ++s)
        EXPECT_EQ(seen[s], ids[s] >= 0 && ids[s] < experts ? 1 : 0);
    }
}

}  // namespace
}  // namespace halfbyte
