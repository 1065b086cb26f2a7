// wgmma m64nNk16: c (64 x N, fp32) += a (64 x 16, BF16 in registers) b (16 x N, BF16 in shared
// memory, K contiguous), N a multiple of 8. The asm text names each accumulator, so
// macros spell them.
#pragma once

#include <cstdint>

namespace halfbyte::hopper {

// Operand B at `address`: 128-byte swizzle, groups of 8 rows 1024 B apart.
__device__ __forceinline__ uint64_t operand_b(uint32_t address) {
  return (uint64_t{1} << 62) | (uint64_t{1024 >> 4} << 32) | ((address & 0x3FFFF) >> 4);
}

// Before the first wgmma, and after registers of operand A or accumulators were written.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kGroups>  // that may still run
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}

template <int kN>
__device__ __forceinline__ void wgmma(float (&c)[kN / 2], const uint32_t (&a)[4], uint64_t b);

// clang-format off
#define HB_NAMES_4 "%0,%1,%2,%3"
#define HB_NAMES_8 HB_NAMES_4 ",%4,%5,%6,%7"
#define HB_NAMES_12 HB_NAMES_8 ",%8,%9,%10,%11"
#define HB_NAMES_20 HB_NAMES_16 ",%16,%17,%18,%19"
#define HB_NAMES_16 HB_NAMES_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define HB_NAMES_24 HB_NAMES_16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define HB_NAMES_32 HB_NAMES_24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define HB_NAMES_40 HB_NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define HB_NAMES_48 HB_NAMES_40 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define HB_NAMES_56 HB_NAMES_48 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define HB_NAMES_64 HB_NAMES_56 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define HB_NAMES_72 HB_NAMES_64 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define HB_NAMES_80 HB_NAMES_72 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define HB_NAMES_88 HB_NAMES_80 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define HB_NAMES_96 HB_NAMES_88 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define HB_NAMES_28 HB_NAMES_24 ",%24,%25,%26,%27"
#define HB_NAMES_36 HB_NAMES_32 ",%32,%33,%34,%35"
#define HB_NAMES_44 HB_NAMES_40 ",%40,%41,%42,%43"
#define HB_REGISTERS_4 "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
#define HB_REGISTERS_8 HB_REGISTERS_4, "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7])
#define HB_REGISTERS_12 HB_REGISTERS_8, "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11])
#define HB_REGISTERS_20 HB_REGISTERS_16, "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19])
#define HB_REGISTERS_16 HB_REGISTERS_8, "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15])
#define HB_REGISTERS_24 HB_REGISTERS_16, "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23])
#define HB_REGISTERS_32 HB_REGISTERS_24, "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31])
#define HB_REGISTERS_40 HB_REGISTERS_32, "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35]), "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39])
#define HB_REGISTERS_48 HB_REGISTERS_40, "+f"(c[40]), "+f"(c[41]), "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47])
#define HB_REGISTERS_56 HB_REGISTERS_48, "+f"(c[48]), "+f"(c[49]), "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55])
#define HB_REGISTERS_64 HB_REGISTERS_56, "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]), "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63])
#define HB_REGISTERS_72 HB_REGISTERS_64, "+f"(c[64]), "+f"(c[65]), "+f"(c[66]), "+f"(c[67]), "+f"(c[68]), "+f"(c[69]), "+f"(c[70]), "+f"(c[71])
#define HB_REGISTERS_80 HB_REGISTERS_72, "+f"(c[72]), "+f"(c[73]), "+f"(c[74]), "+f"(c[75]), "+f"(c[76]), "+f"(c[77]), "+f"(c[78]), "+f"(c[79])

#define HB_REGISTERS_28 HB_REGISTERS_24, "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27])
#define HB_REGISTERS_36 HB_REGISTERS_32, "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35])
#define HB_REGISTERS_44 HB_REGISTERS_40, "+f"(c[40]), "+f"(c[41]), "+f"(c[42]), "+f"(c[43])

#define HB_WGMMA(N, HALF, A0, A1, A2, A3, B)                                                       \
  template <>                                                                                      \
  __device__ __forceinline__ void wgmma<N>(float (&c)[HALF], const uint32_t (&a)[4], uint64_t b) { \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" HB_NAMES_##HALF      \
                 "}, {%" #A0 ",%" #A1 ",%" #A2 ",%" #A3 "}, %" #B ", 1, 1, 1, 0;"                  \
                 : HB_REGISTERS_##HALF                                                             \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                            \
  }
HB_WGMMA(8, 4, 4, 5, 6, 7, 8)
HB_WGMMA(16, 8, 8, 9, 10, 11, 12)
HB_WGMMA(24, 12, 12, 13, 14, 15, 16)
HB_WGMMA(32, 16, 16, 17, 18, 19, 20)
HB_WGMMA(40, 20, 20, 21, 22, 23, 24)
HB_WGMMA(48, 24, 24, 25, 26, 27, 28)
HB_WGMMA(56, 28, 28, 29, 30, 31, 32)
HB_WGMMA(64, 32, 32, 33, 34, 35, 36)
HB_WGMMA(72, 36, 36, 37, 38, 39, 40)
HB_WGMMA(80, 40, 40, 41, 42, 43, 44)
HB_WGMMA(88, 44, 44, 45, 46, 47, 48)
HB_WGMMA(96, 48, 48, 49, 50, 51, 52)
HB_WGMMA(112, 56, 56, 57, 58, 59, 60)
HB_WGMMA(128, 64, 64, 65, 66, 67, 68)
HB_WGMMA(144, 72, 72, 73, 74, 75, 76)
HB_WGMMA(160, 80, 80, 81, 82, 83, 84)
// clang-format on

#undef HB_WGMMA

}  // namespace halfbyte::hopper
