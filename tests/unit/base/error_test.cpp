#include "halfbyte/error.h"

#include <gtest/gtest.h>

namespace halfbyte {
namespace {

TEST(Error, IsOneLineWhateverNamesHold) {
  const Error error(ErrorKind::kInput, "a\nb", "tensor \x1b[31m\r\n: bad \xc3\xa9");
  EXPECT_STREQ(error.what(), "a?b: tensor ?[31m??: bad \xc3\xa9");
  EXPECT_EQ(error.where(), "a?b");
  EXPECT_EQ(error.message(), "tensor ?[31m??: bad \xc3\xa9");
  EXPECT_STREQ(Error(ErrorKind::kInput, "", "x").what(), "x");
}

}  // namespace
}  // namespace halfbyte
